"""Timelines worked out by hand: every instant of a few requests, and why."""

import numpy as np
import pytest

from experiments.contracts.fleets import arrivals, engine, run


def test_one_request_alone() -> None:
    """A prefill step, then one step a token: the token counts when its step has ended, not when it started."""
    ran = run(arrivals([(0.0, 100, 3)]), engine(overhead_s=0.010))
    request = ran.requests[0]
    assert request.scheduled_at_s == 0.0
    assert request.first_token_at_s == pytest.approx(0.010)
    assert request.finished_at_s == pytest.approx(0.030)


def test_ttft_includes_the_queue() -> None:
    """One sequence at a time, 4 s each, ten at once: 4, 8, ..., 40 s."""
    ran = run(arrivals([(0.0, 10, 1)] * 10), engine(max_num_seqs=1, overhead_s=4.0))
    ttft_s = ran.requests.first_token_at_s - ran.requests.arrived_at_s
    assert ttft_s.tolist() == pytest.approx([4.0 * k for k in range(1, 11)])
    assert ttft_s.mean() == pytest.approx(22.0)


def test_the_rest_of_the_budget_goes_to_the_next_prompt() -> None:
    """Budget 8, prompts of 4 and 8: the first step takes 4 + 4, the second the other 4."""
    ran = run(arrivals([(0.0, 4, 1), (0.0, 8, 1)]), engine(max_num_batched_tokens=8, block_size=4, overhead_s=1.0))
    assert ran.requests.scheduled_at_s.tolist() == [0.0, 0.0]
    assert ran.requests.first_token_at_s.tolist() == pytest.approx([1.0, 2.0])


def test_a_late_arrival_waits_for_the_running_step() -> None:
    """Plain stepping: what arrives during a step is in the next one."""
    ran = run(arrivals([(0.0, 10, 2), (0.5, 10, 1)]), engine(overhead_s=1.0))
    assert ran.requests.scheduled_at_s.tolist() == [0.0, 1.0]
    assert ran.requests.finished_at_s.tolist() == pytest.approx([2.0, 2.0])


def test_a_client_sends_the_next_request_when_one_ends() -> None:
    """Two at a time, all there at 0, steps of a second. The third is sent at 1 when the first ends, after the step from 1 on is
    planned, so it is in the step from 2 on; at 3 the second and the third end together, and the others are sent.
    """
    rows = [(0.0, 10, 1), (0.0, 10, 3), (0.0, 10, 1), (0.0, 10, 1), (0.0, 10, 2)]
    ran = run(arrivals(rows), engine(overhead_s=1.0), max_concurrency=2)
    assert ran.requests.arrived_at_s.tolist() == [0.0, 0.0, 1.0, 3.0, 3.0]
    assert ran.requests.scheduled_at_s.tolist() == [0.0, 0.0, 2.0, 3.0, 3.0]
    assert ran.requests.finished_at_s.tolist() == [1.0, 3.0, 3.0, 4.0, 5.0]
    clock = ran.plane.fleet.clock[0]
    assert (clock.num_held, clock.held_s, clock.max_held_s, clock.peak_in_system) == (3, 7.0, 3.0, 2)


def test_a_client_with_room_sends_at_the_stamps() -> None:
    """One that is refused at the door makes room at once; one that comes later is not held."""
    tight = engine(block_size=16, num_usable_blocks=63, max_model_len=1024, overhead_s=1.0)
    ran = run(arrivals([(0.0, 2000, 1), (0.0, 10, 1), (5.5, 10, 1)]), tight, max_concurrency=1)
    assert ran.requests.arrived_at_s.tolist() == [0.0, 0.0, 5.5]
    assert ran.requests.finished_at_s.tolist() == [0.0, 1.0, 6.5]
    assert ran.plane.fleet.clock[0].num_held == 0


def test_async_scheduling_sees_an_arrival_one_step_late() -> None:
    """Step 1 is planned when step 0 starts, before the arrival at 0.5; so the arrival is in step 2, planned at 1."""
    ran = run(arrivals([(0.0, 10, 3), (0.5, 10, 1)]), engine(overhead_s=1.0, async_scheduling=1))
    assert ran.requests.scheduled_at_s.tolist() == pytest.approx([0.0, 1.0])
    assert ran.requests.first_token_at_s.tolist() == pytest.approx([1.0, 3.0])
    assert ran.requests.finished_at_s.tolist() == pytest.approx([3.0, 3.0])


def test_preemption_keeps_tokens_sent_and_shows_as_one_long_gap() -> None:
    """Blocks of 4, four in all, two requests with prompts of 4: both grow to two blocks; the third block is not there.

    Steps: 0 prefills both (computed 4 each, 2 blocks). Step 1 takes a block each (4 used), computed 5. At step 5 both
    are at 8 computed tokens and need another block: none is free, so the second is preempted with 5 tokens sent. The
    first goes on alone to its 8th token (step 7). In step 8 the second is back: 4 + 5 tokens are computed again, which
    yields its 6th token; 7th and 8th follow in steps 9 and 10.
    """
    ran = run(arrivals([(0.0, 4, 8), (0.0, 4, 8)]), engine(block_size=4, num_usable_blocks=4, overhead_s=1.0))
    first, second = ran.requests
    assert first.finished_at_s == pytest.approx(8.0)
    assert second.num_preemptions == 1
    assert second.first_token_at_s == pytest.approx(1.0)
    assert second.finished_at_s == pytest.approx(11.0)
    fleet = ran.plane.fleet
    assert fleet.itl_counts.sum() == 14  # 2 x 7 gaps
    assert fleet.itl_sums[0, 2] == pytest.approx(4.0)  # from the end of step 4 to the end of step 8
    assert fleet.replicas.num_delivered_tokens.sum() == 16
    assert (ran.requests.num_generated_tokens == 8).all()


def test_a_request_that_can_never_fit_is_refused_and_the_queue_moves_on() -> None:
    """Pool of 1,008 tokens, prompt 1,000, 24 to come: 1,023 need KV. It is refused at the door; the next is served."""
    tight = engine(block_size=16, num_usable_blocks=63, max_model_len=1024)
    ran = run(arrivals([(0.0, 1000, 24), (0.1, 100, 5)]), tight)
    assert ran.requests.status.tolist() == [2, 1]
    assert ran.requests.reason.tolist() == [2, 0]
    assert np.isnan(ran.requests.routed_at_s[0])


def test_a_prompt_over_max_model_len_is_refused() -> None:
    ran = run(arrivals([(0.0, 1000, 25)]), engine(max_model_len=1024))
    assert ran.requests.status.tolist() == [2]
    assert ran.requests.reason.tolist() == [1]
