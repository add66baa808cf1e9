"""Closed forms of queues: the textbook's values, how they fit together, and what they refuse."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from sim.queueing import (
    erlang_b,
    erlang_c,
    mg1,
    mg1_ps,
    mm1,
    mm1_sojourn_percentile_s,
    mmc,
    mmc_wait_percentile_s,
    num_in_system,
    power_of_d_sojourn_s,
    split_and_pooled,
)


def test_mm1_wait_at_8_and_at_9_5_of_10_requests_a_second() -> None:
    assert [mm1(rate_per_s, 0.1).wait_s for rate_per_s in (8.0, 9.5)] == pytest.approx([0.4, 1.9], abs=0.001)


def test_eight_queues_against_one() -> None:
    assert mm1(0.8, 1.0).wait_s == pytest.approx(4.0, abs=0.005)
    assert mmc(6.4, 1.0, 8).wait_s == pytest.approx(0.286, abs=0.005)


def test_deterministic_service_halves_the_wait() -> None:
    assert mg1(0.8, 1.0, 0.0).wait_s / mg1(0.8, 1.0, 1.0).wait_s == pytest.approx(0.5, abs=0.001)


def test_time_in_system_at_80_ms_service() -> None:
    sojourns_s = [mm1(load / 0.08, 0.08).sojourn_s for load in (0.70, 0.90, 0.95)]
    assert sojourns_s == pytest.approx([0.2667, 0.8, 1.6], abs=0.0001)


def test_one_server_of_many_is_mm1() -> None:
    assert mmc(0.8, 1.0, 1) == mm1(0.8, 1.0)
    assert erlang_c(0.8, 1) == pytest.approx(0.8)
    assert power_of_d_sojourn_s(0.8, 1.0, 1) == pytest.approx(mm1(0.8, 1.0).sojourn_s)


def test_erlang_c_of_two_servers_by_hand() -> None:
    """a = 1.6: states 0, 1, 2+ weigh 1, 1.6 and 1.28 / (1 - 0.8) = 6.4."""
    assert erlang_c(1.6, 2) == pytest.approx(6.4 / 9.0)
    assert erlang_b(1.6, 2) == pytest.approx(1.28 / 3.88)


def test_a_thousand_servers_neither_overflow_nor_wait() -> None:
    assert 0 < erlang_c(900.0, 1000) < 0.01
    assert mmc(900.0, 1.0, 1000).wait_s < 1e-4


def test_littles_law_links_the_means() -> None:
    queue = mmc(12.0, 0.5, 8)
    assert queue.num_waiting == pytest.approx(12.0 * queue.wait_s)
    assert queue.num_in_system == pytest.approx(queue.num_waiting + 12.0 * 0.5)


def test_more_choices_are_better_and_the_second_counts_most() -> None:
    sojourns_s = [power_of_d_sojourn_s(0.95, 1.0, d) for d in (1, 2, 3, 4)]
    gains = [earlier - later for earlier, later in itertools.pairwise(sojourns_s)]
    assert gains[0] > 10 * gains[1] > 10 * gains[2] > 0


def test_waits_of_many_servers_have_the_tail_that_their_mean_asks_for() -> None:
    """The mean wait is the integral of the percentiles over the shares; a midpoint rule of 20,000 finds it to 0.1 %."""
    shares = [(i + 0.5) / 200 for i in range(20_000)]
    mean_s = sum(mmc_wait_percentile_s(6.4, 1.0, 8, share) for share in shares) / len(shares)
    assert mean_s == pytest.approx(mmc(6.4, 1.0, 8).wait_s, rel=0.002)


def test_who_finds_a_free_server_does_not_wait() -> None:
    served_at_once = 1 - erlang_c(6.4, 8)
    assert mmc_wait_percentile_s(6.4, 1.0, 8, 100 * served_at_once - 0.01) == 0.0
    assert mmc_wait_percentile_s(6.4, 1.0, 8, 100 * served_at_once + 0.01) > 0.0


def test_processor_sharing_takes_as_long_as_mm1_whatever_the_law_of_service() -> None:
    assert mg1_ps(0.8, 1.0) == mm1(0.8, 1.0)
    assert mg1_ps(0.8, 1.0).wait_s > mg1(0.8, 1.0, service_scv=0.0).wait_s


def test_pooling_eight_lines() -> None:
    split, pooled = split_and_pooled(6.4, 1.0, 8)
    assert (split.wait_s, pooled.wait_s) == pytest.approx((4.0, 0.286), abs=0.005)
    assert split.utilization == pytest.approx(pooled.utilization)


def test_littles_law_alone() -> None:
    queue = mmc(12.0, 0.5, 8)
    assert num_in_system(12.0, queue.sojourn_s) == pytest.approx(queue.num_in_system)


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (lambda: mm1(1.0, 1.0), "cannot keep up: utilization 1 must be below 1"),
        (lambda: mmc(8.5, 1.0, 8), "cannot keep up: utilization 1.0625"),
        (lambda: erlang_c(2.0, 2), "cannot keep up"),
        (lambda: mm1(-1.0, 1.0), "arrivals_per_s must be a positive number, got -1.0"),
        (lambda: mm1(1.0, float("nan")), "service_s must be a positive number, got nan"),
        (lambda: mmc(1.0, 0.1, 0), "servers must be a whole number from 1 up, got 0"),
        (lambda: mg1(0.5, 1.0, -0.1), "service_scv must be a number from 0 up, got -0.1"),
        (lambda: erlang_b(0.0, 3), "offered must be a positive number, got 0.0"),
        (lambda: mm1_sojourn_percentile_s(0.5, 1.0, 100), "percent must lie in"),
        (lambda: mmc_wait_percentile_s(1.0, 0.5, 1, 100.0), "percent must lie in"),
        (lambda: mmc_wait_percentile_s(2.0, 0.5, 1, 50.0), "cannot keep up"),
        (lambda: mg1_ps(2.0, 0.5), "cannot keep up"),
        (lambda: split_and_pooled(8.0, 1.0, 8), "cannot keep up"),
        (lambda: split_and_pooled(1.0, 1.0, 0), "servers must be a whole number"),
        (lambda: num_in_system(1.0, -1.0), "sojourn_s must be a positive number"),
        (lambda: power_of_d_sojourn_s(0.5, 1.0, 0), "d must be a whole number from 1 up, got 0"),
    ],
)
def test_what_has_no_steady_state_or_no_meaning_is_refused(ask: Callable[[], Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        ask()
