"""How many instances a demand takes: prefill by arithmetic, decode by memory, both with slack; and after one is lost."""

import math
from dataclasses import dataclass, replace

from planning.balance import Mixed
from planning.instance import Instance
from planning.layouts import Layout
from sim.checks import check_not_negative, check_positive, check_share, check_whole
from sim.queueing import num_in_system


def cached_tokens(prompt_tokens: float, cached_share: float) -> float:
    """Returns what of a prompt need not be computed: its share in the cache, and never its last token.

    >>> cached_tokens(2000, 0.5), cached_tokens(4, 0.9), cached_tokens(1, 0.9)
    (1000.0, 3.0, 0.0)
    """
    return min(prompt_tokens * cached_share, max(0.0, math.floor(prompt_tokens) - 1.0))


@dataclass(frozen=True)
class Demand:
    """What arrives at the peak, in means."""

    requests_per_s: float
    prompt_tokens: float
    output_tokens: float
    cached_share: float = 0.0  # of each prompt, its beginning, that lies in a prefix cache

    def __post_init__(self) -> None:
        check_positive("requests_per_s", self.requests_per_s)
        check_positive("prompt_tokens", self.prompt_tokens)
        check_positive("output_tokens", self.output_tokens)
        if not 0 <= self.cached_share < 1:
            raise ValueError(f"cached_share must lie in [0, 1), got {self.cached_share!r}")

    @property
    def cached_tokens(self) -> float:
        """Of a prompt, what need not be computed."""
        return cached_tokens(self.prompt_tokens, self.cached_share)

    @property
    def has_decodes(self) -> bool:
        """Whether there are tokens after the first of an answer, which prefill makes; without them nothing has a TPOT."""
        return self.output_tokens > 1

    @property
    def context_tokens(self) -> float:
        """Mean context of a decode: the prompt and half the answer."""
        return self.prompt_tokens + self.output_tokens / 2


@dataclass(frozen=True)
class PoolPlan:
    """Instances of one kind for one phase of the work."""

    role: str  # prefill, decode or shared
    num_instances: int
    gpus_per_instance: int
    load: float  # asked of the pool: tokens/s, or requests/s when shared
    capacity: float  # of one instance, in the same unit
    binding: str
    num_spare: int = 0  # of the instances, how many may fail

    @property
    def num_gpus(self) -> int:
        """GPUs of the pool."""
        return self.num_instances * self.gpus_per_instance

    @property
    def utilization(self) -> float:
        """Share of the pool's capacity that the load takes, with all instances at work."""
        return self.load / self.capacity / self.num_instances

    def utilization_without(self, num_lost: int = 1) -> float:
        """Returns the share that the load takes of what is left; above 1, or infinite, is a pool that falls behind."""
        left = self.num_instances - num_lost
        return self.load / self.capacity / left if left > 0 else math.inf

    def derated(self, share: float, max_utilization: float) -> "PoolPlan":
        """Returns the same pool sized for instances that reach only `share` of their capacity."""
        check_share("share", share)
        capacity = self.capacity * share
        needed = num_instances(self.load, capacity, max_utilization) + self.num_spare
        return replace(self, num_instances=needed, capacity=capacity)


def num_instances(load: float, capacity: float, max_utilization: float) -> int:
    """Returns the fewest instances that carry `load` at no more than `max_utilization` of their capacity.

    >>> num_instances(400_000, 4 * 6877, 0.8), num_instances(79_800, 4 * 2893, 0.8)
    (19, 9)

    Raises:
        ValueError: a number is out of range.
    """
    check_not_negative("load", load)
    check_positive("capacity", capacity)
    check_share("max_utilization", max_utilization)
    return max(1, math.ceil(load / (max_utilization * capacity) * (1 - 1e-12)))


def prefill_pool(instance: Instance, demand: Demand, max_utilization: float, num_spare: int = 0) -> PoolPlan:
    """Returns the prefill pool: the prompt tokens that are not cached, over an instance's prefill rate.

    Source: docs/sources.md [1], From traffic to GPUs, step 1.

    Raises:
        ValueError: a number is out of range, or the model does not fit.
    """
    check_whole("num_spare", num_spare, 0)
    load = demand.requests_per_s * (demand.prompt_tokens - demand.cached_tokens)
    capacity = instance.prefill_tokens_per_s(demand.prompt_tokens, demand.cached_tokens)
    number = num_instances(load, capacity, max_utilization) + num_spare
    return PoolPlan("prefill", number, instance.num_gpus, load, capacity, "arithmetic", num_spare)


def decode_pool(chosen: Layout, demand: Demand, max_utilization: float, num_spare: int = 0) -> PoolPlan:
    """Returns the decode pool: every output token but the first, over a full layout's rate.

    Source: docs/sources.md [1], From traffic to GPUs, step 2. Little's law gives the same from the other side.

    Raises:
        ValueError: a number is out of range, the layout cannot run, or answers have one token, which prefill makes.
    """
    check_whole("num_spare", num_spare, 0)
    if chosen.problem:
        raise ValueError(f"{chosen.name} on {chosen.gpu} cannot run: {chosen.problem}")
    if not demand.has_decodes:
        raise ValueError("answers of one token have no decode pool")
    load = demand.requests_per_s * (demand.output_tokens - 1)
    number = num_instances(load, chosen.tokens_per_s, max_utilization) + num_spare
    return PoolPlan("decode", number, chosen.num_gpus, load, chosen.tokens_per_s, chosen.binding, num_spare)


def shared_pool(instance: Instance, found: Mixed, demand: Demand, max_utilization: float, num_spare: int = 0) -> PoolPlan:
    """Returns the pool whose instances do both, with chunked prefill: requests/s over `planning.balance.mixed_capacity`.

    Raises:
        ValueError: a number is out of range.
    """
    check_whole("num_spare", num_spare, 0)
    number = num_instances(demand.requests_per_s, found.requests_per_s, max_utilization) + num_spare
    load, per_instance = demand.requests_per_s, found.requests_per_s
    return PoolPlan("shared", number, instance.num_gpus, load, per_instance, found.binding, num_spare)


def fleet_size(
    arrivals_per_s: float, sojourn_s: float, requests_per_s: float, max_utilization: float, num_concurrent: int
) -> tuple[int, str]:
    """Returns the replicas of a fleet whose replicas are known by two numbers, and which of the two binds.

    Args:
        arrivals_per_s: at the peak.
        sojourn_s: mean time of a request in the system.
        requests_per_s: that one replica sustains.
        max_utilization: share of it to plan with; memory is counted full, as in the source.
        num_concurrent: sequences that one replica's KV cache holds.

    Source: docs/sources.md [2], exercises 4 and 5.

    >>> fleet_size(40, 20, 12.5, 0.7, 57)
    (15, 'memory-bound')

    Raises:
        ValueError: a number is out of range.
    """
    check_whole("num_concurrent", num_concurrent)
    by_throughput = num_instances(arrivals_per_s, requests_per_s, max_utilization)
    by_memory = num_instances(num_in_system(arrivals_per_s, sojourn_s), num_concurrent, 1.0)
    return (by_memory, "memory-bound") if by_memory >= by_throughput else (by_throughput, "throughput-bound")
