"""Fits the step-time form to recorded steps: non-negative coefficients, robust against outliers, on relative errors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

from replicas.calibration.cpu_fit import fit_cpu
from replicas.calibration.file import SHORTEST_S, CpuTime, DeviceTime, Drift, FittedRange, Residuals, Spread
from replicas.calibration.goodness import range_of, repeat_spread_of, residuals_of
from replicas.calibration.steps import PARTS
from replicas.step_time import padded_tokens

Floats = NDArray[np.float64]

NAMES = ("s_per_token", "s_per_attended_token", "weights_s", "s_per_kv_token", "fixed_s", "s_per_request", "serial_share")
"""The coefficients of `DeviceTime`, in the order in which they are fitted."""

OUTLIER = 0.05
"""Relative error from which on a step counts less and less (soft L1).

Assumption: about the spread of repeated steps on a quiet machine; what is further off is disturbed or not of this form.
"""
WORTH_A_TERM = 0.98
"""A form with more coefficients is taken when it lowers the robust loss below this share of the simpler one's."""

TYPICAL_DRIFT = 0.1
"""How far a machine's speed is expected to stray while it is measured: what holds the knots near 1.

Assumption: a tenth, as a shared two-core machine was seen to do; a quiet GPU strays less and its steps will say so.
"""
MAX_KNOTS = 60
"""More would make the fit slow; a longer measurement has longer windows."""


@dataclass(frozen=True)
class Fit:
    """What is fitted to a table of steps."""

    device_time: DeviceTime
    cpu_time: CpuTime
    relative_errors: dict[str, float]
    not_identified: list[str]
    range: FittedRange
    residuals: Residuals
    repeat_spread: Spread
    drift: Drift | None


def fit(steps: pd.DataFrame, max_graph_tokens: int = 0, drift_window_s: float | None = 10.0) -> Fit:
    """Fits all coefficients to `steps` (`replicas.calibration.steps.COLUMNS`).

    A machine whose speed drifts while it is measured makes whichever shapes it measures in a slow minute look expensive. So
    its speed is fitted too, as a line through one knot every `drift_window_s`, held near 1 where the steps do not tell it
    from the coefficients, which are for its mean speed.

    Args:
        steps: at least as many as there are coefficients.
        max_graph_tokens: tokens of the engine's largest CUDA graph, to whose sizes steps are padded; 0 = none.
        drift_window_s: seconds between two knots; None = the machine's speed is taken as constant.

    Raises:
        ValueError: too few steps, or times that are not positive.
    """
    features = features_of(steps, max_graph_tokens)
    measured_s = steps["device_s"].to_numpy(np.float64)
    if len(steps) < len(NAMES):
        raise ValueError(f"{len(steps)} steps are too few for {len(NAMES)} coefficients")
    if not (measured_s > 0).all():
        raise ValueError(f"device_s of step {int(np.argmin(measured_s))} is {measured_s.min():g}; times must be above 0")
    knots = _knots(steps["at_s"].to_numpy(np.float64), drift_window_s)
    best, has_overlap = _fit_device(features, measured_s, knots)
    device_time = DeviceTime(**dict(zip(NAMES, best.values.tolist(), strict=True)))
    cpu_time, silent = fit_cpu(steps)
    errors, unknown = _identified(best, has_overlap)
    fitted_s = predicted_s(steps, device_time, cpu_time, max_graph_tokens)
    factors = np.exp(knots @ best.slowness)
    return Fit(
        device_time=device_time,
        cpu_time=cpu_time,
        relative_errors=errors,
        not_identified=[*unknown, *silent],
        range=range_of(steps),
        residuals=residuals_of(fitted_s, total_s(steps)),
        repeat_spread=repeat_spread_of(steps),
        drift=None if drift_window_s is None else _drift_of(factors, drift_window_s),
    )


