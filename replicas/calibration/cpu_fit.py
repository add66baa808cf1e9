"""Fits the CPU's work around a step: for each part a constant and a cost for each request."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

from replicas.calibration.file import CpuPart, CpuTime

Floats = NDArray[np.float64]

OUTLIER = 0.2
"""Relative error from which on a measured time counts less (soft L1).

Assumption: parts that take a tenth of a millisecond vary more than the device does.
"""
MIN_STEPS = 3
"""Fewer do not make a line."""


def fit_cpu(steps: pd.DataFrame) -> tuple[CpuTime, list[str]]:
    """Fits a constant and a cost per request to each part of the CPU's work, and says which part was not measured."""
    parts, silent = {}, []
    for name in ("schedule", "update", "front_end"):
        seconds = steps[f"{name}_s"].to_numpy(np.float64)
        is_known = np.isfinite(seconds) & (seconds > 0)
        if is_known.sum() < MIN_STEPS:
            silent.append(f"cpu_time.{name}: not measured, taken as 0")
            parts[name] = CpuPart(s=0.0, s_per_request=0.0)
            continue
        requests = steps["num_requests"].to_numpy(np.float64)[is_known]
        parts[name] = _line(requests, seconds[is_known])
    return CpuTime(**parts), silent


def _line(requests: Floats, seconds: Floats) -> CpuPart:
    terms = np.column_stack([np.ones(len(requests)), requests])
    first = np.maximum(nnls(terms / seconds[:, None], np.ones(len(requests)))[0], 1e-12)

    def errors(scaled: Floats) -> Floats:
        relative: Floats = terms @ (scaled * first) / seconds - 1
        return relative

    found = least_squares(errors, np.ones(2), bounds=(0, np.inf), loss="soft_l1", f_scale=OUTLIER)
    s, s_per_request = (found.x * first).tolist()
    return CpuPart(s=s, s_per_request=s_per_request)
