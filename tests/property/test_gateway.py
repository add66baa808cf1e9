"""The gateway: buckets that never overflow nor give more than they have, and an admission that keeps its own promise."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from experiments.contracts.fleets import Ran, Script, arrivals, engine, run
from replicas.gateway import predicted_ttft_s
from replicas.rate_limit import level_at, reconcile, reserve
from sim.records import BUCKET, CLASS, OVER_RATE_LIMIT, OVER_TTFT, REJECTED, records

AMOUNTS = st.integers(0, 500)
PAUSES = st.floats(0, 30)
OPERATIONS = st.lists(st.tuples(PAUSES, AMOUNTS, AMOUNTS, PAUSES), max_size=40)
"""A pause, what is reserved, what is used of it, and how long that takes."""


def a_bucket(tokens_per_s: float, capacity_tokens: float) -> Any:
    bucket = records(BUCKET, 1)
    bucket[0] = (tokens_per_s, capacity_tokens, capacity_tokens, 0.0)
    return bucket[0]


def a_class(bucket: tuple[float, float] | None = None, admission: tuple[float, float] = (0.0, 0.0), max_tokens: int = 0) -> Any:
    made = records(CLASS, 1)
    made["max_tokens"] = max_tokens
    if bucket is not None:
        made["bucket"][0] = (*bucket, bucket[1], 0.0)
    made["admitted_ttft_s"], made["prefill_tokens_per_s"] = admission
    return made


@given(operations=OPERATIONS, rate=st.floats(0.1, 50), capacity=st.floats(1, 1000))
@example(operations=[(0.0, 10, 0, 1.0)], rate=10.0, capacity=100.0)  # full again before what was not used comes back
def test_t39_a_bucket_never_exceeds_its_capacity_and_gives_back_what_was_not_used(
    operations: list[tuple[float, int, int, float]], rate: float, capacity: float
) -> None:
    bucket, now_s, level, total = a_bucket(rate, capacity), 0.0, capacity, 0
    for pause_s, reserved, used, lasts_s in operations:
        now_s += pause_s
        level = min(capacity, level + pause_s * rate)
        assert level_at(bucket, now_s) == pytest.approx(level, abs=1e-6)
        if reserved <= level_at(bucket, now_s):
            used = min(used, reserved)
            reserve(bucket, reserved, now_s)
            assert bucket.level_tokens == pytest.approx(level - reserved, abs=1e-6)
            now_s += lasts_s
            level = min(capacity, level - reserved + lasts_s * rate)
            reconcile(bucket, reserved, used, now_s)
            level, total = min(capacity, level + reserved - used), total + used
        assert bucket.level_tokens <= capacity
        assert total <= capacity + rate * now_s + 1e-6  # no more than the rate and one burst


def turned_away(ran: Ran, reason: int) -> list[bool]:
    rows = ran.requests
    assert ((rows.status == REJECTED) == (rows.reason == reason)).all()
    return [bool(one) for one in rows.status == REJECTED]


@given(
    rows=st.lists(st.tuples(st.floats(0, 0.3), st.integers(1, 400), st.integers(1, 60)), min_size=1, max_size=40),
    rate=st.floats(100, 20_000),
    capacity=st.floats(100, 3000),
    max_tokens=st.sampled_from([0, 60]),
)
def test_a_fleet_turns_away_whom_a_bucket_beside_it_turns_away(
    rows: list[tuple[float, int, int]], rate: float, capacity: float, max_tokens: int
) -> None:
    """A bucket in plain Python, given the run's arrivals and ends in order, finds the same requests too many."""
    at_s, arriving = 0.0, []
    for pause_s, prompt, answer in rows:
        at_s += pause_s + 1e-4
        arriving.append((at_s, prompt, answer))
    ran = run(arrivals(arriving), engine(max_num_seqs=4), classes=a_class((rate, capacity), max_tokens=max_tokens))
    refused = turned_away(ran, OVER_RATE_LIMIT)
    ends = [(row.finished_at_s, 0, i) for i, row in enumerate(ran.requests) if not refused[i]]  # before an arrival then
    level, filled_at_s = capacity, 0.0
    for now_s, is_arrival, i in sorted([*ends, *((row[0], 1, i) for i, row in enumerate(arriving))]):
        _, prompt, answer = arriving[i]
        most = prompt + (max_tokens or answer)
        level, filled_at_s = min(capacity, level + (now_s - filled_at_s) * rate), now_s
        if not is_arrival:
            level = min(capacity, level + most - prompt - answer)
        elif abs(most - level) > 1e-6:  # nearer than that, rounding decides
            assert refused[i] == (most > level)
        level -= most if is_arrival and not refused[i] else 0


@given(queued=st.integers(0, 10**6), prompt=st.integers(1, 10**5), rate=st.floats(1, 1e5))
def test_t40_the_prediction_is_all_prompts_at_the_prefill_rate(queued: int, prompt: int, rate: float) -> None:
    assert predicted_ttft_s(queued, prompt, rate) == (queued + prompt) / rate


@given(prompts=st.lists(st.integers(1, 5000), min_size=1, max_size=50), target_s=st.floats(0.05, 1.0))
@example(prompts=[5000, 1], target_s=0.5)  # the first is expected at the target itself
def test_t40_who_would_miss_the_target_is_turned_away_and_nobody_else(prompts: list[int], target_s: float) -> None:
    """All come at one instant to an engine that computes one token in 0.1 ms: who is admitted has its token in time.

    A step may hold many prompts, whose first tokens then come with the last of them, but never later than all of them take.
    """
    seconds = 1e-4
    costs = engine(overhead_s=0.0, flops_per_s=1.0, flops_per_token=seconds, max_num_batched_tokens=5000)
    ran = run(arrivals([(0.0, prompt, 1) for prompt in prompts]), costs, classes=a_class(None, (target_s, 1 / seconds)))
    queued = 0
    for prompt, refused, row in zip(prompts, turned_away(ran, OVER_TTFT), ran.requests, strict=True):
        assert refused == ((queued + prompt) * seconds > target_s)
        queued += 0 if refused else prompt
        assert refused or row.first_token_at_s <= target_s * (1 + 1e-9)


def test_a_request_that_is_sent_again_is_not_asked_again() -> None:
    """Its machine goes away at 15 s; at 20 s another comes, and first takes a prompt that has waited since 12 s.

    Behind that it would be predicted 2 s, and the limit is 1 s; who comes new at 21 s behind a third prompt is turned away.
    """
    rows = [(0.0, 10, 30), (12.0, 10, 30), (20.5, 10, 30)]
    ran = run(
        arrivals(rows),
        engine(overhead_s=1.0, max_num_seqs=1),
        max_replicas=2,
        autoscaler=Script([1, 0, 1]),
        interval_s=10.0,
        stages=lambda: [],
        drain_timeout_s=5.0,
        requeue_on_timeout=True,
        classes=a_class(None, (1.0, 10.0)),
    )
    assert turned_away(ran, OVER_TTFT) == [False, False, True]
    assert ran.requests.machine.tolist()[:2] == [1, 1]
