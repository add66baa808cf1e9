"""Evenly spaced arrivals."""

from pydantic import Field

from traces.generated import Generated
from traces.rates import Flat, Rate


class Constant(Generated):
    """One request every 1/rate seconds, the first at 0: what many load generators send, and no crowd of users does."""

    rate_per_s: float = Field(gt=0, description="Requests per second.")

    def gap_cv(self) -> float:
        """Coefficient of variation of the gaps: 0."""
        return 0.0

    def rate(self, seed: int | None) -> Rate:
        """Returns the constant rate."""
        return Flat(self.rate_scale * self.rate_per_s)
