"""Runs a fixed number of replicas on given arrivals: what a plan is tried with, without a control plane."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from experiments.settings.router import Router
from planning.instance import Instance
from planning.kv import kv_transfer_s
from planning.layouts import Layout
from planning.plans.config import Plan
from planning.plans.demand import Traffic
from planning.plans.fleets import Fleet
from replicas.plane import DataPlane
from replicas.step_time import measured_s
from sim.errors import ConfigError
from sim.invariants import Audit, check
from sim.metrics import NUM_ITL_BINS, tpot_s, ttft_s
from sim.records import ARRIVAL, ENDED, ENGINE, NEEDS_ARRIVALS, REJECTED, REQUEST, records
from sim.step_terms import TERMS
from sim.window import NO_SEGMENTS

CHUNK_ROWS = 1 << 15
MAX_DRAIN_S = 600.0
"""After the last arrival; who has not finished by then has missed its targets long since."""


@dataclass(frozen=True)
class Ran:
    """What became of the requests of one trial, (n,) each in order of arrival; NaN = never."""

    ttft_s: Any
    tpot_s: Any  # NaN for one-token answers too
    num_output_tokens: Any
    steps: dict[str, "Steps"]  # by pool

    def values(self, metric: str) -> Any:
        """Returns a metric of all requests that could have one, (m,) seconds: who was never served is infinitely late."""
        has_one = self.num_output_tokens > (1 if metric == "tpot_s" else 0)
        values = getattr(self, metric)[has_one]
        return np.where(np.isnan(values), np.inf, values)


@dataclass(frozen=True)
class Steps:
    """What a pool's engines did, all together."""

    busy_share: float  # of the time up to the last arrival
    mean_step_s: float
    mean_batch: float  # tokens of running answers in a step
    num_preemptions: int
    num_refused: int  # requests that no replica could ever hold
    cached_share: float  # of the prompt tokens, found in a prefix cache
    outside_share: float  # of the steps, larger than any that a calibration was fitted on


class Arriving(NamedTuple):
    """The requests of one trial."""

    rows: Any  # (n,) ARRIVAL, times from 0
    segments: Any = NO_SEGMENTS  # (m,) SEGMENT: those of the first row, then those of the second, and so on


def arrivals_of(plan: Plan, traffic: Traffic, seed: int) -> Arriving:
    """Returns the requests of one seed: `trials.duration_s` around the peak, or all traffic. With `traffic.limit`, the first.

    What they share comes along where the plan counts on it; otherwise `cached_share` is taken off each prompt.

    Raises:
        ConfigError: none arrives with this seed.
    """
    start_s, end_s = _window(plan, traffic)
    chunks, segments = [], []
    stream = plan.traffic.stream(seed)
    for rows in stream.chunks():
        inside = rows[(rows["arrived_at_s"] >= start_s) & (rows["arrived_at_s"] < end_s)]
        chunks.append(inside)
        if traffic.uses_own_share:
            segments.append(stream.segments_of(inside))
        if rows["arrived_at_s"][-1] >= end_s:
            break
    found = np.concatenate([np.zeros(0, ARRIVAL), *chunks])
    if not len(found):
        span = f"{plan.trials.duration_s:,.6g} s around the peak" if np.isfinite(end_s) else "traffic"
        raise ConfigError(f"trials: with seed {seed} no request arrives in the {span}; raise trials.duration_s")
    found["arrived_at_s"] -= start_s
    found["class_id"] = found["first_segment"] = found["follows"] = 0
    if traffic.uses_own_share:
        return Arriving(found, np.concatenate([NO_SEGMENTS, *segments]))
    found["num_segments"] = 0
    computed = np.ceil(found["num_prompt_tokens"] * (1 - (plan.cached_share or 0.0)) * (1 - 1e-12))
    found["num_prompt_tokens"] = np.maximum(1, computed).astype(np.int64)
    return Arriving(found)


def _window(plan: Plan, traffic: Traffic) -> tuple[float, float]:
    length_s = plan.trials.duration_s
    if length_s is None or plan.traffic.limit is not None or length_s >= traffic.duration_s:
        return 0.0, np.inf
    start_s = max(0.0, min(traffic.peak_at_s - length_s / 2, traffic.duration_s - length_s))
    return start_s, start_s + length_s


def shared(arriving: Arriving, instance: Instance, num_replicas: int, router: Router, seed: int) -> Ran:
    """Returns what replicas that prefill and decode make of the arrivals."""
    rows, steps = simulate(arriving.rows, _engine(instance, arriving), num_replicas, router, seed, arriving.segments)
    return Ran(ttft_s(rows), tpot_s(rows), rows["num_output_tokens"], {"shared": steps})


def separate(plan: Plan, fleet: Fleet, arriving: Arriving, working: Mapping[str, int], seed: int) -> Ran:
    """Returns what two pools make of the arrivals: the answers of the first, their caches moved, are the second's arrivals.

    Both pools are the simulated engine. The first writes one token and is done. The second's prompts cost it nothing but
    their memory: its arithmetic is free, which decodes do not use up, and its all-reduces and what its kernels were measured to
    take are those of its planned batch.
    Without answers of several tokens there is no second pool.
    """
    router, prompts = plan.trials.router, arriving.rows.copy()
    prompts["num_output_tokens"] = 1
    engine = _engine(fleet.prefill, arriving)
    first, prefill_steps = simulate(prompts, engine, working["prefill"], router, seed, arriving.segments)
    ttft, tpot = ttft_s(first), np.full(len(prompts), np.nan)
    steps = {"prefill": prefill_steps}
    answers, order = _answers(plan, fleet, arriving.rows, first)
    if "decode" in working and len(order):
        engine = _decode_engine(fleet.instance, fleet.layout)
        second, steps["decode"] = simulate(answers[order], engine, working["decode"], router, seed)
        asked = answers["num_output_tokens"][order]
        seconds = (second["last_token_at_s"] - first["first_token_at_s"][order]) / asked
        tpot[order] = np.where(second["num_generated_tokens"] == asked, seconds, np.nan)
    return Ran(ttft, tpot, arriving.rows["num_output_tokens"], steps)


