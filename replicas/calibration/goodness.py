"""How good a fit and a measurement are: what is left, how much repeats differ, and what range of steps was covered."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from replicas.calibration.file import FittedRange, Residuals, Spread

Floats = NDArray[np.float64]

MIN_REPEATS = 3
"""Of a shape, to say how much they differ."""


def range_of(steps: pd.DataFrame) -> FittedRange:
    """Returns the smallest and the largest of the steps in each respect."""
    names = ("num_requests", "num_tokens", "attended_tokens", "kv_tokens")
    return FittedRange(**{name: [float(steps[name].min()), float(steps[name].max())] for name in names})


def residuals_of(fitted_s: Floats, measured_s: Floats) -> Residuals:
    """Returns how far fitted step times, (n,) seconds, are from measured ones."""
    errors = fitted_s / measured_s - 1
    p50, p90, p99 = np.quantile(np.abs(errors), [0.5, 0.9, 0.99]).tolist()
    return Residuals(num_steps=len(errors), p50=p50, p90=p90, p99=p99, mean=float(errors.mean()))


def repeat_spread_of(steps: pd.DataFrame) -> Spread:
    """Returns how much steps of one shape differ; decodes whose contexts differ by less than 2 % are one shape."""
    near: dict[str, Any] = {name: np.round(np.log(steps[name]) / np.log(1.02)) for name in ("attended_tokens", "kv_tokens")}
    shapes = steps.groupby([steps["num_requests"], steps["num_tokens"], near["attended_tokens"], near["kv_tokens"]])
    many = shapes["device_s"].transform("size") >= MIN_REPEATS
    apart = np.abs(steps["device_s"] / shapes["device_s"].transform("median") - 1)[many]
    if apart.empty:
        return Spread(num_shapes=0)
    p50, p90 = np.quantile(apart, [0.5, 0.9]).tolist()
    return Spread(num_shapes=int((shapes.size() >= MIN_REPEATS).sum()), p50=p50, p90=p90)
