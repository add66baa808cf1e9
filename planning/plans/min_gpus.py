"""`search: min_gpus`: the fewest replicas of each layout that meet the targets, by bisection over simulations."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from experiments.pages.figures import several
from planning.plans.confidence import Verdict, judged, targets_of
from planning.plans.config import Hardware, Plan
from planning.plans.demand import Traffic
from planning.plans.fleets import Fleet, base_case, candidates_of, option
from planning.plans.progress import SILENT, Progress
from planning.plans.trial import Arriving, Ran, arrivals_of, shared
from sim.errors import ConfigError

USUALLY_TRIED = 6
"""Numbers that a bisection looks at, for a guess of how long it takes."""

MOST = 64
"""How many times the closed form's number of replicas a search goes up to before it gives up."""


@dataclass(frozen=True)
class Candidate:
    """One layout: what the closed form says it takes, and what simulation says. Replicas are those at work, without spares."""

    fleet: Fleet  # by closed form
    least: int  # replicas below which the closed form sees no way: the mean load at all of their capacity
    tried: dict[int, Verdict] = field(default_factory=dict)
    num_replicas: int | None = None  # by simulation; None = pruned, or not met
    remark: str = ""

    @property
    def planned(self) -> int:
        """Replicas by closed form, headroom included."""
        return self.fleet.working["shared"]

    @property
    def why(self) -> str:
        """What decided."""
        return self.remark if self.num_replicas is None else self.tried[self.num_replicas].why

    @property
    def num_spare(self) -> int:
        """Replicas on top of either."""
        return self.fleet.pools[0].num_spare

    @property
    def num_gpus(self) -> int | None:
        """GPUs by simulation, spares included."""
        return None if self.num_replicas is None else (self.num_replicas + self.num_spare) * self.fleet.instance.num_gpus

    @property
    def dollars_per_hour(self) -> float:
        """Price by simulation; infinite without an answer."""
        return math.inf if self.num_gpus is None else self.num_gpus * self.fleet.hardware.price_per_gpu_hour


def search(plan: Plan, traffic: Traffic, progress: Progress = SILENT) -> list[Candidate]:
    """Returns every layout that can run, the cheapest answer first.

    All candidates see the same arrivals, seed by seed. Layouts are tried in the order of what the closed form says they cost,
    and one whose lower bound already costs as much as the best answer is not simulated at all.

    Raises:
        ConfigError: no request arrives with a seed, or none of the targets can be measured.
    """
    arriving = {seed: arrivals_of(plan, traffic, seed) for seed in plan.trials.seeds}
    mean_per_s = _mean_rate(arriving) * traffic.lengths.served_share
    fleets = sorted(_fleets(plan, traffic), key=lambda one: one.dollars_per_hour)
    progress.expect("search", USUALLY_TRIED * len(arriving), num_requests(arriving))  # most layouts are pruned
    best, found = math.inf, []
    for fleet in fleets:
        assert fleet.bound is not None
        least = max(1, math.ceil(mean_per_s / fleet.bound.requests_per_s))
        smallest = Candidate(fleet, least, num_replicas=least)
        if smallest.dollars_per_hour >= best:
            remark = f"pruned: {several(least, 'replica')} at least, ${smallest.dollars_per_hour:,.2f} an hour"
            found.append(Candidate(fleet, least, remark=remark))
            continue
        candidate = _searched(plan, fleet, least, arriving, progress)
        found.append(candidate)
        best = min(best, candidate.dollars_per_hour)
    return sorted(found, key=lambda one: one.dollars_per_hour)


def num_requests(arriving: dict[int, Arriving]) -> int:
    """Returns the requests of one seed, on average."""
    return round(sum(len(one.rows) for one in arriving.values()) / len(arriving))


def _fleets(plan: Plan, traffic: Traffic) -> list[Fleet]:
    """The shared pool of every layout of every GPU."""
    fleets = []
    for hardware in plan.hardware:
        fleets += [fleet for one in candidates_of(plan, hardware) if (fleet := _shared(plan, traffic, hardware, one))]
    return fleets


def _shared(plan: Plan, traffic: Traffic, hardware: Hardware, instance: Any) -> Fleet | None:
    return option(plan, hardware, base_case(plan, traffic), instance, ["shared"]).shared


def _mean_rate(arriving: dict[int, Arriving]) -> float:
    """The lowest mean rate of the seeds, in requests/s."""
    return min(len(one.rows) / max(float(one.rows["arrived_at_s"][-1]), 1e-9) for one in arriving.values())


def _searched(plan: Plan, fleet: Fleet, least: int, arriving: dict[int, Arriving], progress: Progress) -> Candidate:
    tried: dict[int, Verdict] = {}
    targets = targets_of(plan.slo)

    def is_enough(number: int) -> bool:
        def run(seed: int) -> Ran:
            with progress.one(f"{number} x {fleet.layout.name} {fleet.hardware.gpu.name}, seed {seed}"):
                return shared(arriving[seed], fleet.instance, number, plan.trials.router, seed)

        if number not in tried:
            tried[number] = judged(run, plan.trials.seeds, targets, plan.trials.confidence)
        if tried[number].is_enough is None:
            raise ConfigError(f"search: min_gpus: {tried[number].why}; give a target on ttft_s")
        return bool(tried[number].is_enough)

    number = fewest(is_enough, least, fleet.working["shared"], MOST * fleet.working["shared"])
    if number is None:
        return Candidate(fleet, least, tried, None, f"not met by {several(max(tried), 'replica')}: {tried[max(tried)].why}")
    remark = f"below the closed form's bound of {least}" if number < least else ""
    return Candidate(fleet, least, tried, number, remark)


def fewest(is_enough: Callable[[int], bool], least: int, guess: int, most: int) -> int | None:
    """Returns the smallest number that is enough, by bisection; None where `most` is not.

    More is taken to be better, so that what lies below a failure is not looked at. Both the answer and the number below it
    have been tried, also where the answer lies below `least`.

    Args:
        is_enough: asked once for each number that matters.
        least: where the answer is not expected to lie below.
        guess: tried first.
        most: where to give up.

    >>> asked = []
    >>> fewest(lambda n: asked.append(n) or n >= 21, least=10, guess=18, most=1000), asked
    (21, [18, 36, 27, 22, 20, 21])
    """
    low, high = least - 1, max(least, guess)
    while not is_enough(high):
        if high >= most:
            return None
        low, high = high, min(most, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    while high == least and high > 1 and is_enough(high - 1):  # the closed form was no bound
        least = high = high - 1
    return high
