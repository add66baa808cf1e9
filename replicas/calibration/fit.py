"""Fits the step-time form of docs/design.md to recorded steps, and says how good the fit is."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from replicas.calibration.cpu_fit import fit_cpu
from replicas.calibration.device_fit import NAMES, OUTLIER, device_s, fit_device, identified
from replicas.calibration.file import SHORTEST_S, CpuTime, DeviceTime, Drift, FittedRange, Residuals, Spread
from replicas.calibration.goodness import range_of, repeat_spread_of, residuals_of
from replicas.calibration.mixture import DENSE, Mixture
from replicas.links import NO_LINKS, Links
from replicas.step_time import padded_tokens
from sim.step_terms import Step, with_terms

Floats = NDArray[np.float64]

MAX_KNOTS = 60
"""Of the drift: more would make the fit slow; a longer measurement has longer windows."""


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


def fit(steps: pd.DataFrame, max_graph_tokens: int = 0, drift_window_s: float | None = 10.0, mixture: Mixture = DENSE) -> Fit:
    """Fits all coefficients to `steps` (`replicas.calibration.steps.COLUMNS`).

    A machine whose speed drifts while it is measured makes whichever shapes it measures in a slow minute look expensive. So
    its speed is fitted too, as a line through one knot every `drift_window_s`, held near 1 where the steps do not tell it
    from the coefficients, which are for its mean speed.

    Args:
        steps: at least as many as there are coefficients.
        max_graph_tokens: tokens of the engine's largest CUDA graph, to whose sizes steps are padded; 0 = none.
        drift_window_s: seconds between two knots; None = the machine's speed is taken as constant.
        mixture: the model's experts.

    Raises:
        ValueError: too few steps, or times that are not positive.
    """
    measured_s = steps["device_s"].to_numpy(np.float64)
    if len(steps) < len(NAMES):
        raise ValueError(f"{len(steps)} steps are too few for {len(NAMES)} coefficients")
    if not (measured_s > 0).all():
        raise ValueError(f"device_s of step {int(np.argmin(measured_s))} is {measured_s.min():g}; times must be above 0")
    knots = _knots(steps["at_s"].to_numpy(np.float64), drift_window_s)
    best = fit_device(features_of(steps, max_graph_tokens, mixture), measured_s, knots)
    device_time = DeviceTime(**dict(zip(NAMES, best.values.tolist(), strict=True)))
    cpu_time, silent = fit_cpu(steps)
    errors, unknown = identified(best)
    return Fit(
        device_time=device_time,
        cpu_time=cpu_time,
        relative_errors=errors,
        not_identified=[*unknown, *silent],
        range=range_of(steps),
        residuals=residuals_of(predicted_s(steps, device_time, max_graph_tokens, mixture), measured_s),
        repeat_spread=repeat_spread_of(steps),
        drift=None if drift_window_s is None else _drift_of(np.exp(knots @ best.slowness), drift_window_s),
    )


def features_of(steps: pd.DataFrame, max_graph_tokens: int = 0, mixture: Mixture = DENSE) -> Floats:
    """Returns (n, 5): tokens as they are computed, attended tokens, KV tokens, requests, share of the weights that is read.

    Of a model whose experts several engines share, every one of them is taken to have the same step.
    """
    tokens = steps["num_tokens"].to_numpy(np.float64)
    padded = np.asarray([padded_tokens(int(one), max_graph_tokens) for one in tokens], np.float64)
    rest = [steps[name].to_numpy(np.float64) for name in ("attended_tokens", "kv_tokens", "num_requests")]
    return np.column_stack([padded, *rest, mixture.read(tokens)])


def predicted_s(steps: pd.DataFrame, device_time: DeviceTime, max_graph_tokens: int = 0, mixture: Mixture = DENSE) -> Floats:
    """Returns (n,) the device's seconds of each step, to be compared with `device_s`."""
    seconds = device_s(features_of(steps, max_graph_tokens, mixture), [getattr(device_time, name) for name in NAMES])
    tokens = steps["num_tokens"].to_numpy(np.float64)
    padded = np.asarray([padded_tokens(int(one), max_graph_tokens) for one in tokens], np.float64)
    step = Step(
        padded_tokens=padded,
        num_requests=steps["num_requests"].to_numpy(np.float64),
        kv_tokens=steps["kv_tokens"].to_numpy(np.float64),
        num_masks=0.0,
        is_mixed=_is_mixed(steps).astype(np.float64),
        is_eager=tokens > max_graph_tokens,
    )
    return np.asarray(with_terms(seconds + device_time.measured_at(padded), step, device_time))


def mixed_kv_tokens(steps: pd.DataFrame) -> Floats:
    """Returns (n,) the KV tokens of each step in which some request has more than one new token, 0 for the others."""
    return np.where(_is_mixed(steps), steps["kv_tokens"], 0.0).astype(np.float64)


def _is_mixed(steps: pd.DataFrame) -> NDArray[np.bool_]:
    return (steps["num_tokens"] > steps["num_requests"]).to_numpy(np.bool_)


def fit_kernels(
    steps: pd.DataFrame, max_graph_tokens: int = 0, mixture: Mixture = DENSE, links: Links = NO_LINKS, between_s: float = 0.0
) -> Fit:
    """Fits all coefficients to steps put together from kernels, `s_per_mixed_kv_token` among them.

    It is left to kernel profiles, which have no noise: in recorded steps it could hardly be told from the others.

    Args:
        steps: of kernels and links.
        max_graph_tokens: tokens of the engine's largest CUDA graph; 0 = none.
        mixture: the model's experts.
        links: the part of the steps' times that the GPUs' messages take, which is given, not fitted.
        between_s: what each step takes besides; it is not in `steps`, and is added to the fit.

    Raises:
        ValueError: too few steps, or times that are not positive.
    """
    measured_s, mixed = steps["device_s"].to_numpy(np.float64), mixed_kv_tokens(steps)
    given = {
        "link_s": links.fixed_s,
        "link_s_per_token": links.s_per_token,
    }
    nothing = DeviceTime.model_validate(dict.fromkeys(NAMES, 0.0) | {"weights_s": SHORTEST_S} | given)
    linked_s = predicted_s(steps, nothing, max_graph_tokens, mixture)

    def fitted(s_per_token: float) -> tuple[float, Fit]:
        plain = steps.assign(device_s=np.maximum(measured_s - linked_s - s_per_token * mixed, 0.1 * measured_s))
        found = fit(plain, max_graph_tokens, None, mixture)
        time = found.device_time.model_copy(update=given | {"s_per_mixed_kv_token": s_per_token})
        errors = (predicted_s(steps, time, max_graph_tokens, mixture) / measured_s - 1) / OUTLIER
        time = time.model_copy(update={"fixed_s": time.fixed_s + between_s})
        whole = replace(found, device_time=time, residuals=residuals_of(measured_s * (1 + errors * OUTLIER), measured_s))
        return float(np.sum(np.sqrt(1 + errors**2) - 1)), whole

    if not mixed.any():
        return fitted(0.0)[1]
    most = float(np.min(measured_s[mixed > 0] / mixed[mixed > 0]))  # all of the step that has most of it
    best = minimize_scalar(lambda share: fitted(share * most)[0], bounds=(0.0, 1.0), method="bounded", options={"xatol": 0.01})
    return min((fitted(share * most) for share in (0.0, float(best.x))), key=lambda one: one[0])[1]


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


def _drift_of(factors: Floats, window_s: float) -> Drift:
    return Drift(window_s=window_s, fastest=float(factors.min()), slowest=float(factors.max()), spread=float(factors.std()))
