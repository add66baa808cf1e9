"""How tools like ours failed their users where a whole fleet is needed to see it, and what is right."""

import itertools
import time
from typing import Any

import numpy as np
import pytest

from autoscalers.queue_target import QueueTarget
from experiments.contracts.fleets import Ran, Script, arrivals, engine, run
from sim.metrics import e2e_s, queue_s, ttft_s
from sim.pool import Machine
from sim.records import DRAIN_TIMEOUT, FAILED, FINISHED, REPLICA_FAILED

STEP_OF_A_SECOND = engine(overhead_s=1.0)


def held_at_once(machines: list[Machine]) -> int:
    """The most machines that were held at one instant; one released at an instant makes room for one requested then."""
    changes = [(machine.requested_at_s, 1) for machine in machines]
    changes += [(machine.released_at_s, -1) for machine in machines if machine.released_at_s is not None]
    return max(itertools.accumulate(change for _, change in sorted(changes)))


# Autoscaling


def test_a_replica_of_two_gpus_is_one_replica_and_two_gpus_on_the_bill() -> None:
    """One replica for 60 s: counted once, and 2 GPUs x 60 s = 1/30 GPU-hour, at $1 an hour."""
    ran = run(arrivals([(0.0, 10, 1)]), replicas=1, num_gpus=2, ends_at_s=60.0)
    [row] = ran.intervals
    assert (row["num_ready"], row["num_starting"], row["num_draining"]) == (1, 0, 0)
    assert row["gpu_hours"] == pytest.approx(2 * 60 / 3600)
    assert row["dollars"] == pytest.approx(2 * 60 / 3600)


def removed_at_10_s(drain_timeout_s: float, *, requeue: bool, decisions: list[int]) -> Ran:
    """30 tokens at 1 s each; the decisions are taken each 10 s, and the second lets the replica go."""
    return run(
        arrivals([(0.0, 10, 30)]),
        STEP_OF_A_SECOND,
        max_replicas=2,
        autoscaler=Script(decisions),
        interval_s=10.0,
        stages=lambda: [],
        drain_timeout_s=drain_timeout_s,
        requeue_on_timeout=requeue,
    )


def test_a_draining_replica_finishes_what_it_runs() -> None:
    """Removal at 10 s, a generation of 30 s, time enough: it finishes at 30 s, and the machine is held until then."""
    ran = removed_at_10_s(600.0, requeue=True, decisions=[1, 0])
    assert ran.requests.finished_at_s[0] == 30.0
    machine = ran.simulation.machines[0]
    assert (machine.draining_at_s, machine.released_at_s, machine.reason) == (10.0, 30.0, "scaled down")


def test_what_the_grace_does_not_cover_is_counted_as_failed() -> None:
    """Grace 5 s: at 15 s the 15th token is still on the device, so 14 came out. The request is failed with a reason."""
    ran = removed_at_10_s(5.0, requeue=False, decisions=[1, 0])
    request, machine = ran.requests[0], ran.simulation.machines[0]
    assert (request.status, request.reason, request.num_generated_tokens) == (FAILED, DRAIN_TIMEOUT, 14)
    assert (request.last_token_at_s, request.finished_at_s) == (14.0, 15.0)
    assert (machine.released_at_s, machine.num_evicted, machine.reason) == (15.0, 1, "drain timeout")


def failing_at_5_s(*, requeue: bool) -> Ran:
    """30 tokens at 1 s each; the first machine fails at 5.5 s, the second never, and decisions are taken each 10 s."""
    lives_s = iter([5.5, 1e9])
    return run(
        arrivals([(0.0, 10, 30)]),
        STEP_OF_A_SECOND,
        max_replicas=1,
        autoscaler=Script([1]),
        interval_s=10.0,
        stages=lambda: [],
        time_to_failure_s=lambda: next(lives_s),
        requeue_on_failure=requeue,
    )


