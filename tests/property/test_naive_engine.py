"""Our scheduler against the naive one, decision by decision and instant by instant, on whatever Hypothesis finds.

The naive engine is our oracle as long as vLLM itself is not driven; it is held to vLLM's own recordings first.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from replicas.step_time import step_time
from sim.records import BATCH, records
from tests.conformance import replay
from tests.fleets import arrivals, engine, run
from tests.property import naive_engine as naive
from tests.property.strategies import engines_and_traffic

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
@settings(max_examples=100, deadline=None)
def test_every_decision_equals_the_naive_engines(drawn: Drawn) -> None:
    """Requests come in by step (half a second of the drawn times is one): who runs, how many tokens, who has to go.

    `Replay` drives our own verbs as the recorder drove vLLM's, so no time is involved.
    """
    fields, rows = drawn
    assert_same_decisions(fields, [(int(2 * at_s), prompt, output) for at_s, prompt, output in rows])


@given(engines_and_traffic())
@settings(max_examples=100, deadline=None)
def test_m15_a_fleet_of_one_is_the_naive_engine_to_the_last_bit(drawn: Drawn) -> None:
    """Router, control plane and running sums change nothing: all instants of an engine alone, equal as floats.

    The step times come from the same function, of features that the naive engine counts request by request.
    """
    fields, rows = drawn
    ran = run(arrivals(rows), engine(**fields))
    requests = [naive.Request(f"r{i}", prompt, output) for i, (_, prompt, output) in enumerate(rows)]
    arriving = [(row[0], request) for row, request in zip(rows, requests, strict=True)]
    busy_s = naive.by_time(settings_of(engine(**fields)[0]), arriving, lambda features: time_of(features, fields))
    assert ran.requests.scheduled_at_s.tolist() == [request.scheduled_at_s for request in requests]
    assert ran.requests.first_token_at_s.tolist() == [request.token_at_s[0] for request in requests]
    assert ran.requests.finished_at_s.tolist() == [request.token_at_s[-1] for request in requests]
    assert ran.requests.num_preemptions.tolist() == [request.num_preemptions for request in requests]
    gaps_s = [b - a for request in requests for a, b in zip(request.token_at_s, request.token_at_s[1:], strict=False)]
    assert ran.plane.fleet.itl_counts.sum() == len(gaps_s)
    assert ran.plane.fleet.itl_sums[0, 2] == pytest.approx(max(gaps_s, default=0.0))
    assert ran.plane.fleet.itl_sums[0, 1] == pytest.approx(sum(gap_s**2 for gap_s in gaps_s))
    assert ran.plane.fleet.replicas.busy_s[0] == busy_s


def time_of(features: dict[str, float], fields: dict[str, Any]) -> float:
    batch = records(BATCH, 1)
    for name, value in features.items():
        batch[name] = value
    return float(step_time(batch[0], engine(**fields)[0]))


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
