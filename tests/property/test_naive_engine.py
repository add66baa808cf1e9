"""Our scheduler against the naive one, decision by decision and instant by instant, on whatever Hypothesis finds.

The naive engine is our oracle as long as vLLM itself is not driven; it is held to vLLM's own recordings first.
"""

import itertools
import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.contracts.fleets import Ran, arrivals, engine, run
from replicas.step_time import cpu_time, gpu_time, step_time
from sim.metrics import NUM_ITL_BINS, itl_bin
from sim.records import BATCH, FINISHED, TIMED_OUT, records
from tests.conformance import replay
from tests.conformance.workloads import accepted_drafts, generate
from tests.property import naive_engine as naive
from tests.property import naive_workload
from tests.property.naive_request import Step
from tests.property.strategies import FIXED_STEP, FULL_STEP, Workload, engines_and_traffic, some_content, workloads

Drawn = tuple[dict[str, Any], list[tuple[float, int, int]]]


def settings_of(record: Any) -> naive.Settings:
    """vLLM's options out of an ENGINE record."""
    names = [name for name in naive.Settings.__dataclass_fields__ if name in record.dtype.names]
    options: dict[str, Any] = {name: int(record[name]) for name in names}
    policy = "priority" if record.schedules_by_priority else "fcfs"
    method = "eagle" if record.num_lookahead_tokens else "ngram"
    return naive.Settings(**options, scheduling_policy=policy, speculative_method=method)


def compared(step: dict[str, Any]) -> list[Any]:
    return [step[name] for name in (*replay.COMPARED, "loop_step")]


@given(engines_and_traffic())
@settings(max_examples=100)
def test_every_decision_equals_the_naive_engines(drawn: Drawn) -> None:
    """Requests come in by step (half a second of the drawn times is one): who runs, how many tokens, who has to go.

    `Replay` drives our own verbs as the recorder drove vLLM's, so no time is involved.
    """
    fields, rows = drawn
    assert_same_decisions(fields, [(int(2 * at_s), prompt, output) for at_s, prompt, output in rows])


@given(st.integers(0, 1 << 30), st.sampled_from([4, 30]))
@settings(max_examples=30)
def test_every_decision_equals_the_naive_engines_with_all_options(seed: int, num_requests: int) -> None:
    """The workloads with which vLLM's own scheduler is compared; the answers that `max_model_len` cuts off are only here."""
    workload = generate(seed, num_requests=num_requests)
    told = [*replay.COMPARED, *replay.MORE_COMPARED]
    ours = [[step[name] for name in told] for step in replay.Replay(workload).steps()]
    theirs = naive.by_step(naive_workload.settings_of(workload), naive_workload.arriving_of(workload))
    assert ours == [[step[name] for name in told] for step in theirs]


@given(engines_and_traffic())
@settings(max_examples=100)
def test_a_fleet_of_one_is_the_naive_engine_to_the_last_bit(drawn: Drawn) -> None:
    """Router, control plane and running sums change nothing: all instants of an engine alone, equal as floats.

    The step times come from the same function, of features that the naive engine counts request by request.
    """
    fields, rows = drawn
    requests = [naive.Request(f"r{i}", prompt, output) for i, (_, prompt, output) in enumerate(rows)]
    arriving = [(row[0], request) for row, request in zip(rows, requests, strict=True)]
    record = engine(**fields)[0]
    busy_s = naive.by_time(settings_of(record), arriving, timed_by(record))
    assert_same_instants(run(arrivals(rows), engine(**fields)), requests, busy_s)


@given(workloads(), st.integers(1, 10))
@settings(max_examples=100)
def test_a_fleet_of_one_is_the_naive_engine_with_a_client_that_holds_requests_back(
    work: Workload, max_concurrency: int
) -> None:
    """All instants, those of sending included, when so many requests are in flight at most.

    Grammars are left out: the naive engine is told beforehand when they are compiled, which is after the first is sent.
    """
    work = replace(work, classes=[(*kind[:3], 0.0) for kind in work.classes])
    assert_same_run(work, max_concurrency)


