"""An autoscaler of several pools, for the campaign: no such policy is built in."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field

from autoscalers import JointAutoscaler, JointPolicy, Wanted
from sim.views import LATENCIES, PoolView


class Level(JointAutoscaler):
    """The same number for every pool: by all requests in flight, and one more where any latency has grown."""

    requests_each: float = Field(default=10.0, gt=0, description="In flight for each replica of a pool.")

    @property
    def past_s(self) -> float:
        """Long enough for two scrapes."""
        return 3.0 * max(self.interval_s, self.scrape_interval_s)

    def policy(self, known_rates: Mapping[str, Callable[[float, float], float]] | None, seed: int) -> JointPolicy:
        """Returns a policy without memory."""
        return self._wanted

    def _wanted(self, views: Mapping[str, PoolView]) -> dict[str, Wanted]:
        in_flight = sum(sum(view.replicas.num_running) + view.num_waiting for view in views.values())
        number = in_flight / self.requests_each / len(views) + any(self._has_grown(view) for view in views.values())
        return dict.fromkeys(views, Wanted(number, f"{in_flight} in flight"))

    def _has_grown(self, view: PoolView) -> Any:
        half_s = self.past_s / 2
        return any(view.latency_s(name, 90, half_s) > view.latency_s(name, 90, self.past_s) for name in LATENCIES)