def _answers(plan: Plan, fleet: Fleet, rows: Any, first: Any) -> tuple[Any, Any]:
    """What is left of each request behind its first token, (n,) ARRIVAL; and which go on, in the order of their arrival."""
    answers = rows.copy()
    moved_s = [kv_transfer_s(1, fleet.instance.kv_bytes_per_token, plan.kv_bytes_per_s)] * rows["num_prompt_tokens"]
    answers["arrived_at_s"] = first["first_token_at_s"] + moved_s
    answers["num_output_tokens"] -= 1
    answers["num_segments"] = 0
    goes_on = np.flatnonzero((answers["num_output_tokens"] > 0) & np.isfinite(answers["arrived_at_s"]))
    return answers, goes_on[np.argsort(answers["arrived_at_s"][goes_on], kind="stable")]


def simulate(
    arriving: Any, engine: Any, num_replicas: int, router: Router, seed: int, segments: Any = NO_SEGMENTS
) -> tuple[Any, Steps]:
    """Runs replicas that are all ready at time 0 until the last request has ended, or MAX_DRAIN_S after the last arrival.

    Args:
        arriving: (n,) ARRIVAL, sorted.
        engine: (1,) ENGINE.
        num_replicas: at least 1.
        router: who chooses among them.
        seed: of its random choices.
        segments: (m,) SEGMENT of the arrivals, one's after the other; they change something in a prefix cache alone.

    Returns:
        (n,) REQUEST in order of arrival, and what the engines did.

    Raises:
        InvariantError: our mistake: the books do not agree.
    """
    ends = np.cumsum(arriving["num_segments"])  # of each arrival's segments
    next_segments = iter(np.split(segments, ends[CHUNK_ROWS - 1 :: CHUNK_ROWS]) if len(segments) else ())
    plane = DataPlane(
        engine,
        [num_replicas],
        NUM_ITL_BINS,
        router.scrape_interval_s,
        router.start(num_replicas, seed),
        segments_of=lambda rows: next(next_segments, NO_SEGMENTS),
    )
    for slot in range(num_replicas):
        plane.open(slot, slot, 0.0)
    rows, audit = [np.zeros(0, REQUEST)], Audit()
    chunks = (arriving[first : first + CHUNK_ROWS] for first in range(0, len(arriving), CHUNK_ROWS))
    last_s = float(arriving["arrived_at_s"][-1])
    while (reason := plane.run_until(last_s + MAX_DRAIN_S)) == NEEDS_ARRIVALS:
        rows += [ended.copy() for _, ended in plane.take_ended()]
        plane.load(next(chunks, ()))
    audit.look(plane.fleet, plane.recounts(), plane.recount_unrouted())
    if reason != ENDED:
        plane.halt()
    rows += [ended.copy() for _, ended in plane.take_ended(everything=True)]
    found = np.concatenate(rows)
    audit.count(found)
    audit.close(plane.fleet, float(plane.fleet.clock[0].now_s))
    check(audit, plane.fleet, [], is_cut_short=reason != ENDED)
    return found, _steps(plane.fleet.replicas, found, last_s)


def _steps(replicas: Any, rows: Any, last_s: float) -> Steps:
    num_steps, busy_s = int(replicas["num_steps"].sum()), float(replicas["busy_s"].sum())
    tokens = int(rows["num_generated_tokens"].sum())
    return Steps(
        busy_share=busy_s / len(replicas) / last_s if last_s > 0 else np.nan,
        mean_step_s=busy_s / num_steps if num_steps else np.nan,
        mean_batch=tokens / num_steps if num_steps else np.nan,
        num_preemptions=int(rows["num_preemptions"].sum()),
        outside_share=int(replicas["num_steps_outside_range"].sum()) / num_steps if num_steps else 0.0,
        num_refused=int(np.count_nonzero(rows["status"] == REJECTED)),
        cached_share=float(rows["num_cached_tokens"].sum() / rows["num_prompt_tokens"].sum()),
    )


def _engine(instance: Instance, arriving: Arriving) -> Any:
    """(1,) ENGINE of plain requests; it looks for their prefixes if they have some."""
    engine = records(ENGINE, 1)
    engine[0] = instance.engine
    engine[0].max_loras = 0
    engine[0].enable_prefix_caching = len(arriving.segments) > 0
    engine[0].schedules_by_prefix &= engine[0].enable_prefix_caching
    return engine


def _decode_engine(instance: Instance, layout: Layout) -> Any:
    """(1,) ENGINE that reads prompts in no time: what depends on a step's tokens is that of its planned batch."""
    engine = _engine(instance, Arriving(None))
    one = engine[0]
    one.flops_per_s = np.inf
    one.comm_s += layout.batch * one.comm_s_per_token
    if one.num_knots:
        one.overhead_s += measured_s(layout.batch, one)
    one.num_knots = 0
    for term in TERMS:
        if term.of == "padded_tokens" or term.when != "once":
            one[term.field] = 0.0
    one.max_num_batched_tokens = 1_000_000
    return engine