def test_a_replica_that_fails_takes_its_requests_with_it() -> None:
    """At 5.5 s the sixth token is on the device, so five came out; the machine's bill ends there."""
    ran = failing_at_5_s(requeue=False)
    request, machine = ran.requests[0], ran.simulation.machines[0]
    assert (request.status, request.reason, request.num_generated_tokens) == (FAILED, REPLICA_FAILED, 5)
    assert (request.last_token_at_s, request.finished_at_s) == (5.0, 5.5)
    assert (machine.released_at_s, machine.num_evicted, machine.reason) == (5.5, 1, "failed")


def test_the_requests_of_a_replica_that_fails_can_go_on_elsewhere() -> None:
    """The autoscaler finds none ready at 10 s; the next machine recomputes 10 + 5 tokens in one step and goes on."""
    ran = failing_at_5_s(requeue=True)
    request = ran.requests[0]
    assert (request.status, request.first_token_at_s, request.finished_at_s) == (FINISHED, 1.0, 10.0 + 25)
    assert [machine.reason for machine in ran.simulation.machines] == ["failed", "end of run"]


def test_what_the_grace_does_not_cover_can_go_on_elsewhere() -> None:
    """As before, but back to the router: it waits for the replica of 20 s, which recomputes 10 + 14 tokens in one step.

    Token 15 comes at 21 s, 7 s after the 14th, and the other 15 a second apart.
    """
    ran = removed_at_10_s(5.0, requeue=True, decisions=[1, 0, 1])
    request = ran.requests[0]
    assert (request.status, request.machine, request.num_generated_tokens) == (FINISHED, 1, 30)
    assert (request.routed_at_s, request.first_token_at_s, request.finished_at_s) == (0.0, 1.0, 36.0)
    assert ran.plane.fleet.itl_sums[0, 2] == 7.0


def test_replicas_that_never_start_are_cancelled_first_and_do_not_block_scaling_down() -> None:
    """Machines asked for at 10 s never come. At 20 s one replica is enough: the two are cancelled, the ready one stays."""
    ran = run(
        arrivals([(0.0, 10, 1)]),
        max_replicas=4,
        autoscaler=Script([1, 3, 1]),
        interval_s=10.0,
        stages=lambda: [("provisioned_at_s", 1e9)],
        ends_at_s=40.0,
    )
    ready, *stuck = ran.simulation.machines
    assert (ready.draining_at_s, ready.released_at_s) == (None, 40.0)
    assert [(m.requested_at_s, m.released_at_s, m.reason) for m in stuck] == [(10.0, 20.0, "cancelled")] * 2


def test_the_cap_holds_at_every_instant_also_while_machines_drain() -> None:
    """Of 32 machines 24 drain from 10 s to 100 s, when their requests end; from 20 s on the autoscaler wants 50.

    Draining machines hold their GPUs: nothing can be added before 100 s, 24 can at the tick after, and never more.
    """
    ran = run(
        arrivals([(0.0, 10, 100)] * 64),
        STEP_OF_A_SECOND,
        router="round_robin",
        max_replicas=32,
        autoscaler=Script([32, 8, 50]),
        interval_s=10.0,
        ends_at_s=150.0,
        timeline_interval_s=10.0,
    )
    held = [row["num_ready"] + row["num_starting"] + row["num_draining"] for row in ran.intervals]
    assert max(held) == 32
    assert held_at_once(ran.simulation.machines) == 32
    assert [row["num_draining"] for row in ran.intervals if row["end_s"] == 50.0] == [24]
    later = [machine.requested_at_s for machine in ran.simulation.machines[32:]]
    assert len(later) == 24
    assert min(later) >= 100.0


def test_every_gpu_second_on_the_bill_belongs_to_a_machine_with_its_stages() -> None:
    """A spike: one replica, then five. Four machines pass their stages, 2 + 3 + 4 s; two of them are let go at 20 s."""
    stages = [("provisioned_at_s", 2.0), ("weights_loaded_at_s", 3.0), ("ready_at_s", 4.0)]
    ran = run(
        arrivals([(0.0, 10, 1)]),
        max_replicas=5,
        autoscaler=Script([1, 5, 3]),
        interval_s=10.0,
        stages=lambda: stages,
        ends_at_s=60.0,
        timeline_interval_s=7.0,
    )
    machines = ran.simulation.machines
    assert len(machines) == 5
    for m in machines[1:]:
        passed = (m.requested_at_s, m.provisioned_at_s, m.weights_loaded_at_s, m.ready_at_s)
        assert passed == (10.0, 12.0, 15.0, 19.0)
    lifetimes_s = [m.released_at_s - m.requested_at_s for m in machines if m.released_at_s is not None]
    assert sorted(lifetimes_s) == [10.0, 10.0, 50.0, 50.0, 60.0]
    assert sum(row["gpu_hours"] for row in ran.intervals) == pytest.approx(sum(lifetimes_s) / 3600)


