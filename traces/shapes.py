"""Shapes of a day: how the share of the way from trough to peak varies, with the exact integral of each."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Days = NDArray[np.float64]
"""Time since a peak, in days; any real number, the shape repeats daily."""


class Shape(NamedTuple):
    """A daily wave between 0 (trough) and 1 (peak, at day 0), whose mean over a day is 1/2."""

    height: Callable[[Days], Days]
    area: Callable[[Days], Days]  # integral of height from 0, in days
    kinks_days: tuple[float, ...]  # in [0, 1): where height jumps or bends


def cosine_height(days: Days) -> Days:
    """Returns a smooth wave, the usual picture of a day."""
    return 0.5 + 0.5 * np.cos(2 * np.pi * days)


def cosine_area(days: Days) -> Days:
    """Returns the integral of `cosine_height` from 0."""
    return 0.5 * days + np.sin(2 * np.pi * days) / (4 * np.pi)


def triangle_height(days: Days) -> Days:
    """Returns straight ramps: twelve hours up, twelve hours down."""
    return 1 - 2 * np.abs(days - np.rint(days))


def triangle_area(days: Days) -> Days:
    """Returns the integral of `triangle_height` from 0."""
    whole = np.rint(days)
    part = days - whole
    return 0.5 * whole + part - part * np.abs(part)


def square_height(days: Days) -> Days:
    """Returns a step: the peak for the six hours either side of it, the trough for the other twelve."""
    part = days - np.rint(days)
    return ((part >= -0.25) & (part < 0.25)).astype(np.float64)


def square_area(days: Days) -> Days:
    """Returns the integral of `square_height` from 0."""
    whole = np.rint(days)
    return 0.5 * whole + np.clip(days - whole, -0.25, 0.25)


SHAPES = {
    "cosine": Shape(cosine_height, cosine_area, ()),
    "triangle": Shape(triangle_height, triangle_area, (0.0, 0.5)),
    "square": Shape(square_height, square_area, (0.25, 0.75)),
}
