"""Bursty or regular arrivals at a constant rate."""

from pydantic import Field

from traces.generated import Generated
from traces.rates import Flat, Rate


class Gamma(Generated):
    """Gamma gaps of a chosen variability at a constant rate: burstier than Poisson above cv 1, more regular below.

    `cv` is vLLM's `burstiness` turned round: burstiness = 1/cv^2.
    """

    rate_per_s: float = Field(gt=0, description="Requests per second.")
    cv: float = Field(
        ge=0,
        le=100,
        description="Standard deviation of the gaps over their mean: 1 is Poisson, 0 is evenly spaced, "
        "vLLM's burstiness is 1/cv^2.",
    )

    def gap_cv(self) -> float:
        """Coefficient of variation of the gaps."""
        return self.cv

    def rate(self, seed: int | None) -> Rate:
        """Returns the constant rate."""
        return Flat(self.rate_scale * self.rate_per_s)
