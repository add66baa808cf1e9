"""The limits around whatever a policy answers."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from sim.params import Params
from sim.views import PoolView

MAX_MACHINES = 1024
"""Room made for a pool that has no bound of its own; a bound above it is honoured."""


class Wanted(NamedTuple):
    """A policy's raw answer: replicas ready or starting (draining ones never count), before any limit."""

    replicas: float
    reason: str = ""


Policy = Callable[[PoolView], Wanted]
"""The whole of a policy: what it is shown at a tick -> what it wants. It may keep a memory, of bounded size."""

JointPolicy = Callable[[Mapping[str, PoolView]], Mapping[str, Wanted]]
"""A policy for several pools: what it is shown of each, by the pools' names -> what it wants of each."""


class Limits(Params):
    """The limits that every pool has, whoever decides for it."""

    min_replicas: int = Field(
        default=1,
        ge=0,
        description="Fewest replicas ready or starting; 0 allows an idle pool to go to zero. One that owes work keeps a "
        "replica, ready or starting, until it is done.",
    )
    max_replicas: int | None = Field(
        default=64,
        ge=1,
        description="Most replicas at any instant, ready, starting and still draining ones together; null = 1,024. "
        "Where draining ones leave less than min_replicas, min_replicas holds.",
    )
    initial_replicas: int | None = Field(
        default=None, ge=0, description="The first decision, at the start; null = the policy's own answer, in bounds."
    )
    scale_up_tolerance: float = Field(
        default=0.0, ge=0, lt=1, description="Growth by no more than this share of the replicas is left undone."
    )
    scale_down_tolerance: float = Field(
        default=0.1, ge=0, lt=1, description="Shrinking by no more than this share is left undone (hysteresis)."
    )
    scale_up_stabilization_s: float = Field(
        default=0.0, ge=0, description="Grow only to the lowest number recommended within this last time."
    )
    scale_down_stabilization_s: float = Field(
        default=300.0,
        ge=0,
        description="Shrink only to the highest number recommended within this last time (Kubernetes' rule and "
        "default; a window over recommendations, not a cool-down).",
    )
    scale_up_cooldown_s: float = Field(default=0.0, ge=0, description="No growth so soon after the last growth.")
    scale_down_cooldown_s: float = Field(
        default=0.0, ge=0, description="No shrinking so soon after the last change in either direction."
    )
    max_step_up: int | None = Field(default=None, ge=1, description="Most replicas added by one decision; null = any.")
    max_step_down: int | None = Field(
        default=None, ge=1, description="Most replicas removed by one decision; null = any number."
    )

    @property
    @abstractmethod
    def decided_with(self) -> str | None:
        """The pool whose autoscaler decides for this pool too; None = its own does."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.max_replicas is not None and self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} is above max_replicas {self.max_replicas}")
        if self.initial_replicas is not None:
            self.check_within_bounds("initial_replicas", self.initial_replicas)
        return self

    def check_within_bounds(self, name: str, number: int) -> None:
        """Raises ValueError, for a validator, when `number` (spelled `name` in YAML) lies outside the bounds."""
        if number != self.bounded(number):
            most = "no bound" if self.max_replicas is None else str(self.max_replicas)
            raise ValueError(
                f"{name} {number} lies outside min_replicas {self.min_replicas} to max_replicas {most}; "
                "the bounds would silently change it"
            )

    def bounded(self, number: int) -> int:
        """Returns the number nearest to `number` that the bounds allow, with nothing draining."""
        most = number if self.max_replicas is None else min(number, self.max_replicas)
        return max(self.min_replicas, most)

    def fewest_for(self, view: PoolView) -> int:
        """Returns 1 while the pool owes work, else 0: no policy may cancel the machine that a request waits for."""
        return 1 if view.num_waiting + view.num_running > 0 else 0

    @property
    def max_machines(self) -> int:
        """The most machines that can exist at one time: what the simulation makes room for."""
        return MAX_MACHINES if self.max_replicas is None else self.max_replicas