@given(workloads())
@settings(max_examples=100)
def test_a_fleet_of_one_is_the_naive_engine_with_all_options_too(work: Workload) -> None:
    """Thresholds, priorities, prefix caching, adapters, grammars, drafts and answers that end of themselves, all at once."""
    assert_same_run(work)


@given(
    workloads(), st.lists(st.sampled_from([0.0, 0.05, 0.3, 1.0, 4.0, 20.0]), min_size=4, max_size=4), st.sampled_from([None, 4])
)
@settings(max_examples=200)
def test_a_fleet_of_one_is_the_naive_engine_with_clients_that_give_up(
    work: Workload, timeouts_s: list[float], max_concurrency: int | None
) -> None:
    """All instants, tokens and busy seconds when each class waits so long at most; 0 = for ever.

    Grammars are left out where the client holds requests back, as above.
    """
    assert_same_run(with_timeouts(work, timeouts_s, has_grammars=max_concurrency is None), max_concurrency)


def with_timeouts(work: Workload, timeouts_s: list[float], *, has_grammars: bool) -> Workload:
    """The workload with classes whose clients give up after so long; none of their text is forced."""
    kinds = [
        (*kind[:3], kind[3] if has_grammars else 0.0, 1, 0, timeout_s)
        for kind, timeout_s in zip(work.classes, timeouts_s, strict=False)
    ]
    return replace(work, classes=kinds)


@pytest.mark.parametrize("async_scheduling", [0, 1])
@pytest.mark.parametrize("by_priority", [0, 1])
@pytest.mark.parametrize("caching", [0, 1])
def test_a_fleet_of_one_is_the_naive_engine_with_clients_that_give_up_on_preempted_requests(
    async_scheduling: int, by_priority: int, caching: int
) -> None:
    """300 requests in a cache for three of them, whose blocks fill at nearly every step; some answers end unforeseen.

    So requests are aborted while they wait, catch up, decode and wait again with a token on the device; the counts say so.
    """
    random = np.random.default_rng(9)
    at_s = np.cumsum(random.exponential(2.0, 300)).round(2).tolist()
    lengths = zip(random.integers(1, 30, 300).tolist(), random.integers(1, 40, 300).tolist(), strict=True)
    content = Random(9)
    fields = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 8,
        "block_size": 2,
        "num_usable_blocks": 60,
        "max_model_len": 100,
        "scheduler_reserve_full_isl": 0,
        "acceptance_rate": 0.0,
        "num_speculative_tokens": 0,
        "async_scheduling": async_scheduling,
    }
    rows = [(at, prompt, output, i % 3) for i, (at, (prompt, output)) in enumerate(zip(at_s, lengths, strict=True))]
    work = Workload(
        fields | {"schedules_by_priority": by_priority, "enable_prefix_caching": caching, **FIXED_STEP},
        rows,
        [(1, 0, 0, 0.0, 1, 0, 15.0), (0, 0, 45, 0.0, 1, 0, 30.05), (2, 0, 45, 0.0, 1, 0, 20.3)],
        [some_content(content, prompt + output) for _, prompt, output, _ in rows] if caching else [],
    )
    requests = assert_same_run(work).requests
    gave_up = requests[requests.status == TIMED_OUT]
    assert min(np.count_nonzero(gave_up.num_preemptions), np.count_nonzero(gave_up.num_generated_tokens)) > 20
    assert np.count_nonzero(requests.status == FINISHED) > 50


