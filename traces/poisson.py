"""Independent users at a constant rate."""

import numpy as np
from pydantic import Field

from traces.gaps import FixedCount, UnitRenewal
from traces.generated import Generated
from traces.rates import Flat, Rate


class Poisson(Generated):
    """Many independent users at a constant rate: exponential gaps, counts as variable as they are large."""

    rate_per_s: float = Field(gt=0, description="Requests per second.")
    fixed_count: bool = Field(
        default=False,
        description="Exactly rate x duration requests, the last at the end: gaps stretched as load generators do, "
        "inference-perf's `constant` and `vllm bench serve`; false: as many as come.",
    )

    def gap_cv(self) -> float:
        """Coefficient of variation of the gaps: 1."""
        return 1.0

    def rate(self, seed: int | None) -> Rate:
        """Returns the constant rate."""
        return Flat(self.rate_scale * self.rate_per_s)

    def process(self, num_expected: float, random: np.random.Generator) -> UnitRenewal | FixedCount:
        """Returns the process of rate one whose first `num_expected` units of time are pulled back."""
        return FixedCount(num_expected, random) if self.fixed_count else super().process(num_expected, random)
