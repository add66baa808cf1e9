"""`verify: true`: the plan's fleet simulated with several seeds, beside what the closed forms said of it."""

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from experiments.plans.confidence import Target, Verdict, judged, share_within, targets_of
from experiments.plans.fleets import Fleet
from experiments.plans.min_gpus import fewest
from experiments.plans.outcome import Outcome
from experiments.plans.trial import Ran, arrivals_of, separate, shared
from experiments.replications import interval
from planning.balance import mixed_at
from planning.pools import PoolPlan

AGREES = 0.05
"""Gap up to which a closed form counts as right: what a plan rounds up anyway."""

MOST = 8
"""How many times the planned instances the search for enough of them goes up to."""


Run = Callable[[int, dict[str, int]], Ran]
"""Seed and instances of each pool -> what became of the requests."""


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
        if math.isnan(self.gap):
            return "closed form says nothing" if math.isnan(self.closed_form) else ""
        if abs(self.gap) <= AGREES:
            return "agrees"
        return "closed form optimistic" if self.gap > 0 else "closed form pessimistic"


@dataclass(frozen=True)
class Verification:
    """What simulation says of the plan."""

    num_requests: int  # of one seed, mean
    num_refused: int  # of all seeds, because no instance could ever hold them
    num_preemptions: int  # of all seeds
    outside_share: float  # of the steps of the worst run, larger than any that a calibration was fitted on
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    shares: dict[Target, list[float]]  # of the planned fleet, by seed
    is_enough: Verdict  # for the planned fleet
    needed: dict[str, int | None]  # instances of each pool that simulation needs, the others as planned


def verified(outcome: Outcome) -> Verification:
    """Simulates the planned fleet, then looks for the fewest instances of each pool."""
    plan, fleet = outcome.plan, outcome.fleet
    arriving = {seed: arrivals_of(plan, outcome.traffic, seed) for seed in plan.trials.seeds}
    planned = {pool.role: pool.num_instances for pool in fleet.pools}

    def run(seed: int, numbers: dict[str, int]) -> Ran:
        if fleet.arrangement == "shared":
            return shared(arriving[seed], fleet.instance, numbers["shared"], plan.trials.router, seed)
        return separate(plan, fleet, arriving[seed], numbers["prefill"], numbers["decode"], seed)

    runs = {seed: run(seed, planned) for seed in plan.trials.seeds}
    targets = targets_of(plan.slo)
    needed = {pool.role: _needed(outcome, run, planned, pool, targets) for pool in fleet.pools}
    steps = [one for ran in runs.values() for one in ran.steps.values()]
    return Verification(
        num_requests=round(statistics.mean(map(len, arriving.values()))),
        num_refused=sum(one.num_refused for one in steps),
        num_preemptions=sum(one.num_preemptions for one in steps),
        outside_share=max(one.outside_share for one in steps),
        seeds=tuple(runs),
        rows=tuple(_rows(outcome, list(runs.values()), needed)),
        shares={target: [share_within(ran, target) for ran in runs.values()] for target in targets},
        is_enough=judged(runs.__getitem__, runs, targets, plan.trials.confidence),
        needed=needed,
    )


def _needed(outcome: Outcome, run: Run, planned: dict[str, int], pool: PoolPlan, targets: list[Target]) -> int | None:
    """The fewest instances of one pool, the other as planned; None where there is no such number, or no target for it."""
    minded = [one for one in targets if pool.role == "shared" or _is_of(one, pool.role)]
    if not minded:
        return None
    trials = outcome.plan.trials

    def is_enough(number: int) -> bool:
        numbers = planned | {pool.role: number}
        return judged(lambda seed: run(seed, numbers), trials.seeds, minded, trials.confidence).is_enough

    least = math.ceil(pool.num_instances * pool.utilization)
    return fewest(is_enough, least, pool.num_instances, MOST * pool.num_instances)


def _is_of(target: Target, role: str) -> bool:
    """TTFT is the prefill pool's, TPOT the decode pool's."""
    return target.metric == ("ttft_s" if role == "prefill" else "tpot_s")


def _rows(outcome: Outcome, runs: list[Ran], needed: dict[str, int | None]) -> Iterator[Row]:
    fleet, plan = outcome.fleet, outcome.plan
    closed = _closed_form(outcome)
    for name, limits in (("ttft_s", plan.slo.ttft_s), ("tpot_s", plan.slo.tpot_s)):
        for percentile in dict.fromkeys(["p50", *(limits or {})]):
            values = [_percentile(getattr(ran, name), percentile) for ran in runs]
            label = f"{name.removesuffix('_s').upper()} {percentile}, ms"
            yield _row(label, 1000 * closed.get(f"{name} {percentile}", math.nan), [1000 * value for value in values])
    if fleet.arrangement == "separate":
        yield _row("mean decode batch", closed["batch"], [ran.steps["decode"].mean_batch for ran in runs])
        steps_ms = [1000 * ran.steps["decode"].mean_step_s for ran in runs]
        yield _row("mean decode step, ms", 1000 * closed["step_s"], steps_ms)
        context = outcome.traffic.biased_context_tokens
        yield _row(f"the same at {context:,.0f} tokens each", 1000 * _decode_balance(fleet, context)[0], steps_ms)
    else:
        yield _row("mean batch", closed["batch"], [ran.steps["shared"].mean_batch for ran in runs])
        yield _row("mean step, ms", 1000 * closed["step_s"], [1000 * ran.steps["shared"].mean_step_s for ran in runs])
    for pool in fleet.pools:
        number = needed[pool.role]
        yield Row(f"{pool.role} instances", pool.num_instances, math.nan if number is None else number, math.nan)


def _closed_form(outcome: Outcome) -> dict[str, float]:
    """What the closed forms say of the planned fleet at the peak."""
    fleet, demand = outcome.fleet, outcome.traffic.peak
    if fleet.arrangement == "shared":
        each_per_s = demand.requests_per_s / fleet.pools[0].num_instances
        computed = max(1.0, demand.prompt_tokens - demand.cached_tokens)
        found = mixed_at(fleet.instance.engine, each_per_s, computed, demand.output_tokens)
        step_s, batch = (found.tpot_s, found.batch) if found else (math.nan, math.nan)
        return {"tpot_s p50": step_s, "step_s": step_s, "batch": batch}
    step_s, batch = _decode_balance(fleet, demand.context_tokens)
    closed = {"tpot_s p50": step_s, "step_s": step_s, "batch": batch}
    if outcome.ttft is not None:
        closed[f"ttft_s {outcome.ttft.percentile}"] = outcome.ttft.one_line_s
    return closed


def _decode_balance(fleet: Fleet, context_tokens: float) -> tuple[float, float]:
    """The step and the batch of a decode instance at the peak: batch = rate x step, by Little's law."""
    pool = fleet.pools[1]
    each_per_s = pool.load / pool.num_instances
    low, high = 0.0, float(fleet.layout.batch)
    for _ in range(40):
        middle = (low + high) / 2
        step_s = fleet.instance.step_s(max(1, round(middle)), context_tokens)
        low, high = (middle, high) if middle < each_per_s * step_s else (low, middle)
    return fleet.instance.step_s(max(1, round(high)), context_tokens), high


def _percentile(values: Any, percentile: str) -> float:
    """A percentile in which who was never served is infinitely late; NaN entries of one-token answers are left out."""
    found = values[np.isfinite(values)]
    return float(np.percentile(found, float(percentile[1:]))) if len(found) else math.nan


def _row(quantity: str, closed_form: float, values: list[float]) -> Row:
    mean, half_width = interval(values)
    return Row(quantity, closed_form, mean, half_width)
