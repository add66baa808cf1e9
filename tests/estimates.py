"""Means of correlated samples with honest standard errors, to hold a simulation against a theory."""

from typing import Any, NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A mean and its standard error."""

    mean: float
    standard_error: float

    def agrees_with(self, theory: float, *, low: float = 0.0, high: float = 0.0) -> bool:
        """Tells whether the mean lies within 4 standard errors of [theory + low, theory + high], the known bias."""
        margin = 4 * self.standard_error
        return theory + low - margin <= self.mean <= theory + high + margin

    def detects(self, error: float) -> bool:
        """Tells whether a true mean off by `error` would be refused for sure (by 8 standard errors: chance 0.99997)."""
        return 8 * self.standard_error <= abs(error)


def estimate(values: Any, num_batches: int, controls: tuple[tuple[Any, float], ...] = ()) -> Estimate:
    """Returns the mean of (n,) values in the order they came, by the method of batch means.

    Args:
        values: correlated; batches must be much longer than the correlation.
        num_batches: equal stretches, whose means count as independent.
        controls: other (n,) values with their known means: what chance did to them is taken out by regression.

    Source: Law (2015), Simulation Modeling and Analysis, sections 9.5.3 and 11.4 (batch means, control variates).
    """
    means = batch_means(values, num_batches)
    chance = [batch_means(control, num_batches) - known for control, known in controls]
    factors = np.column_stack([np.ones(num_batches), *chance])
    fitted = np.linalg.lstsq(factors, means)[0]
    variance = np.sum((means - factors @ fitted) ** 2) / (num_batches - factors.shape[1])
    return Estimate(float(fitted[0]), float(np.sqrt(variance * np.linalg.inv(factors.T @ factors)[0, 0])))


def batch_means(values: Any, num_batches: int) -> Any:
    """Returns the means of equal stretches, (num_batches,)."""
    return np.asarray(values).reshape(num_batches, -1).mean(axis=1)