@pytest.mark.parametrize("async_scheduling", [0, 1])
@pytest.mark.parametrize("num_drafts", [0, 2])
def test_a_fleet_of_one_is_the_naive_engine_with_answers_longer_than_the_calendar_of_last_tokens(
    async_scheduling: int, num_drafts: int
) -> None:
    """Three priorities and answers of up to 2,500 tokens, whose clients would take 3,000; a cache for about two of them.

    The calendar of last tokens reaches 1,024 steps. The counts say that the comparison has teeth.
    """
    random = np.random.default_rng(8)
    lengths = zip(random.integers(1, 200, 8).tolist(), random.integers(800, 2500, 8).tolist(), strict=True)
    work = Workload(
        {
            "max_num_seqs": 6,
            "max_num_batched_tokens": 64,
            "block_size": 8,
            "num_usable_blocks": 700,
            "max_model_len": 3300,
            "schedules_by_priority": 1,
            "async_scheduling": async_scheduling,
            "num_speculative_tokens": num_drafts,
            "acceptance_rate": 0.5,
            **FULL_STEP,
        },
        [(20.0 * i, prompt, output, i % 3) for i, (prompt, output) in enumerate(lengths)],
        [(1, 0, 3000, 0.0), (0, 0, 0, 0.0), (2, 0, 3000, 0.0)],
        [],
        timeline_interval_s=1000.0,
    )
    ran = assert_same_run(work)
    assert ran.plane.fleet.replicas.num_steps[0] > 2 * 1024
    assert ran.requests.num_preemptions.sum() >= 5


def assert_same_run(work: Workload, max_concurrency: int | None = None) -> Ran:
    """Runs a workload here and on the naive engine, compares all they tell, and returns ours."""
    requests = [as_naive(work, i) for i in range(len(work.rows))]
    arriving = [(row[0], request) for row, request in zip(work.rows, requests, strict=True)]
    record = engine(**work.engine)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(naive, "Scheduler", Counting)
        busy_s = naive.by_time(settings_of(record), arriving, timed_by(record), max_concurrency or math.inf)
    ran = work.run(max_concurrency=max_concurrency)
    assert_same_instants(ran, requests, busy_s)
    return ran


class Counting(naive.Scheduler):
    """Tells a step-time model of a step's adapters and grammars as well."""

    def schedule(self, now: float) -> Step:
        step = super().schedule(now)
        num_masks = sum(request.is_structured for request in self.running)
        more = {"num_adapters": len(step.loras), "num_masks": num_masks}
        features = step.features
        step.features = lambda: features() | more  # type: ignore[method-assign]
        return step


def as_naive(work: Workload, i: int) -> naive.Request:
    """The `i`-th request as the naive engine is told it; a grammar is compiled when its class comes for the first time."""
    _, num_prompt_tokens, num_output_tokens, class_id = work.rows[i]
    priority, adapter, max_tokens, grammar_s, *more = work.classes[class_id]
    first_at_s = next(row[0] for row in work.rows if row[3] == class_id)
    rate, num_drafts = work.engine["acceptance_rate"], work.engine["num_speculative_tokens"]
    return naive.Request(
        f"r{i:04}",
        num_prompt_tokens,
        num_output_tokens,
        max_tokens=max_tokens or None,
        priority=priority,
        lora=adapter,
        grammar_ready_at=first_at_s + grammar_s if grammar_s else -math.inf,
        tokens=tokens_of(i, work.segments[i]) if work.segments else None,
        num_accepted=lambda known: accepted_drafts(i, known, rate, num_drafts),
        timeout_s=(more[2] if more else 0.0) or math.inf,
    )


def tokens_of(i: int, segments: list[tuple[int, int]]) -> Callable[[int], Hashable]:
    """What is at each position: a position of a stream, and behind all segments something of the request's own."""
    tokens = [(content, position) for content, num_tokens in segments for position in range(num_tokens)]
    return lambda position: tokens[position] if position < len(tokens) else ("own", i, position)