@pytest.mark.parametrize(("warm_start", "ready_at_s"), [(True, 0.0), (False, 240.0)])
def test_whether_the_first_replicas_pay_a_cold_start_is_a_choice(warm_start: bool, ready_at_s: float) -> None:
    """Four replicas at the start, loading takes 240 s; billed from 0 either way."""
    ran = run(
        arrivals([(0.0, 10, 1)]),
        replicas=4,
        warm_start=warm_start,
        stages=lambda: [("ready_at_s", 240.0)],
        cold_start_s=240.0,
    )
    assert [machine.ready_at_s for machine in ran.simulation.machines] == [ready_at_s] * 4
    assert [machine.requested_at_s for machine in ran.simulation.machines] == [0.0] * 4
    assert ran.requests.scheduled_at_s[0] == ready_at_s


def test_a_pool_at_zero_lets_requests_wait_and_serves_them_when_a_replica_comes() -> None:
    """Nothing runs until the request of 100 s; the tick at 105 s sees it wait, 60 s later its replica is there.

    The pool goes back to zero once it is idle, and the request of 400 s pays the same: 405 + 60 s.
    """
    scaler = QueueTarget(
        min_replicas=0,
        max_replicas=4,
        warm_buffer=0,
        replica_token_capacity=1000.0,
        scale_down_stabilization_s=0.0,
    )
    ran = run(
        arrivals([(100.0, 10, 5), (400.0, 10, 5)]),
        STEP_OF_A_SECOND,
        autoscaler=scaler.start(lambda start_s, end_s: 0.0, seed=1),
        max_replicas=4,
        timeline_interval_s=15.0,
    )
    assert ran.requests.routed_at_s.tolist() == [165.0, 465.0]
    assert ran.requests.finished_at_s.tolist() == [170.0, 470.0]
    assert [machine.requested_at_s for machine in ran.simulation.machines] == [105.0, 405.0]
    assert [row["num_waiting"] for row in ran.intervals if row["end_s"] == 150.0] == [1]
    assert [row["num_ready"] + row["num_starting"] for row in ran.intervals if row["end_s"] == 300.0] == [0]


# Routing


def test_a_queued_request_stays_with_its_replica_and_the_next_one_takes_the_new_one() -> None:
    """Early binding, as with vLLM's own balancer: one sequence of 100 s at a time, a second replica at 30 s.

    The second request waits for the first, 100 s, although the new replica idles; the third, at 31 s, gets it at once.
    """
    ran = run(
        arrivals([(0.0, 10, 1), (0.0, 10, 1), (31.0, 10, 1)]),
        engine(max_num_seqs=1, overhead_s=100.0),
        max_replicas=2,
        autoscaler=Script([1, 2]),
        interval_s=30.0,
        stages=lambda: [],
    )
    assert ran.requests.routed_at_s.tolist() == [0.0, 0.0, 31.0]
    assert ran.requests.machine.tolist() == [0, 0, 1]
    assert ran.requests.scheduled_at_s.tolist() == [0.0, 100.0, 31.0]


def test_a_request_that_found_no_replica_binds_late() -> None:
    """No replica is ready before 60 s: nothing is bound until then, and two replicas then share the four."""
    ran = run(arrivals([(0.0, 10, 5)] * 4), replicas=2, warm_start=False)
    assert ran.requests.routed_at_s.tolist() == [60.0] * 4
    assert np.bincount(ran.requests.machine)[0] >= 1


# The engine under pressure