def features_of(steps: pd.DataFrame, max_graph_tokens: int = 0) -> Floats:
    """Returns (n, 4): padded tokens, attended tokens, KV tokens, requests."""
    padded = [padded_tokens(int(tokens), max_graph_tokens) for tokens in steps["num_tokens"]]
    rest = [steps[name].to_numpy(np.float64) for name in ("attended_tokens", "kv_tokens", "num_requests")]
    return np.column_stack([np.asarray(padded, np.float64), *rest])


def device_s(features: Floats, values: Sequence[float] | Floats) -> Floats:
    """Returns (n,) the device's time for each row of `features`, by coefficients in the order of `NAMES`."""
    per_token, per_attended, weights_s, per_kv, fixed_s, per_request, serial_share = values
    arithmetic_s = per_token * features[:, 0] + per_attended * features[:, 1]
    memory_s = weights_s + per_kv * features[:, 2]
    hidden_s = np.minimum(arithmetic_s, memory_s)
    seconds: Floats = np.maximum(arithmetic_s, memory_s) + serial_share * hidden_s + fixed_s + per_request * features[:, 3]
    return seconds


def predicted_s(steps: pd.DataFrame, device_time: DeviceTime, cpu_time: CpuTime, max_graph_tokens: int = 0) -> Floats:
    """Returns (n,) the seconds of each step, device and CPU one after the other."""
    values = [getattr(device_time, name) for name in NAMES]
    cpu_s = cpu_time.s + cpu_time.s_per_request * steps["num_requests"].to_numpy(np.float64)
    return device_s(features_of(steps, max_graph_tokens), values) + cpu_s


def total_s(steps: pd.DataFrame) -> Floats:
    """Returns (n,) the measured seconds of each step and of the front end before it, where that was measured."""
    return sum((np.nan_to_num(steps[part].to_numpy(np.float64)) for part in PARTS), np.zeros(len(steps)))


def _knots(at_s: Floats, window_s: float | None) -> Floats:
    """Returns (n, knots) how much each knot says of a step's slowness, relative to the mean; no knots without a window."""
    if window_s is None:
        return np.zeros((len(at_s), 0))
    elapsed_s = at_s - at_s.min()
    window_s = max(window_s, float(elapsed_s.max()) / MAX_KNOTS)
    left = np.floor(elapsed_s / window_s).astype(np.int64)
    weights = np.zeros((len(at_s), int(left.max()) + 2))
    share = elapsed_s / window_s - left
    weights[np.arange(len(at_s)), left] = 1 - share
    weights[np.arange(len(at_s)), left + 1] = share
    return weights - weights.mean(axis=0)  # so that the coefficients are for the mean speed over the steps


def _fit_device(features: Floats, measured_s: Floats, knots: Floats) -> tuple["_Minimum", bool]:
    """Returns the best fit, and whether overlap was worth its terms."""
    start = _sum_of_terms(features, measured_s)
    simple = _minimise(features, measured_s, knots, start, free=(0, 1, 2, 3, 5))
    best = simple
    for serial_share in (0.0, 0.5):
        split = start.copy()
        split[6], split[4], split[2] = serial_share, 0.3 * start[2], 0.7 * start[2]
        other = _minimise(features, measured_s, knots, split, free=(0, 1, 2, 3, 4, 5, 6))
        best = other if other.cost < min(best.cost, WORTH_A_TERM * simple.cost) else best
    return best, best is not simple


def _sum_of_terms(features: Floats, measured_s: Floats) -> Floats:
    """The simplest form, everything after everything: a linear problem. Its constant is the time to read the weights."""
    terms = np.column_stack([features[:, :2], np.ones(len(features)), features[:, 2:]])
    solution, _ = nnls(terms / measured_s[:, None], np.ones(len(features)))
    per_token, per_attended, constant_s, per_kv, per_request = solution
    return np.array([per_token, per_attended, constant_s, per_kv, 0.0, per_request, 1.0])


