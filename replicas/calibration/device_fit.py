"""Fits the device's part of a step, and the machine's drift with it: non-negative, on relative errors, robustly."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

from replicas.calibration.file import SHORTEST_S

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
MAD_TO_STANDARD_DEVIATION = 1.4826
"""A normal law's standard deviation over its median absolute deviation."""

_SUM, _OVERLAP = (0, 1, 2, 3, 5), (0, 1, 2, 3, 4, 5, 6)
"""Which of NAMES are free: where all adds up the fixed part cannot be told from the weights, and nothing is hidden."""


def device_s(features: Floats, values: Sequence[float] | Floats) -> Floats:
    """Returns (n,) the device's time for each row of `features`, by coefficients in the order of `NAMES`.

    Args:
        features: (n, 5) padded tokens, attended tokens, KV tokens, requests, share of the weights that is read.
        values: the coefficients.
    """
    per_token, per_attended, weights_s, per_kv, fixed_s, per_request, serial_share = values
    arithmetic_s = per_token * features[:, 0] + per_attended * features[:, 1]
    memory_s = weights_s * features[:, 4] + per_kv * features[:, 2]
    hidden_s = np.minimum(arithmetic_s, memory_s)
    seconds: Floats = np.maximum(arithmetic_s, memory_s) + serial_share * hidden_s + fixed_s + per_request * features[:, 3]
    return seconds


def gradient(features: Floats, values: Floats) -> Floats:
    """Returns (n, 7) how `device_s` changes with each coefficient."""
    arithmetic_s = features[:, :2] @ values[:2]
    memory_s = values[2] * features[:, 4] + values[3] * features[:, 2]
    is_arithmetic = arithmetic_s >= memory_s
    of_arithmetic, of_memory = np.where(is_arithmetic, 1.0, values[6]), np.where(is_arithmetic, values[6], 1.0)
    ones = np.ones(len(features))
    of_weights, of_kv = of_memory * features[:, 4], of_memory * features[:, 2]
    terms = (of_arithmetic * features[:, 0], of_arithmetic * features[:, 1], of_weights, of_kv)
    return np.column_stack([*terms, ones, features[:, 3], np.minimum(arithmetic_s, memory_s)])


@dataclass(frozen=True)
class Minimum:
    """The coefficients that fit best."""

    values: Floats  # of NAMES
    slowness: Floats  # of the knots: log of how much longer steps took around each
    jacobian: Floats  # (n + knots, 7 + knots) of the relative errors by the free ones, outliers weighted down
    cost: float
    sigma: float  # typical relative error of a step
    has_overlap: bool  # whether a form in which arithmetic and memory hide each other was worth its terms


def fit_device(features: Floats, measured_s: Floats, knots: Floats) -> Minimum:
    """Fits the sum of all terms, and takes a form with overlap if that is better by more than its additional terms.

    Args:
        features: (n, 5) as in `device_s`.
        measured_s: (n,) above 0.
        knots: (n, knots) weights of each knot of the drift in each step.
    """
    start = _sum_of_terms(features, measured_s)
    simple = _Problem(features, measured_s, knots, start, _SUM).solve()
    best = simple
    for serial_share in (0.0, 0.5):
        split = np.array([*start[:2], 0.7 * start[2], start[3], 0.3 * start[2], start[5], serial_share])
        other = _Problem(features, measured_s, knots, split, _OVERLAP).solve()
        best = other if other.cost < min(best.cost, WORTH_A_TERM * simple.cost) else best
    return best


def _sum_of_terms(features: Floats, measured_s: Floats) -> Floats:
    """The simplest form, everything after everything: a linear problem. Its constant is the time to read the weights."""
    terms = np.column_stack([features[:, :2], features[:, 4], features[:, 2:4]])
    solution, _ = nnls(terms / measured_s[:, None], np.ones(len(features)))
    per_token, per_attended, constant_s, per_kv, per_request = solution
    return np.array([per_token, per_attended, constant_s, per_kv, 0.0, per_request, 1.0])