def test_preemption_does_not_cascade() -> None:
    """125 blocks, 24 a request, twice the load that can be sustained: five run at a time, 256 steps each.

    Prompts fit in one step, so every step and every admission yields a token. So there are at most as many steps, and at
    most as many preemptions, as tokens; and an arrival makes two events at most (it and a wake-up).
    """
    num_requests, num_output_tokens = 200, 256
    gap_s = 0.01 * num_output_tokens / (2 * 125 / 24)
    thrashing = engine(block_size=16, num_usable_blocks=125, scheduler_reserve_full_isl=0)
    ran = run(arrivals([(gap_s * i, 128, num_output_tokens) for i in range(num_requests)]), thrashing)
    fleet, num_tokens = ran.plane.fleet, num_requests * num_output_tokens
    assert (ran.requests.status == FINISHED).all()
    assert 0 < fleet.replicas.num_preemptions[0] <= num_tokens
    assert fleet.replicas.num_steps[0] <= num_tokens
    assert fleet.clock[0].num_events <= num_tokens + 2 * num_requests


def four_long_prompts_and_a_fifth(scheduler_reserve_full_isl: int) -> Ran:
    """Four prompts of 100 k tokens fill 90 % of the pool; the fifth comes when they decode. A token computed costs 0.1 ms."""
    num_blocks_each = 100_000 // 16
    pool = engine(
        num_usable_blocks=int(4 * num_blocks_each / 0.9),
        scheduler_reserve_full_isl=scheduler_reserve_full_isl,
        flops_per_token=1.0,
        flops_per_s=10_000.0,
    )
    return run(arrivals([(0.0, 100_000, 300)] * 4 + [(42.0, 100_000, 10)]), pool)


def test_reserving_the_whole_prompt_keeps_the_fifth_out_until_there_is_room() -> None:
    """The default: nobody is preempted, and the fifth starts when the first of the four is done."""
    ran = four_long_prompts_and_a_fifth(scheduler_reserve_full_isl=1)
    assert ran.requests.num_preemptions.sum() == 0
    assert ran.requests.scheduled_at_s[4] == ran.requests.finished_at_s[:4].min()


def test_admitting_on_the_first_chunk_thrashes() -> None:
    """What is free, 2,777 blocks = 44 k tokens, takes five chunks of 8 k; the sixth preempts the fifth request itself.

    Such a round is five steps of 0.83 s and one of 0.01 s, six tokens for each of the four; the first of them still asks for
    about 115, so there are 19 rounds. It is done after 80 s instead of 1.2 s, and the fifth gains nothing by it.
    """
    kept_out, thrashing = (four_long_prompts_and_a_fifth(knob) for knob in (1, 0))
    assert thrashing.requests.num_preemptions[:4].sum() == 0
    assert 18 <= thrashing.requests.num_preemptions[4] <= 20
    first_done_s = [float(ran.requests.finished_at_s[:4].min()) - 42.0 for ran in (kept_out, thrashing)]
    assert first_done_s == pytest.approx([1.2, 80.0], rel=0.05)
    assert ttft_s(thrashing.requests)[4] > ttft_s(kept_out.requests)[4]


def test_the_time_that_python_takes_is_not_simulated_time() -> None:
    """The same requests, with a router that takes a millisecond of ours and with one that takes none."""

    def slow(view: Any) -> int:
        time.sleep(0.001)
        return int(view.candidates[0])

    rows = arrivals([(0.01 * i, 100, 10) for i in range(50)])
    quick = run(rows, router=lambda view: int(view.candidates[0]))
    assert quick.requests.tolist() == run(rows, router=slow).requests.tolist()


# Metrics


