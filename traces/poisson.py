"""Independent users at a constant rate."""

from pydantic import Field

from traces.generated import Generated
from traces.rates import Flat, Rate


class Poisson(Generated):
    """Many independent users at a constant rate: exponential gaps, counts as variable as they are large."""

    rate_per_s: float = Field(gt=0, description="Requests per second.")

    def gap_cv(self) -> float:
        """Coefficient of variation of the gaps: 1."""
        return 1.0

    def rate(self, seed: int | None) -> Rate:
        """Returns the constant rate."""
        return Flat(self.rate_scale * self.rate_per_s)