def assert_same_instants(ran: Ran, requests: list[naive.Request], busy_s: float) -> None:
    """What every request got and when, and all gaps between tokens; drafts accepted in one step come out at one instant."""

    def same(instants_s: Any, expected_s: list[float | None]) -> bool:
        return np.array_equal(instants_s, np.array(expected_s, np.float64), equal_nan=True)

    assert ran.requests.arrived_at_s.tolist() == [request.sent_at_s for request in requests]
    assert same(ran.requests.scheduled_at_s, [request.scheduled_at_s for request in requests])
    assert same(ran.requests.first_token_at_s, [next(iter(request.token_at_s), None) for request in requests])
    assert same(ran.requests.last_token_at_s, [next(reversed(request.token_at_s), None) for request in requests])
    ended = [(TIMED_OUT, r.given_up_at_s) if r.given_up_at_s is not None else (FINISHED, r.token_at_s[-1]) for r in requests]
    assert list(zip(ran.requests.status.tolist(), ran.requests.finished_at_s.tolist(), strict=True)) == ended
    assert ran.requests.num_preemptions.tolist() == [request.num_preemptions for request in requests]
    assert ran.requests.num_cached_tokens.tolist() == [request.num_cached_tokens for request in requests]
    assert ran.requests.num_generated_tokens.tolist() == [len(request.token_at_s) for request in requests]
    fleet = ran.plane.fleet
    assert fleet.replicas.num_delivered_tokens[0] == sum(len(request.token_at_s) for request in requests)
    gaps_s = [b - a for request in requests for a, b in itertools.pairwise(request.token_at_s)]
    bins = np.array([itl_bin(gap_s) for gap_s in gaps_s], np.int64)
    assert fleet.itl_counts[0].tolist() == np.bincount(bins, minlength=NUM_ITL_BINS).tolist()
    assert fleet.itl_sums[0].tolist() == pytest.approx([sum(gaps_s), sum(g**2 for g in gaps_s), max(gaps_s, default=0.0)])
    assert fleet.replicas.busy_s[0] == busy_s


def timed_by(record: Any) -> naive.Pipeline:
    """Returns stages whose times are our step time's, of the features that the naive engine counts."""
    batch = records(BATCH, 1)[0]

    def filled(features: dict[str, float]) -> Any:
        for name, value in features.items():
            batch[name] = value
        return batch

    def seconds(features: dict[str, float]) -> float:
        return float(step_time(filled(features), record))

    def parts(features: dict[str, float]) -> tuple[float, float, float]:
        step = filled(features)
        hop_s = record.handover_s + step.num_tokens * record.handover_s_per_token
        return float(gpu_time(step, record, step.num_tokens, step.num_tokens)), float(cpu_time(step, record)), float(hop_s)

    return naive.Pipeline(seconds, int(record.num_stages), parts)


@pytest.mark.parametrize("async_scheduling", [0, 1])
def test_decisions_stay_equal_over_thousands_of_steps_full_of_preemptions(async_scheduling: int) -> None:
    """Answers of up to 2,500 tokens, more than the calendar of last tokens reaches, in a cache for two of them.

    Ten requests that outgrow the cache together must preempt each other many times; the counts have to show it, or the
    comparison has no teeth.
    """
    random = np.random.default_rng(7)
    rows = [(int(20 * i), int(random.integers(1, 200)), int(random.integers(800, 2500))) for i in range(10)]
    fields = {
        "max_num_seqs": 6,
        "max_num_batched_tokens": 64,
        "block_size": 8,
        "num_usable_blocks": 700,
        "max_model_len": 2700,
        "scheduler_reserve_full_isl": 0,
        "async_scheduling": async_scheduling,
    }
    steps = assert_same_decisions(fields, rows)
    assert len(steps) > 2 * 1024
    assert sum(len(step["preempted"]) for step in steps) >= 10


def assert_same_decisions(fields: dict[str, Any], rows: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Rows of (step of arrival, prompt tokens, output tokens): compares all steps and returns them."""
    requests = [
        {
            "id": f"r{i}",
            "arrival_step": step,
            "prompt": [0] * num_prompt_tokens,
            "output_len": num_output_tokens,
            "output_ids": [],
        }
        for i, (step, num_prompt_tokens, num_output_tokens) in enumerate(rows)
    ]
    arguments = {"enable_prefix_caching": False, **fields}
    workload = {"engine_args": arguments, "num_gpu_blocks": fields["num_usable_blocks"] + 1, "requests": requests}
    ours = replay.Replay(workload)
    ours.fleet.engines[0].watermark_blocks = fields.get("watermark_blocks", 0)
    arriving = [(step, naive.Request(f"r{i}", prompt, output)) for i, (step, prompt, output) in enumerate(rows)]
    naives = list(naive.by_step(settings_of(ours.fleet.engines[0]), arriving))
    assert [compared(step) for step in ours.steps()] == [compared(step) for step in naives]
    return naives
