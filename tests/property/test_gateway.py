"""The door: a bucket that never overflows nor gives more than it has, and an admission that keeps its own promise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission import admit
from gateway.token_bucket import TokenBucket

AMOUNTS = st.floats(0, 500)
PAUSES = st.floats(0, 30)
OPERATIONS = st.lists(st.tuples(PAUSES, AMOUNTS, AMOUNTS), max_size=40)  # a pause, what is reserved, what is used


@given(operations=OPERATIONS, rate=st.floats(0.1, 50), capacity=st.floats(1, 1000))
def test_t39_a_bucket_never_exceeds_its_capacity_nor_lets_in_what_it_has_not(
    operations: list[tuple[float, float, float]], rate: float, capacity: float
) -> None:
    bucket, now_s = TokenBucket(rate, capacity), 0.0
    for pause_s, reserved, used in operations:
        now_s += pause_s
        before = min(capacity, bucket.level_tokens + pause_s * rate)
        assert bucket.try_reserve(reserved, now_s) == (reserved <= before)
        expected = before - reserved if reserved <= before else before
        assert bucket.level_tokens == pytest.approx(expected, abs=1e-6)
        if reserved <= before:
            bucket.reconcile(reserved, used, now_s)
            assert bucket.level_tokens == pytest.approx(min(capacity, expected + reserved - used), abs=1e-6)
        assert bucket.level_tokens <= capacity


@given(operations=OPERATIONS, rate=st.floats(0.1, 50), capacity=st.floats(1, 1000))
def test_t39_what_is_used_within_reservations_never_exceeds_rate_and_burst(
    operations: list[tuple[float, float, float]], rate: float, capacity: float
) -> None:
    bucket, now_s, total = TokenBucket(rate, capacity), 0.0, 0.0
    for pause_s, reserved, used in operations:
        now_s += pause_s
        if bucket.try_reserve(reserved, now_s):
            total += min(used, reserved)
            bucket.reconcile(reserved, min(used, reserved), now_s)
        assert total <= capacity + rate * now_s + 1e-6


@given(estimate=st.floats(1, 100), used=st.floats(0, 100))
def test_t39_the_over_estimate_is_refunded_and_the_under_estimate_charged(estimate: float, used: float) -> None:
    bucket = TokenBucket(1.0, 200.0)
    assert bucket.try_reserve(estimate, 0.0)
    bucket.reconcile(estimate, used, 0.0)
    assert bucket.level_tokens == pytest.approx(200.0 - used)


def test_t39_a_debt_is_paid_before_the_next_is_let_in() -> None:
    bucket = TokenBucket(10.0, 100.0)
    assert bucket.try_reserve(100.0, 0.0)
    bucket.reconcile(100.0, 150.0, 0.0)  # the answer was longer than said
    assert bucket.level_tokens == -50.0
    assert bucket.wait_s(10.0, 0.0) == 6.0
    assert not bucket.try_reserve(10.0, 5.9)
    assert bucket.try_reserve(10.0, 6.1)
    assert bucket.wait_s(101.0, 7.0) == float("inf")


def test_a_bucket_refuses_nonsense() -> None:
    bucket = TokenBucket(1.0, 10.0)
    bucket.try_reserve(1.0, 5.0)
    for ask in (lambda: bucket.try_reserve(1.0, 4.0), lambda: bucket.try_reserve(-1.0, 6.0), lambda: TokenBucket(0.0, 1.0)):
        with pytest.raises(ValueError, match="must"):
            ask()
    assert bucket.level_tokens == 9.0


@given(queued=st.integers(0, 10**6), prompt=st.integers(1, 10**5), rate=st.floats(1, 1e5), target=st.floats(0.01, 60))
def test_t40_who_would_miss_the_target_gets_a_429_and_nobody_else(queued: int, prompt: int, rate: float, target: float) -> None:
    answer = admit(queued, prompt, rate, target)
    assert answer.is_admitted == ((queued + prompt) / rate <= target)
    assert answer.http_status == (200 if answer.is_admitted else 429)


@given(prompts=st.lists(st.integers(1, 5000), max_size=50), rate=st.floats(1000, 20_000))
def test_t40_all_that_are_admitted_in_one_instant_keep_the_target(prompts: list[int], rate: float) -> None:
    """One prompt after the other at the stated rate: each admitted one is read in time, and one more would not be."""
    queued = 0
    for prompt in prompts:
        answer = admit(queued, prompt, rate, 1.0)
        if answer.is_admitted:
            queued += prompt
            assert queued / rate <= 1.0
        else:
            assert (queued + prompt) / rate > 1.0


def test_admission_refuses_nonsense() -> None:
    for arguments in ((-1, 10, 100.0, 1.0), (0, 0, 100.0, 1.0), (0, 10, 0.0, 1.0), (0, 10, 100.0, float("nan"))):
        with pytest.raises(ValueError, match="must be a"):
            admit(*arguments)