class _Problem:
    """Relative errors as a function of the free coefficients, each in units that make its term about a step long."""

    def __init__(self, features: Floats, measured_s: Floats, knots: Floats, start: Floats, free: tuple[int, ...]) -> None:
        self.features, self.measured_s, self.knots, self.start, self.free = features, measured_s, knots, start, list(free)
        typical = np.array([*features.mean(axis=0)[:2], 1.0, features[:, 2].mean(), 1.0, features[:, 3].mean()])
        self.units = np.append(np.median(measured_s) / np.maximum(typical, 1e-30), 1.0)[self.free]

    def coefficients(self, x: Floats) -> Floats:
        """All of NAMES: the free ones from `x`, the others as they were."""
        values = self.start.copy()
        values[self.free] = x[: len(self.free)] * self.units
        return values

    def factors(self, x: Floats) -> Floats:
        """(n,) the machine's slowness in each step over what was measured."""
        slowness: Floats = np.exp(self.knots @ x[len(self.free) :]) / self.measured_s
        return slowness

    def errors(self, x: Floats) -> Floats:
        """(n + knots,) relative errors of the steps, and how far each knot has strayed."""
        relative = device_s(self.features, self.coefficients(x)) * self.factors(x) - 1
        return np.concatenate([relative, x[len(self.free) :] * (OUTLIER / TYPICAL_DRIFT)])

    def jacobian(self, x: Floats) -> Floats:
        """(n + knots, free + knots) of `errors`."""
        values, factors = self.coefficients(x), self.factors(x)[:, None]
        by_value = gradient(self.features, values)[:, self.free] * self.units * factors
        by_knot = device_s(self.features, values)[:, None] * factors * self.knots
        num_knots = self.knots.shape[1]
        held = np.hstack([np.zeros((num_knots, len(self.free))), np.eye(num_knots) * (OUTLIER / TYPICAL_DRIFT)])
        return np.vstack([np.hstack([by_value, by_knot]), held])

    def solve(self) -> Minimum:
        """Returns the robust least squares."""
        num_knots = self.knots.shape[1]
        lower, upper = np.zeros(len(NAMES)), np.full(len(NAMES), np.inf)
        lower[2], upper[6] = SHORTEST_S, 1.0
        low = np.concatenate([lower[self.free] / self.units, np.full(num_knots, -1.0)])
        high = np.concatenate([upper[self.free] / self.units, np.full(num_knots, 1.0)])
        first = np.concatenate([self.start[self.free] / self.units, np.zeros(num_knots)])
        first = np.clip(first, low + 1e-9, high - 1e-9)
        found = least_squares(
            self.errors, first, jac=self.jacobian, bounds=(low, high), loss="soft_l1", f_scale=OUTLIER, x_scale="jac"
        )
        jacobian = np.zeros((len(found.fun), len(NAMES) + num_knots))
        jacobian[:, self.free] = np.asarray(found.jac)[:, : len(self.free)] / self.units
        jacobian[:, len(NAMES) :] = np.asarray(found.jac)[:, len(self.free) :]
        sigma = MAD_TO_STANDARD_DEVIATION * float(np.median(np.abs(found.fun[: len(self.measured_s)])))
        values, slowness = self.coefficients(found.x), found.x[len(self.free) :]
        return Minimum(values, slowness, jacobian, float(found.cost), sigma, self.free == list(_OVERLAP))


def identified(best: Minimum) -> tuple[dict[str, float], list[str]]:
    """Returns the standard errors of the coefficients relative to their values, and in words what the steps cannot tell."""
    names = [name for name in NAMES if best.has_overlap or name not in ("fixed_s", "serial_share")]
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
    if not best.has_overlap:
        unknown.append("fixed_s: arithmetic and memory add up here, so it is one with weights_s and counted there")
    return errors, unknown
