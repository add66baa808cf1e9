"""Runs a fixed number of replicas on given arrivals: what a plan is tried with, without a control plane."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import routers
from experiments.plans.config import Plan
from experiments.plans.demand import Traffic
from experiments.plans.fleets import Fleet
from experiments.settings.router import Router
from planning.instance import Instance
from planning.kv import kv_transfer_s
from planning.layouts import Layout
from replicas.plane import DataPlane
from sim.metrics import NUM_ITL_BINS, tpot_s, ttft_s
from sim.records import ENDED, ENGINE, NEEDS_ARRIVALS, REJECTED, REQUEST, records

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


@dataclass(frozen=True)
class Steps:
    """What a pool's engines did, all together."""

    busy_share: float  # of the time up to the last arrival
    mean_step_s: float
    mean_batch: float  # tokens of running answers in a step
    num_preemptions: int
    num_refused: int  # requests that no replica could ever hold
    outside_share: float  # of the steps, larger than any that a calibration was fitted on


def arrivals_of(plan: Plan, traffic: Traffic, seed: int) -> Any:
    """Returns (n,) ARRIVAL of one seed: `trials.duration_s` around the peak, or all traffic; times from 0.

    What requests share is left out; of each prompt `cached_share` is taken off. With `traffic.limit` it is the first requests.
    """
    start_s, end_s = _window(plan, traffic)
    chunks = []
    for rows in plan.traffic.stream(seed).chunks():
        inside = (rows["arrived_at_s"] >= start_s) & (rows["arrived_at_s"] < end_s)
        if inside.any():
            chunks.append(rows[inside])
        if rows["arrived_at_s"][-1] >= end_s:
            break
    found = np.concatenate(chunks)
    found["arrived_at_s"] -= start_s
    found["class_id"] = found["first_segment"] = found["num_segments"] = 0
    computed = np.ceil(found["num_prompt_tokens"] * (1 - plan.cached_share))
    found["num_prompt_tokens"] = np.maximum(1, computed).astype(np.int64)
    return found


def _window(plan: Plan, traffic: Traffic) -> tuple[float, float]:
    length_s = plan.trials.duration_s
    if length_s is None or plan.traffic.limit is not None or length_s >= traffic.duration_s:
        return 0.0, np.inf
    start_s = max(0.0, min(traffic.peak_at_s - length_s / 2, traffic.duration_s - length_s))
    return start_s, start_s + length_s


def shared(arriving: Any, instance: Instance, num_replicas: int, router: Router, seed: int) -> Ran:
    """Returns what replicas that prefill and decode make of the arrivals."""
    rows, steps = simulate(arriving, _engine(instance), num_replicas, router, seed)
    return Ran(ttft_s(rows), tpot_s(rows), rows["num_output_tokens"], {"shared": steps})


def separate(plan: Plan, fleet: Fleet, arriving: Any, num_prefill: int, num_decode: int, seed: int) -> Ran:
    """Returns what two pools make of the arrivals: the answers of the first, their caches moved, are the second's arrivals.

    Both pools are the simulated engine. The first writes one token and is done. The second's prompts cost it nothing but
    their memory: its arithmetic is free, which decodes do not use up, and its all-reduces are those of its planned batch.
    """
    router = plan.trials.router
    prompts = arriving.copy()
    prompts["num_output_tokens"] = 1
    first, prefill_steps = simulate(prompts, _engine(fleet.prefill), num_prefill, router, seed)
    answers = arriving.copy()
    moved_s = [kv_transfer_s(1, fleet.instance.kv_bytes_per_token, plan.kv_bytes_per_s)] * arriving["num_prompt_tokens"]
    answers["arrived_at_s"] = first["first_token_at_s"] + moved_s
    answers["num_output_tokens"] -= 1
    goes_on = np.flatnonzero((answers["num_output_tokens"] > 0) & np.isfinite(answers["arrived_at_s"]))
    order = goes_on[np.argsort(answers["arrived_at_s"][goes_on], kind="stable")]
    engine = _decode_engine(fleet.instance, fleet.layout)
    second, decode_steps = simulate(answers[order], engine, num_decode, router, seed)
    tpot = np.full(len(arriving), np.nan)
    asked = answers["num_output_tokens"][order]
    is_whole = second["num_generated_tokens"] == asked
    seconds = (second["last_token_at_s"] - first["first_token_at_s"][order]) / asked
    tpot[order] = np.where(is_whole, seconds, np.nan)
    steps = {"prefill": prefill_steps, "decode": decode_steps}
    return Ran(ttft_s(first), tpot, arriving["num_output_tokens"], steps)


def simulate(arriving: Any, engine: Any, num_replicas: int, router: Router, seed: int) -> tuple[Any, Steps]:
    """Runs replicas that are all ready at time 0 until the last request has ended, or MAX_DRAIN_S after the last arrival.

    Args:
        arriving: (n,) ARRIVAL, sorted.
        engine: (1,) ENGINE.
        num_replicas: at least 1.
        router: who chooses among them.
        seed: of its random choices.

    Returns:
        (n,) REQUEST in order of arrival, and what the engines did.
    """
    choose, ask_python = router.choose, None
    if not routers.is_compiled(choose):
        choose, ask_python = routers.KINDS["round_robin"].choose, choose
    state = routers.new_state(seed, num_replicas, router.options)
    plane = DataPlane(engine, [num_replicas], NUM_ITL_BINS, router.scrape_interval_s, choose, state, ask_python)
    for slot in range(num_replicas):
        plane.open(slot, slot, 0.0)
    rows = [np.zeros(0, REQUEST)]
    chunks = (arriving[first : first + CHUNK_ROWS] for first in range(0, len(arriving), CHUNK_ROWS))
    last_s = float(arriving["arrived_at_s"][-1])
    while (reason := plane.run_until(last_s + MAX_DRAIN_S)) == NEEDS_ARRIVALS:
        rows += [ended.copy() for _, ended in plane.take_ended()]
        plane.load(next(chunks, ()))
    if reason != ENDED:
        plane.halt()
    rows += [ended.copy() for _, ended in plane.take_ended(everything=True)]
    found = np.concatenate(rows)
    assert len(found) == len(arriving), "a request was lost"
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
    )


def _engine(instance: Instance) -> Any:
    """(1,) ENGINE of plain requests."""
    engine = records(ENGINE, 1)
    engine[0] = instance.engine
    engine[0].max_loras = 0
    engine[0].enable_prefix_caching = engine[0].schedules_by_prefix = 0
    return engine


def _decode_engine(instance: Instance, layout: Layout) -> Any:
    engine = _engine(instance)
    engine[0].flops_per_s = np.inf
    engine[0].comm_s += layout.batch * engine[0].comm_s_per_token
    engine[0].comm_s_per_token = 0.0
    engine[0].max_num_batched_tokens = 1_000_000
    return engine
