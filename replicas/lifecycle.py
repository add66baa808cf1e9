"""How long a machine takes from being asked for to serving, and how it goes."""

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from sim.params import Params


class Spread(Params):
    """A time that varies from machine to machine: lognormal, so never negative."""

    mean_s: float = Field(gt=0, description="Its mean.")
    std_s: float = Field(ge=0, description="Its standard deviation.")

    def draw(self, rng: np.random.Generator) -> float:
        """Returns one time in seconds."""
        variance = np.log1p((self.std_s / self.mean_s) ** 2)
        return float(rng.lognormal(np.log(self.mean_s) - variance / 2, np.sqrt(variance)))


Duration = Annotated[float, Field(ge=0)] | Spread


class Lifecycle(Params):
    """The stages of a cold start, each a fixed time or a spread, and the rules of a drain."""

    provision_s: Duration = Field(default=60.0, description="Until a machine is there. Assumption: a warm node pool.")
    image_s: Duration = Field(default=30.0, description="Pulling the engine's image. Assumption.")
    weights_gb_per_s: float = Field(
        default=2.0, gt=0, description="Rate at which weights load. Source: docs/sources.md [1], Autoscaling."
    )
    start_s: Duration = Field(default=25.0, description="Starting the engine. Assumption.")
    capture_s: Duration = Field(default=15.0, description="Compiling and capturing CUDA graphs. Assumption.")
    warm_start: bool = Field(default=True, description="Whether the first replicas are ready at the start or pay a cold start.")
    drain_timeout_s: float = Field(default=600.0, ge=0, description="How long a draining replica may finish what it runs.")
    on_drain_timeout: Literal["requeue", "fail"] = Field(
        default="requeue",
        description="What becomes of the rest: back to the router, keeping the tokens sent so far, or failed and counted.",
    )
    mean_time_to_failure_s: float | None = Field(
        default=None,
        gt=0,
        description="Ready machines fail, each after an exponential time of this mean, and are gone at once; the autoscaler's "
        "next look replaces them. null = never. Assumption: as likely at any age.",
    )
    on_failure: Literal["requeue", "fail"] = Field(
        default="requeue", description="What becomes of a failed machine's requests, as on_drain_timeout."
    )

    def stages(self, weight_bytes: float, rng: np.random.Generator) -> list[tuple[str, float]]:
        """Returns the stages of one cold start: the column of replicas.parquet that its end fills, and its seconds."""
        return [
            ("provisioned_at_s", _draw(self.provision_s, rng)),
            ("image_pulled_at_s", _draw(self.image_s, rng)),
            ("weights_loaded_at_s", self.weights_s(weight_bytes)),
            ("started_at_s", _draw(self.start_s, rng)),
            ("ready_at_s", _draw(self.capture_s, rng)),
        ]

    def time_to_failure_s(self, rng: np.random.Generator) -> Callable[[], float] | None:
        """Returns what draws for a machine how long it serves before it fails; None where none fails."""
        mean_s = self.mean_time_to_failure_s
        return None if mean_s is None else lambda: float(rng.exponential(mean_s))

    def weights_s(self, weight_bytes: float) -> float:
        """Returns how long the weights load.

        >>> round(Lifecycle().weights_s(70.6e9), 1)
        35.3
        """
        return weight_bytes / (self.weights_gb_per_s * 1e9)

    def cold_start_s(self, weight_bytes: float) -> float:
        """Returns the expected time from asking for a machine to its serving."""
        spreads = (self.provision_s, self.image_s, self.start_s, self.capture_s)
        return sum(s.mean_s if isinstance(s, Spread) else s for s in spreads) + self.weights_s(weight_bytes)


def _draw(duration: Duration, rng: np.random.Generator) -> float:
    return duration.draw(rng) if isinstance(duration, Spread) else duration