@dataclass(frozen=True)
class _Minimum:
    values: Floats  # of NAMES
    slowness: Floats  # of the knots: how much longer steps took around each
    jacobian: Floats  # (n, coefficients and knots) of the relative errors, outliers weighted down
    cost: float
    sigma: float  # typical relative error of a step


def _minimise(features: Floats, measured_s: Floats, knots: Floats, start: Floats, free: tuple[int, ...]) -> _Minimum:
    """The robust fit of the coefficients at `free` and of the machine's drift; the other coefficients stay as they are."""
    places, num_knots = list(free), knots.shape[1]
    typical = np.array([*features.mean(axis=0)[:2], 1.0, features[:, 2].mean(), 1.0, features[:, 3].mean()])
    scale = np.append(np.median(measured_s) / np.maximum(typical, 1e-30), 1.0)[places]  # each term about a step's time
    lower, upper = np.zeros(len(NAMES)), np.full(len(NAMES), np.inf)
    lower[2], upper[6] = SHORTEST_S, 1.0

    def errors(free_values: Floats) -> Floats:
        values = start.copy()
        values[places] = free_values[: len(places)] * scale
        slowness = free_values[len(places) :]
        relative = device_s(features, values) * np.exp(knots @ slowness) / measured_s - 1
        return np.concatenate([relative, slowness * (OUTLIER / TYPICAL_DRIFT)])

    bounds = (
        np.concatenate([lower[places] / scale, np.full(num_knots, -1.0)]),
        np.concatenate([upper[places] / scale, np.full(num_knots, 1.0)]),
    )
    first = np.concatenate([np.clip(start[places] / scale, bounds[0][: len(places)] + 1e-9, bounds[1][: len(places)] - 1e-9),
                            np.zeros(num_knots)])  # fmt: skip
    found = least_squares(errors, first, bounds=bounds, loss="soft_l1", f_scale=OUTLIER, x_scale="jac")
    values = start.copy()
    values[places] = found.x[: len(places)] * scale
    slowness = found.x[len(places) :]
    jacobian = np.zeros((len(found.fun), len(NAMES) + num_knots))
    jacobian[:, places] = np.asarray(found.jac)[:, : len(places)] / scale
    jacobian[:, len(NAMES) :] = np.asarray(found.jac)[:, len(places) :]
    sigma = 1.4826 * float(np.median(np.abs(found.fun[: len(measured_s)])))  # a normal law's, from the median
    return _Minimum(values, slowness, jacobian, float(found.cost), sigma)


def _identified(best: _Minimum, has_overlap: bool) -> tuple[dict[str, float], list[str]]:
    """Standard errors relative to the values, and what these steps cannot tell, in words."""
    names = [name for name in NAMES if has_overlap or name not in ("fixed_s", "serial_share")]
    places = [NAMES.index(name) for name in names]
    relative = np.hstack([best.jacobian[:, places] * best.values[places], best.jacobian[:, len(NAMES) :]])
    strength = np.linalg.norm(relative[:, : len(names)], axis=0)
    is_there = strength > 1e-6 * strength.max(initial=0.0)
    kept = np.concatenate([is_there, np.ones(relative.shape[1] - len(names), np.bool_)])
    covariance = np.linalg.pinv(relative[:, kept].T @ relative[:, kept]) * best.sigma**2
    there = [name for name, ok in zip(names, is_there, strict=True) if ok]
    errors = dict(zip(there, np.sqrt(np.diag(covariance))[: len(there)].tolist(), strict=True))
    unknown = [f"{name}: no sign of it, taken as 0" for name, ok in zip(names, is_there, strict=True) if not ok]
    unknown += [f"{name}: good to {error:.0%} only" for name, error in errors.items() if error > 0.5]
    if not has_overlap:
        unknown.append("fixed_s: arithmetic and memory add up here, so it is one with weights_s and counted there")
    return errors, unknown


def _drift_of(factors: Floats, window_s: float) -> Drift:
    return Drift(window_s=window_s, fastest=float(factors.min()), slowest=float(factors.max()), spread=float(factors.std()))
