"""`verify: true`: a fleet simulated with several seeds, beside what the closed forms say of it, and what it takes instead."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from experiments.replications import interval
from planning.balance import mixed_at
from planning.plans.confidence import Target, Verdict, judged, share_within, targets_of
from planning.plans.config import Plan
from planning.plans.demand import Traffic
from planning.plans.fleets import Fleet
from planning.plans.min_gpus import USUALLY_TRIED, fewest, num_requests
from planning.plans.progress import SILENT, Progress
from planning.plans.sizes import at_size
from planning.plans.trial import Ran, arrivals_of, separate, shared
from planning.plans.ttft import check
from sim.errors import ConfigError
from sim.metrics import between, percentile_ranks

AGREES = 0.05
"""Gap up to which a closed form counts as right: what a plan rounds up anyway."""

CACHED = "prompt tokens cached, %"
"""The one quantity of which more is better."""

MOST = 8
"""How many times the planned instances the search for enough of them goes up to."""


class Row(NamedTuple):
    """One quantity twice; NaN where one side does not say."""

    quantity: str
    closed_form: float
    simulated: float  # mean over the seeds
    half_width: float  # of its 95 % confidence interval

    @property
    def gap(self) -> float:
        """Simulated over closed form, less 1."""
        return self.simulated / self.closed_form - 1

    @property
    def verdict(self) -> str:
        """Which way the closed form was wrong, if it was."""
        if math.isnan(self.simulated):
            return "not measurable"
        if math.isnan(self.gap):
            return "closed form says nothing"
        if abs(self.gap) <= AGREES:
            return "agrees"
        is_less_of_good = self.quantity == CACHED and self.gap < 0
        return "closed form optimistic" if self.gap > 0 or is_less_of_good else "closed form pessimistic"


@dataclass(frozen=True)
class Verification:
    """What simulation says of a fleet. Instances are those at work, without spares."""

    fleet: Fleet  # that was to be checked
    is_enough: Verdict  # for it
    needed: dict[str, int | None]  # fewest of each pool, the others as settled; None = not to be met, or no target of its own
    settled: dict[str, int] | None  # the fleet's instances, and more where it needs more; None = the targets cannot be met
    num_requests: int  # of one seed, mean
    num_refused: int  # of all seeds, because no instance could ever hold them
    num_preemptions: int  # of all seeds
    outside_share: float  # of the steps of the worst run, larger than any that a calibration was fitted on
    rows: tuple[Row, ...]  # of the settled fleet; of the one to be checked where there is none
    shares: dict[Target, list[float]]  # of the same, by seed

    @property
    def enough(self) -> Fleet | None:
        """The fleet that is enough: the checked one as it is, a larger one where it must be, or none."""
        if self.settled is None:
            return None
        return self.fleet if self.settled == self.fleet.working else at_size(self.fleet, self.settled)


def verified(plan: Plan, traffic: Traffic, fleet: Fleet, progress: Progress = SILENT) -> Verification:
    """Simulates a fleet, then looks for the fewest instances of each pool, one after the other, unless a search has.

    Raises:
        ConfigError: the simulated engine does not know such instances, or no request arrives with a seed.
    """
    if not fleet.instance.is_simulated:
        raise ConfigError(
            f"verify: the simulated engine has no pipelines nor groups that share experts; the plan is {fleet.layout.name}"
        )
    trials, targets = plan.trials, targets_of(plan.slo)
    arriving = {seed: arrivals_of(plan, traffic, seed) for seed in trials.seeds}
    progress.expect("verify", len(fleet.pools) * USUALLY_TRIED * len(arriving), num_requests(arriving))

    @lru_cache(len(trials.seeds))  # the latest sizes; those of all would not fit in memory
    def ran(seed: int, sizes: tuple[int, ...]) -> Ran:
        working = dict(zip(fleet.working, sizes, strict=True))
        with progress.one(f"{' + '.join(map(str, sizes))} x {fleet.layout.name} {fleet.hardware.gpu.name}, seed {seed}"):
            if fleet.arrangement == "shared":
                return shared(arriving[seed], fleet.instance, working["shared"], trials.router, seed)
            return separate(plan, fleet, arriving[seed], working, seed)

    def judge(working: dict[str, int], minded: list[Target]) -> Verdict:
        return judged(lambda seed: ran(seed, tuple(working.values())), trials.seeds, minded, trials.confidence)

    is_enough = judge(fleet.working, targets)
    needed: dict[str, int | None] = dict(fleet.working)
    settled: dict[str, int] | None = fleet.working
    if fleet.closed_form is None:
        needed, settled = _needed(fleet, judge, targets)
    runs = [ran(seed, tuple((settled or fleet.working).values())) for seed in trials.seeds]
    steps = [one for run in runs for one in run.steps.values()]
    return Verification(
        fleet=fleet,
        is_enough=is_enough,
        needed=needed,
        settled=settled,
        num_requests=num_requests(arriving),
        num_refused=sum(one.num_refused for one in steps),
        num_preemptions=sum(one.num_preemptions for one in steps),
        outside_share=max(one.outside_share for one in steps),
        rows=tuple(_rows(plan, traffic, fleet, settled or fleet.working, runs, needed)),
        shares={target: [share_within(run, target) for run in runs] for target in targets},
    )


def _needed(
    fleet: Fleet, judge: Callable[[dict[str, int], list[Target]], Verdict], targets: list[Target]
) -> tuple[dict[str, int | None], dict[str, int] | None]:
    """The fewest instances of each pool by themselves, and what the fleet becomes where its own are too few.

    Prefill first, which nothing that decode does can delay.
    """
    needed: dict[str, int | None] = {}
    settled, is_met = fleet.working, True
    for pool in fleet.pools:
        minded = [one for one in targets if pool.role == "shared" or _is_of(one, pool.role)]
        planned = settled[pool.role]
        if judge(settled, minded).is_enough is None:
            needed[pool.role] = None
            continue

        others = dict(settled)

        def is_enough(number: int, role: str = pool.role, others: dict[str, int] = others, of: list[Target] = minded) -> bool:
            return bool(judge(others | {role: number}, of).is_enough)

        least = math.ceil(pool.load / pool.capacity)
        found = needed[pool.role] = fewest(is_enough, least, planned, MOST * planned)
        is_met = is_met and found is not None
        settled = settled | {pool.role: max(planned, found or 0)}
    return needed, settled if is_met else None


def _is_of(target: Target, role: str) -> bool:
    """TTFT is the prefill pool's, TPOT the decode pool's."""
    return target.metric == ("ttft_s" if role == "prefill" else "tpot_s")


def _rows(
    plan: Plan, traffic: Traffic, fleet: Fleet, working: dict[str, int], runs: list[Ran], needed: dict[str, int | None]
) -> Iterator[Row]:
    closed = _closed_form(plan, traffic, fleet, working)
    for name, limits in (("ttft_s", plan.slo.ttft_s), ("tpot_s", plan.slo.tpot_s)):
        for percentile in dict.fromkeys(["p50", *(limits or {})]):
            values = [_percentile(run.values(name), percentile) for run in runs]
            label = f"{name.removesuffix('_s').upper()} {percentile}, ms"
            yield _row(label, 1000 * closed.get(f"{name} {percentile}", math.nan), [1000 * value for value in values])
    if traffic.uses_own_share:
        first = fleet.pools[0].role
        shares = [100 * run.steps[first].cached_share for run in runs]
        yield _row(CACHED, 100 * traffic.peak.cached_share, shares)
    role = fleet.pools[-1].role
    if role != "prefill" and all(role in run.steps for run in runs):
        name = "decode " if role == "decode" else ""
        steps_ms = [1000 * run.steps[role].mean_step_s for run in runs]
        yield _row(f"mean {name}batch", closed.get("batch", math.nan), [run.steps[role].mean_batch for run in runs])
        yield _row(f"mean {name}step, ms", 1000 * closed.get("step_s", math.nan), steps_ms)
        if role == "decode":
            context = traffic.biased_context_tokens
            balanced_s, _ = _decode_balance(fleet, working["decode"], context)
            yield _row(f"the same at {context:,.0f} tokens each", 1000 * balanced_s, steps_ms)
    for pool in fleet.pools:
        number = needed[pool.role]
        planned = (fleet.closed_form or fleet).working[pool.role]
        yield Row(f"{pool.role} instances", planned, math.nan if number is None else number, math.nan)


def _closed_form(plan: Plan, traffic: Traffic, fleet: Fleet, working: dict[str, int]) -> dict[str, float]:
    """What the closed forms say of a fleet with these instances at the peak."""
    demand = traffic.peak
    if fleet.arrangement == "shared":
        each_per_s = demand.requests_per_s / working["shared"]
        computed = max(1.0, demand.prompt_tokens - demand.cached_tokens)
        found = mixed_at(fleet.instance.engine, each_per_s, computed, demand.output_tokens)
        if found is None:
            return {}
        closed = {"tpot_s p50": found.tpot_s}  # below one answer under way it is idle at times, and steps are what they are
        return closed | {"step_s": found.tpot_s, "batch": found.batch} if found.batch >= 1 else closed
    closed = {}
    if "decode" in working:
        step_s, batch = _decode_balance(fleet, working["decode"], demand.context_tokens)
        closed = {"tpot_s p50": step_s, "step_s": step_s, "batch": batch}
    queue = check(plan, traffic, at_size(fleet.closed_form or fleet, working))
    if queue is not None:
        closed[f"ttft_s {queue.percentile}"] = queue.one_line_s
    return closed


def _decode_balance(fleet: Fleet, working: int, context_tokens: float) -> tuple[float, float]:
    """The step and the batch of a decode instance at the peak: batch = rate x step, by Little's law."""
    each_per_s = fleet.pools[1].load / working
    low, high = 0.0, float(fleet.layout.batch)
    for _ in range(40):
        middle = (low + high) / 2
        step_s = fleet.instance.step_s(max(1, round(middle)), context_tokens)
        low, high = (middle, high) if middle < each_per_s * step_s else (low, middle)
    return fleet.instance.step_s(max(1, round(high)), context_tokens), high


def _percentile(values: Any, percentile: str) -> float:
    """The percentile of values that are infinite where a request was never served; NaN without any."""
    if not len(values):
        return math.nan
    low, high, weight = (one[0] for one in percentile_ranks(len(values), [float(percentile[1:])]))
    ordered = np.sort(values)
    above = ordered[high] if weight > 0 else ordered[low]
    return math.inf if math.isinf(above) else float(between(ordered[low], above, weight))


def _row(quantity: str, closed_form: float, values: list[float]) -> Row:
    """A mean that is infinite, or of nothing, has no interval."""
    if not all(map(math.isfinite, values)):
        return Row(quantity, closed_form, max(values) if math.inf in values else math.nan, math.nan)
    mean, half_width = interval(values)
    return Row(quantity, closed_form, mean, half_width)
