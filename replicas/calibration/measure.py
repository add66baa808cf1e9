"""Measures step shapes on an engine, each again and again until its median is tight, or it is clear that it will not be."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from replicas.calibration.device_fit import MAD_TO_STANDARD_DEVIATION
from replicas.calibration.engines import MeasuredEngine
from replicas.calibration.shapes import Shape
from replicas.calibration.steps import COLUMNS

MEDIAN_TO_STANDARD_ERROR = 1.253
"""The median of n normal values varies 1.253 times as much as their mean does (square root of pi / 2)."""


class Patience(NamedTuple):
    """When to stop repeating a shape."""

    min_repeats: int = 5
    max_repeats: int = 50
    tightness: float = 0.01  # standard error of the median, relative to it
    max_s: float = float("inf")  # of measuring altogether


class Measured(NamedTuple):
    """What came of a measurement."""

    steps: pd.DataFrame  # one row a repeat, columns as recorded steps have them
    loose: list[tuple[Shape, float]]  # shapes whose median is not tight, and how far it may be off, relative


def median_error(seconds: Sequence[float]) -> float:
    """Returns the standard error of the median, relative to it, from the median absolute deviation.

    >>> f"{median_error([1.0, 1.01, 0.99, 1.02, 0.98]):.4f}"
    '0.0083'
    """
    if len(seconds) < 2:
        return float("inf")
    values = np.asarray(seconds)
    median = float(np.median(values))
    spread = MAD_TO_STANDARD_DEVIATION * float(np.median(np.abs(values - median)))
    return MEDIAN_TO_STANDARD_ERROR * spread / median / float(np.sqrt(len(values)))


def measure_all(engine: MeasuredEngine, shapes: Sequence[Shape], seed: int, patience: Patience) -> Measured:
    """Measures every shape in rounds, in a new random order each round, and drops it once its median is tight.

    Rounds, because machines drift: repeats of one shape that stand next to each other agree with each other and are all
    wrong together. The first round warms up and is not counted. Once `patience.max_s` is over, a shape without two repeats is
    as loose as can be.
    """
    began = time.monotonic()
    rng = np.random.default_rng(seed)
    rows: list[dict[str, float]] = []
    seconds: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    open_shapes = list(shapes)
    for round_number in range(patience.max_repeats + 1):
        for place in rng.permutation(len(open_shapes)):
            if time.monotonic() - began > patience.max_s:
                break
            shape = open_shapes[place]
            at_s = time.monotonic()
            times = engine.measure(shape)
            if round_number > 0:
                seconds[shape].append(times.device_s)
                rows.append(_row(shape, times._asdict(), at_s))
        open_shapes = [shape for shape in open_shapes if not _is_tight(seconds[shape], patience)]
    loose = [(shape, median_error(values)) for shape, values in seconds.items() if not _is_tight(values, patience)]
    return Measured(pd.DataFrame(rows, columns=[*COLUMNS]), loose)


def _is_tight(seconds: Sequence[float], patience: Patience) -> bool:
    return len(seconds) >= patience.min_repeats and median_error(seconds) <= patience.tightness


def _row(shape: Shape, times: dict[str, float], at_s: float) -> dict[str, float]:
    return {
        "at_s": at_s,
        "num_requests": shape.num_requests,
        "num_prefills": int(shape.chunk > 0),
        "num_tokens": shape.num_tokens,
        "attended_tokens": shape.attended_tokens,
        "kv_tokens": shape.kv_tokens,
        **times,
    }