def test_end_to_end_includes_what_a_decode_waits_after_its_preemption() -> None:
    """1,024 requests of 4,096 + 2,048 tokens at once, in a cache for about 500 prompts; every step lasts 20 ms.

    A request that is never preempted gets its tokens 20 ms apart, exactly. One preempted k times while it decoded misses at
    least the step that preempted it, each time, and recomputes; what it has sent stays sent, so TTFT + gaps = E2E.
    """
    crowded = engine(num_usable_blocks=500 * 4096 // 16, max_num_seqs=1024, overhead_s=0.02)
    ran = run(arrivals([(0.0, 4096, 2048)] * 1024), crowded)
    requests = ran.requests
    after_first_s = e2e_s(requests) - ttft_s(requests)
    uninterrupted_s = 2047 * 0.02
    was_preempted = requests.num_preemptions > 0
    assert was_preempted.any()
    assert not was_preempted.all()
    np.testing.assert_allclose(after_first_s[~was_preempted], uninterrupted_s)
    lost_s = after_first_s - uninterrupted_s
    assert (lost_s[was_preempted] > 0.02 * requests.num_preemptions[was_preempted] - 1e-6).all()
    assert ran.plane.fleet.itl_counts.sum() == 1024 * 2047
    assert ran.plane.fleet.itl_sums[0, 0] == pytest.approx(after_first_s.sum())


def test_a_preempted_prefill_lengthens_the_time_to_first_token() -> None:
    """The fifth of the thrashing prompts never had a token to keep: its wait is all TTFT, its nine gaps are plain ones."""
    ran = four_long_prompts_and_a_fifth(scheduler_reserve_full_isl=0)
    fifth = ran.requests[4]
    assert fifth.num_preemptions > 0
    assert fifth.first_token_at_s > ran.requests.finished_at_s[:4].min()
    assert ran.plane.fleet.itl_counts.sum() == 4 * 299 + 9


def test_the_wait_for_a_slot_is_part_of_the_latency_and_is_reported() -> None:
    """8 requests at 10/s, one at a time, 0.5 s each: the last arrives at 0.7 s and is done at 4.0 s.

    Worst TTFT 3.3 s from arrival, 0.5 s from the start of its service; the queue time says the difference.
    """
    ran = run(arrivals([(0.1 * i, 10, 1) for i in range(8)]), engine(max_num_seqs=1, overhead_s=0.5))
    assert ttft_s(ran.requests).max() == pytest.approx(3.3)
    assert (ttft_s(ran.requests) - queue_s(ran.requests)).tolist() == pytest.approx([0.5] * 8)
    assert queue_s(ran.requests)[7] == pytest.approx(2.8)


# Tokens on the device of a machine that goes


def test_a_token_lost_with_its_machine_is_not_the_requests_last_token() -> None:
    """Blocks of one token, five of them; async; two requests; the machine drains from 1 s and is taken at 2 s.

    Step 0 (0 to 1 s) yields a token each. Step 2 is planned when step 1 starts, at 1 s: 2 x 2 blocks are held and two more
    are needed, so the second request is preempted with its token of step 1 on the device. At 2 s, before that step's end
    counts, the machine goes: one token each came out, at 1 s.
    """
    ran = run(
        arrivals([(0.0, 1, 4)] * 2),
        engine(block_size=1, num_usable_blocks=5, overhead_s=1.0, async_scheduling=1),
        autoscaler=Script([1, 0]),
        interval_s=1.0,
        drain_timeout_s=1.0,
        requeue_on_timeout=False,
    )
    assert ran.requests.num_preemptions.tolist() == [0, 1]
    assert ran.requests.num_generated_tokens.tolist() == [1, 1]
    assert ran.requests.last_token_at_s.tolist() == [1.0, 1.0]


def test_the_last_token_but_one_of_a_preempted_request_keeps_its_instant() -> None:
    """Blocks of one token, six of them; async; the second request asks for three tokens; its machine is taken at 2.5 s.

    Its third and last token is on the device in step 2 (2 to 3 s). Step 3, planned at 2 s, needs a block for the first
    request and takes it from the second. When the machine goes, tokens one and two came out, at 1 s and 2 s.
    """
    ran = run(
        arrivals([(0.0, 1, 5), (0.0, 1, 3)]),
        engine(block_size=1, num_usable_blocks=6, overhead_s=1.0, async_scheduling=1),
        autoscaler=Script([1, 0]),
        interval_s=1.0,
        drain_timeout_s=1.5,
        requeue_on_timeout=False,
    )
    assert ran.requests.num_preemptions.tolist() == [0, 1]
    assert ran.requests.num_generated_tokens.tolist() == [2, 2]
    assert ran.requests.last_token_at_s.tolist() == [2.0, 2.0]
