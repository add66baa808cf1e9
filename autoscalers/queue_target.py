"""`queue_target`: enough replicas for the tokens the pool owes now."""

from pydantic import Field

from autoscalers.autoscaler import Autoscaler, KnownRate, Policy, Wanted
from autoscalers.sizing import replicas_for
from sim.views import PoolView


class QueueTarget(Autoscaler):
    """Sizes the pool so that its waiting and running tokens fill a target share of its capacity, plus a warm buffer.

    It reacts: a replica asked for now serves one cold start later, so on a rising load it is one cold start behind.
    Waiting tokens are part of the load, so the signal can exceed what the replicas hold and always leads them up.
    With `warm_buffer: 0` and `min_replicas: 0` an idle pool goes to zero.

        wanted = ceil((waiting_tokens + running_tokens) / target_utilization / replica_token_capacity) + warm_buffer

    Source: `desired_replicas` of the second text, with its defaults (there the bounds are 2 to 64).
    """

    target_utilization: float = Field(
        default=0.7, gt=0, le=1, description="Share of the capacity, 0 to 1, that the load should fill."
    )
    warm_buffer: int = Field(default=2, ge=0, description="Replicas on top, for what comes during a cold start.")
    replica_token_capacity: float | None = Field(
        default=None,
        gt=0,
        description="Waiting and running tokens that one replica holds within the targets; null = computed from its "
        "model and GPU.",
    )

    def policy(self, known_rate: KnownRate | None, seed: int) -> Policy:
        """Returns a policy without memory."""
        return self._wanted

    def _wanted(self, view: PoolView) -> Wanted:
        capacity = self.replica_token_capacity or view.replica_tokens
        load = view.waiting_tokens + view.running_tokens
        number = replicas_for(load, self.target_utilization * capacity) + self.warm_buffer
        reason = f"{load} tokens / ({self.target_utilization:g} x {capacity:g}) + {self.warm_buffer} = {number}"
        return Wanted(number, f"queue_target: {reason}")
