"""`fixed`: a number of replicas that never changes."""

from typing import Self

from pydantic import Field, model_validator

from autoscalers.autoscaler import Autoscaler, KnownRate
from autoscalers.limits import Policy, Wanted
from sim.views import PoolView


class Fixed(Autoscaler):
    """Keeps `replicas` replicas whatever the load: the fleet sized for its peak, the baseline of every comparison.

    A constant has no noise to damp, so bounds, tolerance and window are off unless given.

    >>> Fixed(replicas=3).policy(None, seed=1)(None).replicas
    3
    """

    replicas: int = Field(ge=0, description="Replicas to keep.")
    min_replicas: int = Field(default=0, ge=0, description="Fewest replicas ready or starting.")
    max_replicas: int | None = Field(default=None, ge=1, description="Most replicas at any instant; null = `replicas`.")
    scale_down_tolerance: float = Field(
        default=0.0, ge=0, lt=1, description="Shrinking by no more than this share is left undone (hysteresis)."
    )
    scale_down_stabilization_s: float = Field(
        default=0.0, ge=0, description="Shrink only to the highest number recommended within this last time."
    )

    @model_validator(mode="after")
    def _check_replicas(self) -> Self:
        self.check_within_bounds("replicas", self.replicas)
        return self

    @property
    def max_machines(self) -> int:
        """As many as are kept."""
        return max(1, self.replicas)

    def fewest_for(self, view: PoolView) -> int:
        """0: a number that never changes does not change for work either."""
        return 0

    def policy(self, known_rate: KnownRate | None, seed: int) -> Policy:
        """Returns a policy without memory."""
        return self._wanted

    def _wanted(self, view: PoolView) -> Wanted:
        return Wanted(self.replicas, f"fixed: {self.replicas}")
