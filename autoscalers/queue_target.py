"""`queue_target`: enough replicas for the tokens the pool owes now."""

from pydantic import Field

from autoscalers.autoscaler import Autoscaler, KnownRate
from autoscalers.limits import Policy, Wanted
from autoscalers.sizing import NO_CAPACITY, replicas_for
from sim.views import PoolView


class QueueTarget(Autoscaler):
    """Sizes the pool so that its waiting and running tokens fill a target share of its capacity, plus a warm buffer.

    It reacts: a replica asked for now serves one cold start later, so on a rising load it is one cold start behind.
    Waiting tokens are part of the load, so the signal can exceed what the replicas hold and always leads them up.
    With `warm_buffer: 0` and `min_replicas: 0` an idle pool goes to zero.

        wanted = ceil((waiting_tokens + running_tokens) / target_utilization / replica_token_capacity) + warm_buffer

    What was asked for once is not asked for again: the queue that builds while replicas start is theirs to work off. Where
    that queue, and not what runs, asks for more, growth counts only what will still be owed when a replica asked for now could
    begin: the load less what the replicas ready and starting do in one cold start beyond the present arrivals, but not less
    than these arrivals keep in flight; and so on until the queue is gone. Nothing is called off for it. Where nothing waits, or
    replicas start at once, that is the formula above.

    Source: `desired_replicas` of docs/sources.md [2], with its defaults (there the bounds are 2 to 64). Departure: at every
    tick the text asks for all that is owed then, and so again and again for the queue of one cold start.
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
        """Returns a policy that remembers the last tick."""
        return Owed(self).wanted


class Owed:
    """What one pool owes, and how much of it those already asked for will have worked off in time."""

    def __init__(self, options: QueueTarget) -> None:
        self._options = options
        self._last: tuple[float, int] | None = None  # the last scrape, and the arrivals up to it
        self._rate_per_s: float | None = None  # of the arrivals before it
        self._works_off = False  # a queue that the replicas asked for are enough for

    def wanted(self, view: PoolView) -> Wanted:
        """Returns the replicas for the present load, or those there are and on their way where these are enough."""
        options = self._options
        capacity = options.replica_token_capacity or view.replica_tokens
        arrived_per_s = self._arrived_per_s(view)
        if capacity is None:
            return NO_CAPACITY
        load = view.waiting_tokens + view.running_tokens
        number = self._number(load, capacity)
        reason = f"{load} tokens / ({options.target_utilization:g} x {capacity:g}) + {options.warm_buffer} = {number}"
        num_asked = view.num_ready + view.num_starting
        is_queue = self._works_off or self._number(view.running_tokens, capacity) <= num_asked
        self._works_off = number > num_asked and is_queue
        if self._works_off and arrived_per_s is not None and view.replica_requests_per_s is not None:
            share_left = self._share_left(view, num_asked, arrived_per_s, view.replica_requests_per_s)
            in_flight = arrived_per_s / view.replica_requests_per_s * capacity  # tokens that the arrivals alone keep there
            left = max(load * share_left, in_flight)
            needed = max(num_asked, self._number(left, capacity))
            if needed < number:
                number, reason = needed, f"{reason}, but {left:.0f} one cold start from now: {needed}"
        return Wanted(number, f"queue_target: {reason}")

    def _number(self, load: float, capacity: float) -> int:
        return replicas_for(load, self._options.target_utilization * capacity) + self._options.warm_buffer

    def _arrived_per_s(self, view: PoolView) -> float | None:
        """Returns the arrival rate between the last two scrapes; None at the first."""
        if self._last is not None and view.scraped_at_s > self._last[0]:
            self._rate_per_s = (view.num_arrived - self._last[1]) / (view.scraped_at_s - self._last[0])
        self._last = (view.scraped_at_s, view.num_arrived)
        return self._rate_per_s

    def _share_left(self, view: PoolView, num_replicas: int, arrived_per_s: float, each_per_s: float) -> float:
        """Returns the share of what is owed that these replicas, ready or starting, leave undone in one cold start."""
        num_owed = view.num_waiting + view.num_running
        gained_per_s = num_replicas * self._options.target_utilization * each_per_s - arrived_per_s
        return max(0.0, 1 - max(0.0, gained_per_s) * view.cold_start_s / num_owed) if num_owed > 0 else 1.0
