"""Whether a prefill pool answers in time: its queue, simulated with the traffic's own prompts, routed worst and best."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planning.kv import kv_transfer_s
from planning.plans.config import Plan
from planning.plans.demand import Traffic
from planning.plans.fleets import Fleet
from planning.pools import cached_tokens
from planning.queue_paths import waits_at_random_s, waits_in_one_line_s
from sim.metrics import percentiles
from sim.queueing import mg1
from sim.randomness import stream

MOST_EXTRA = 3
"""How many times the planned instances the search for enough of them goes up to."""

_GRID = 64  # prompt lengths whose prefill is computed; between them it is all but linear


@dataclass(frozen=True)
class TtftCheck:
    """TTFT of a prefill pool at the peak, in seconds: routed at random, and as if all instances shared one line."""

    num_instances: int  # at work, without spares
    percentile: str
    limit_s: float
    prefill_s: float  # of the mean prompt
    transfer_s: float  # of its cache to a decode instance; no part of TTFT, the first token is prefill's
    mean_wait_s: float  # by Pollaczek and Khinchine, routed at random
    random_s: float  # the percentile
    one_line_s: float
    less_one_s: float  # in one line, with one instance lost of all, spares included
    num_for_random: int | None  # instances that random routing would need; None = more than MOST_EXTRA times as many
    num_for_one_line: int | None

    @property
    def is_met(self) -> str:
        """Which routing keeps the target: any, or only one as good as a shared line, or none."""
        if self.random_s <= self.limit_s:
            return "with any routing"
        return "only with good routing" if self.one_line_s <= self.limit_s else "no"


def check(plan: Plan, traffic: Traffic, fleet: Fleet) -> TtftCheck | None:
    """Returns the check of a fleet with separate pools; None where there is no TTFT target.

    Poisson arrivals at the peak's rate. One prompt at a time on each instance: real engines batch several, which changes
    nothing at a rate set by arithmetic.
    """
    targets = plan.slo.ttft_s or {}
    if fleet.arrangement != "separate" or not targets:
        return None
    percentile = max(targets, key=lambda name: float(name[1:]))
    pool, demand = fleet.pools[0], traffic.peak
    services_s = _services_s(fleet, traffic)
    gaps_s = stream(plan.seed, "plan.arrivals").exponential(1 / demand.requests_per_s, len(services_s))
    percent = float(percentile[1:])
    queue = _Queue(plan.seed, gaps_s, services_s, percent)
    scv = float(services_s.var() / services_s.mean() ** 2)
    working = pool.num_instances - pool.num_spare
    rate_per_s = demand.requests_per_s / working
    random_s, one_line_s = queue.at_random_s(working), queue.in_one_line_s(working)
    is_stable = rate_per_s * services_s.mean() < 1
    return TtftCheck(
        num_instances=working,
        percentile=percentile,
        limit_s=targets[percentile],
        prefill_s=fleet.prefill.prefill_s(demand.prompt_tokens, demand.cached_tokens),
        transfer_s=kv_transfer_s(demand.prompt_tokens, fleet.instance.kv_bytes_per_token, plan.kv_bytes_per_s),
        mean_wait_s=mg1(rate_per_s, float(services_s.mean()), scv).wait_s if is_stable else np.inf,
        random_s=random_s,
        one_line_s=one_line_s,
        less_one_s=queue.in_one_line_s(pool.num_instances - 1) if pool.num_instances > 1 else np.inf,
        num_for_random=_fewest(queue.at_random_s, working, random_s, targets[percentile]),
        num_for_one_line=_fewest(queue.in_one_line_s, working, one_line_s, targets[percentile]),
    )


@dataclass(frozen=True)
class _Queue:
    """The same arrivals and services for any number of instances."""

    seed: int
    gaps_s: NDArray[np.float64]
    services_s: NDArray[np.float64]
    percent: float

    def at_random_s(self, num_instances: int) -> float:
        waits = waits_at_random_s(self.gaps_s, self.services_s, num_instances, stream(self.seed, "plan.routing"))
        return self._percentile(waits)

    def in_one_line_s(self, num_instances: int) -> float:
        return self._percentile(waits_in_one_line_s(self.gaps_s, self.services_s, num_instances))

    def _percentile(self, waits_s: Any) -> float:
        _, found = percentiles(waits_s + self.services_s, [self.percent])
        return float(found[0])


def _fewest(ttft_s: Any, planned: int, planned_s: float, limit_s: float) -> int | None:
    """The fewest instances from `planned` up whose TTFT is within the limit; TTFT falls as instances are added."""
    low, high = planned, planned * MOST_EXTRA
    if planned_s <= limit_s:
        return low
    if ttft_s(high) > limit_s:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if ttft_s(middle) > limit_s else (low, middle)
    return high


def _services_s(fleet: Fleet, traffic: Traffic) -> NDArray[np.float64]:
    """The prefill time of each sampled prompt, by interpolation between a grid of lengths."""
    share = traffic.peak.cached_share
    longest = int(traffic.prompts.max())
    grid = np.unique(np.geomspace(1, max(longest, 2), _GRID).round().astype(np.int64))
    seconds = [fleet.prefill.prefill_s(prompt, cached_tokens(prompt, share)) for prompt in grid.tolist()]
    found: NDArray[np.float64] = np.interp(traffic.prompts, grid, seconds)
    return found
