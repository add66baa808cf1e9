"""Arrival rates over time, each with its exact integral; they add up and multiply."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from traces.shapes import Shape, cosine_area, cosine_height

Floats = NDArray[np.float64]

DAY_S = 86_400.0


class Rate(Protocol):
    """A rate in requests/s for every instant from 0 on; right-continuous where it jumps."""

    def per_s(self, at_s: Floats) -> Floats:
        """Returns the rate at each instant."""

    def expected(self, at_s: Floats) -> Floats:
        """Returns the requests expected in [0, at_s): the integral of `per_s`, exact and never falling."""

    def breaks_s(self, duration_s: float) -> Floats:
        """Returns instants between which the rate is smooth: its jumps and bends, and more where it bends fast."""


@dataclass(frozen=True)
class Flat:
    """The same rate at all times."""

    rate_per_s: float

    def per_s(self, at_s: Floats) -> Floats:
        """Returns the rate at each instant."""
        return np.full_like(at_s, self.rate_per_s)

    def expected(self, at_s: Floats) -> Floats:
        """Returns the requests expected in [0, at_s)."""
        return self.rate_per_s * at_s

    def breaks_s(self, duration_s: float) -> Floats:
        """Returns nothing: it never bends."""
        return np.empty(0)


@dataclass(frozen=True)
class Daily:
    """A wave of one day between a trough and a peak."""

    peak_per_s: float
    trough_per_s: float
    peak_at_s: float
    shape: Shape

    def per_s(self, at_s: Floats) -> Floats:
        """Returns the rate at each instant."""
        swing_per_s = self.peak_per_s - self.trough_per_s
        return self.trough_per_s + swing_per_s * self.shape.height((at_s - self.peak_at_s) / DAY_S)

    def expected(self, at_s: Floats) -> Floats:
        """Returns the requests expected in [0, at_s)."""
        swing_per_s = self.peak_per_s - self.trough_per_s
        start = self.shape.area(np.asarray(-self.peak_at_s / DAY_S))
        area = self.shape.area((at_s - self.peak_at_s) / DAY_S)
        return self.trough_per_s * at_s + swing_per_s * DAY_S * (area - start)

    def breaks_s(self, duration_s: float) -> Floats:
        """Returns the bends of every day of the duration."""
        days = np.arange(-1.0, np.ceil(duration_s / DAY_S) + 1)
        kinks = np.asarray(self.shape.kinks_days, np.float64)
        return self.peak_at_s + DAY_S * np.add.outer(days, kinks).ravel()


@dataclass(frozen=True)
class Pulse:
    """A raised cosine on top of nothing: up to `height_per_s` at `at_s`, back to 0 half a width either side."""

    at_s: float
    height_per_s: float
    width_s: float

    def _widths(self, at_s: Floats) -> Floats:
        return np.clip((at_s - self.at_s) / self.width_s, -0.5, 0.5)

    def per_s(self, at_s: Floats) -> Floats:
        """Returns the rate at each instant."""
        return self.height_per_s * cosine_height(self._widths(at_s))

    def expected(self, at_s: Floats) -> Floats:
        """Returns the requests expected in [0, at_s); the whole pulse holds height * width / 2 of them."""
        start = cosine_area(self._widths(np.asarray(0.0)))
        return self.height_per_s * self.width_s * (cosine_area(self._widths(at_s)) - start)

    def breaks_s(self, duration_s: float) -> Floats:
        """Returns a fine grid over the pulse, however short it is."""
        return self.at_s + self.width_s * np.linspace(-0.5, 0.5, 65)


@dataclass(frozen=True)
class Sum:
    """Rates that add up, as independent streams of users do."""

    parts: Sequence[Rate]

    def per_s(self, at_s: Floats) -> Floats:
        """Returns the rate at each instant."""
        return np.sum([part.per_s(at_s) for part in self.parts], axis=0)

    def expected(self, at_s: Floats) -> Floats:
        """Returns the requests expected in [0, at_s)."""
        return np.sum([part.expected(at_s) for part in self.parts], axis=0)

    def breaks_s(self, duration_s: float) -> Floats:
        """Returns the bends of every part."""
        return np.concatenate([part.breaks_s(duration_s) for part in self.parts])


class Scaled:
    """A rate times a factor that is constant on intervals: weekends, noise.

    Interval i is [interval_s * i, interval_s * (i + 1)); the last factor holds for ever.
    """

    def __init__(self, rate: Rate, factors: Floats, interval_s: float) -> None:
        self._rate, self._factors, self._interval_s = rate, factors, interval_s
        self._edges_s = interval_s * np.arange(len(factors), dtype=np.float64)
        self._base = rate.expected(self._edges_s)
        self._start = np.concatenate([[0.0], np.cumsum(factors[:-1] * np.diff(self._base))])

    def _interval(self, at_s: Floats) -> NDArray[np.intp]:
        # Comparing with the edges, not dividing by the interval: both methods must agree on where an edge lies.
        return np.searchsorted(self._edges_s, at_s, side="right") - 1

    def per_s(self, at_s: Floats) -> Floats:
        """Returns the rate at each instant."""
        return self._factors[self._interval(at_s)] * self._rate.per_s(at_s)

    def expected(self, at_s: Floats) -> Floats:
        """Returns the requests expected in [0, at_s)."""
        i = self._interval(at_s)
        return self._start[i] + self._factors[i] * (self._rate.expected(at_s) - self._base[i])

    def breaks_s(self, duration_s: float) -> Floats:
        """Returns the edges of the intervals and the bends of the rate."""
        return np.concatenate([self._edges_s, self._rate.breaks_s(duration_s)])
