"""Autoscalers at work on a fleet: what counts as load, and what a pool may do while it owes work."""

from typing import Any

import numpy as np
import pytest
import simpy

import routers
from autoscalers import Autoscaler, Fixed, Forecast, Policy, QueueTarget, Wanted
from experiments.contracts.fleets import Constant, Ran, Script, arrivals, classes, engine, run
from replicas.plane import DataPlane
from sim.metrics import NUM_ITL_BINS
from sim.pool import Pool, PoolSpec
from sim.records import FINISHED
from sim.views import PoolView

STEP_OF_A_SECOND = engine(overhead_s=1.0)


class Watched:
    """An autoscaler at work, and what it saw and decided at every tick."""

    def __init__(self, scaler: Autoscaler) -> None:
        self.controller = scaler.start(lambda start_s, end_s: 0.0, seed=1)
        self.views: list[PoolView] = []
        self.desired: list[int] = []

    def decide(self, view: PoolView) -> Any:
        decision = self.controller.decide(view)
        self.views.append(view)
        self.desired.append(decision.desired)
        return decision


class Never(Autoscaler):
    """A policy that wants no replica, whatever it sees."""

    def policy(self, known_rate: Any, seed: int) -> Policy:
        return lambda view: Wanted(0.0, "never")


# --- a pool that owes work


def test_a_machine_that_a_request_waits_for_is_not_cancelled_when_the_forecast_falls_to_zero() -> None:
    """A request at 10 s, a cold start of 700 s: the rate of the last minute is 0 again long before the machine is there."""
    scaler = Forecast(forecaster="naive", interval_s=15.0, min_replicas=0)
    ran = run(
        arrivals([(10.0, 10, 1)]),
        autoscaler=Watched(scaler),
        max_replicas=4,
        stages=lambda: [("ready_at_s", 700.0)],
        cold_start_s=700.0,
        max_drain_s=3600.0,
    )
    assert ran.requests.status[0] == FINISHED
    assert ran.requests.finished_at_s[0] == pytest.approx(715.01)
    assert len(ran.simulation.machines) == 1


def test_a_policy_of_ones_own_cannot_leave_a_request_without_a_replica() -> None:
    watched = Watched(Never(min_replicas=0))
    ran = run(arrivals([(100.0, 10, 5)]), STEP_OF_A_SECOND, autoscaler=watched, max_replicas=2, ends_at_s=600.0)
    assert ran.requests.finished_at_s[0] == 170.0  # seen at 105 s, ready at 165 s
    assert set(watched.desired[: 105 // 15]) == {0}
    assert watched.desired[-1] == 0  # idle again


def test_the_last_replica_is_not_drained_while_it_serves() -> None:
    """100 tokens at a second each: it goes when they are done, and is not let go and asked for anew."""
    watched = Watched(Never(min_replicas=0, initial_replicas=1, scale_down_stabilization_s=0.0))
    ran = run(arrivals([(0.0, 10, 100)]), STEP_OF_A_SECOND, autoscaler=watched, drain_timeout_s=5.0, ends_at_s=200.0)
    [machine] = ran.simulation.machines
    assert (machine.draining_at_s, machine.num_evicted) == (105.0, 0)
    assert ran.requests.finished_at_s[0] == 100.0


def test_a_fixed_pool_of_none_stays_at_none() -> None:
    ran = run(arrivals([(0.0, 10, 1)]), autoscaler=Watched(Fixed(replicas=0)), max_replicas=1, max_drain_s=100.0)
    assert ran.simulation.machines == []


# --- what counts as load


def test_tokens_on_a_draining_machine_do_not_bring_it_back() -> None:
    """Two replicas with four long answers each. At 15 s all eight would fit on one, by 105 s their tokens would no more."""
    scaler = QueueTarget(
        warm_buffer=0,
        replica_token_capacity=10_000.0,
        target_utilization=1.0,
        scale_down_stabilization_s=0.0,
        initial_replicas=2,
    )
    watched = Watched(scaler)
    ran = run(
        arrivals([(0.0, 1200, 200)] * 8),
        STEP_OF_A_SECOND,
        router="round_robin",
        autoscaler=watched,
        max_replicas=2,
        stages=lambda: [("ready_at_s", 1.0)],
        timeline_interval_s=15.0,
    )
    assert watched.desired[0] == 2
    assert set(watched.desired[1:]) == {1}
    assert len(ran.simulation.machines) == 2


def one_of_two_drains() -> tuple[Watched, Ran]:
    watched = Watched(Fixed(replicas=1, initial_replicas=2, max_replicas=2))
    rows = arrivals([(0.0, 100, 60)] * 5)
    few = engine(overhead_s=1.0, max_num_seqs=1)
    return watched, run(rows, few, router="round_robin", autoscaler=watched, max_replicas=2, timeline_interval_s=20.0)


def test_a_policy_sees_what_ready_replicas_hold_and_the_timeline_all_there_is() -> None:
    """Three on one machine and two on the other, all but one of each waiting; from 15 s on the other drains."""
    watched, ran = one_of_two_drains()
    seen = watched.views[2]
    assert (seen.num_ready, seen.num_draining, seen.num_waiting, seen.num_running) == (1, 1, 2, 1)
    assert (seen.waiting_tokens, seen.running_tokens) == (200, 100 + 29)  # token 30 comes after the control event
    row = ran.intervals[1]  # at 40 s
    assert (row["num_draining"], row["num_waiting"], row["num_running"]) == (1, 3, 2)


def test_kv_usage_is_the_mean_over_ready_replicas() -> None:
    """One of two replicas holds 100 + 14 tokens, eight blocks of a hundred, when token 15 is about to come."""
    watched = Watched(Fixed(replicas=2))
    few = engine(overhead_s=1.0, num_usable_blocks=100)
    run(arrivals([(0.0, 100, 30)]), few, autoscaler=watched, max_replicas=2)
    assert watched.views[1].kv_cache_usage == pytest.approx(0.08 / 2)


# --- a cold start's own queue


def five_per_second(scaler: QueueTarget, output_tokens: int = 80) -> Watched:
    """5 requests/s for 15 minutes; a replica runs ten at a time, 8 s each: 1.25/s, so that four serve them."""
    watched = Watched(scaler)
    ten_at_a_time = engine(max_num_seqs=10, overhead_s=0.1, max_num_batched_tokens=10**6)
    run(
        arrivals([(i / 5, 1000, output_tokens) for i in range(5 * 900)]),
        ten_at_a_time,
        autoscaler=watched,
        max_replicas=64,
        replica_requests_per_s=1.25,
        replica_tokens=10 * 1040.0,
        cold_start_s=60.0,
    )
    return watched


@pytest.mark.parametrize("warm_buffer", [0, 2])
def test_the_queue_of_a_cold_start_is_asked_for_once_not_at_every_tick(warm_buffer: int) -> None:
    """The first tick asks for the queue of its 15 s. Those replicas outdo the arrivals, so what comes meanwhile is theirs."""
    watched = five_per_second(QueueTarget(warm_buffer=warm_buffer))
    at_15_s, *while_they_start = watched.desired[1:5]
    assert while_they_start == [at_15_s] * 3
    assert max(watched.desired) <= at_15_s + 2
    assert watched.desired[-1] == 6 + warm_buffer  # 5 / (0.7 x 1.25), the steady need


def test_a_queue_that_those_asked_for_cannot_work_off_still_asks_for_more() -> None:
    """One replica at a time may be asked for at first; four are not enough for 5 requests/s at 70 %."""
    watched = five_per_second(QueueTarget(warm_buffer=0, max_step_up=1))
    assert watched.desired[:6] == [1, 2, 3, 4, 5, 6]


def test_a_queue_calls_none_off_that_was_asked_for_it() -> None:
    watched = five_per_second(QueueTarget(warm_buffer=0, scale_down_stabilization_s=0.0, scale_down_tolerance=0.0))
    has_queue = [view.num_waiting > 0 for view in watched.views]
    shrinks = [after < before for before, after in zip(watched.desired, watched.desired[1:], strict=False)]
    first_shrink = shrinks.index(True)
    assert max(watched.desired[: first_shrink + 1]) == watched.desired[first_shrink]
    assert first_shrink * 15.0 > 120.0
    assert has_queue[5]


# --- who goes first


def test_the_youngest_starting_machine_is_cancelled_first() -> None:
    """Asked for at 10 s and at 20 s; at 30 s one is too many: the one of 10 s has half its cold start behind it."""
    ran = run(
        arrivals([(0.0, 10, 1)]),
        max_replicas=3,
        autoscaler=Script([1, 2, 3, 2]),
        interval_s=10.0,
        stages=lambda: [("ready_at_s", 40.0)],
        cold_start_s=40.0,
        ends_at_s=60.0,
    )
    first, older, younger = ran.simulation.machines
    assert (older.ready_at_s, older.reason) == (50.0, "end of run")
    assert (younger.released_at_s, younger.reason) == (30.0, "cancelled")
    assert first.ready_at_s == 0.0


def test_the_ready_replica_with_the_fewest_requests_is_let_go_and_of_equals_the_youngest() -> None:
    idle = run(arrivals([(0.0, 10, 1)]), max_replicas=3, autoscaler=Script([3, 2]), interval_s=10.0, ends_at_s=30.0)
    assert [machine.draining_at_s for machine in idle.simulation.machines] == [None, None, 10.0]
    busy = run(
        arrivals([(0.0, 10, 100)] * 2 + [(0.0, 10, 1)] + [(0.0, 10, 100)] * 2),
        STEP_OF_A_SECOND,
        router="round_robin",
        max_replicas=3,
        autoscaler=Script([3, 2]),
        interval_s=10.0,
    )
    assert [machine.draining_at_s for machine in busy.simulation.machines] == [None, None, 10.0]
    two = run(
        arrivals([(0.0, 10, 100), (0.0, 10, 1)]),
        STEP_OF_A_SECOND,
        router="round_robin",
        max_replicas=3,
        autoscaler=Script([2, 1]),
        interval_s=10.0,
    )
    assert [machine.draining_at_s for machine in two.simulation.machines] == [None, 10.0]


def sent_to(*slots: int) -> Any:
    """A router in Python that sends the requests to these slots, one after the other."""
    turns = iter(slots)
    return lambda view: next(turns)


def test_requests_are_counted_as_the_router_counts_them_however_old_its_view() -> None:
    """The older machine is idle, the younger busy; the scrape of 100 s has shown neither."""
    ran = run(
        arrivals([(0.0, 10, 1), (0.0, 10, 100)]),
        STEP_OF_A_SECOND,
        router=sent_to(0, 1),
        scrape_interval_s=100.0,
        max_replicas=2,
        autoscaler=Script([2, 1]),
        interval_s=10.0,
    )
    assert [machine.draining_at_s for machine in ran.simulation.machines] == [10.0, None]


def test_the_requests_of_all_ranks_of_a_machine_count() -> None:
    """1 + 3 on the ranks of the first machine, 2 + 0 on those of the second, which goes."""
    ran = run(
        arrivals([(0.0, 10, 100)] * 6),
        engine(overhead_s=1.0, data_parallel_size=2),
        router=sent_to(0, 1, 1, 1, 2, 2),
        num_ranks=2,
        max_replicas=2,
        autoscaler=Script([2, 1]),
        interval_s=10.0,
    )
    assert [machine.draining_at_s for machine in ran.simulation.machines] == [None, 10.0]


def test_a_machine_takes_the_lowest_slot_that_is_free() -> None:
    """Of three machines the younger two go, the youngest first; the next two take their slots from the lower one up."""
    ran = run(arrivals([(0.0, 10, 1)]), max_replicas=3, autoscaler=Script([3, 1, 3]), interval_s=10.0, ends_at_s=25.0)
    assert [machine.slot for machine in ran.simulation.machines] == [0, 1, 2, 1, 2]


def test_a_machine_that_has_drained_does_not_take_another_with_it() -> None:
    """Two drain from 10 s: one is done at 20 s, the other at 40 s."""
    ran = run(
        arrivals([(0.0, 10, 20), (0.0, 10, 40), (0.0, 10, 50)]),
        STEP_OF_A_SECOND,
        router=sent_to(0, 1, 2),
        max_replicas=3,
        autoscaler=Script([3, 1]),
        interval_s=10.0,
        ends_at_s=60.0,
    )
    ends = {machine.released_at_s: (machine.reason, machine.num_evicted) for machine in ran.simulation.machines}
    assert ends == {40.0: ("scaled down", 0), 50.0: ("scaled down", 0), 60.0: ("end of run", 0)}


@pytest.mark.parametrize(("grammar_s", "last_s"), [(0.0, 40.0), (30.0, 70.0)])
def test_a_machine_drains_until_the_last_of_its_ranks_is_empty(grammar_s: float, last_s: float) -> None:
    """One rank is done at 20 s; the other runs to 40 s, or waits for a grammar until 30 s, with an idle device."""
    ran = run(
        arrivals([(0.0, 10, 20, 0), (0.0, 10, 40, 1)]),
        engine(overhead_s=1.0, data_parallel_size=2),
        router=sent_to(0, 1),
        classes=classes((0, 0, 0, 0.0), (0, 0, 0, grammar_s)),
        num_ranks=2,
        max_replicas=1,
        autoscaler=Script([1, 0]),
        interval_s=10.0,
        ends_at_s=100.0,
    )
    [machine] = ran.simulation.machines
    assert (machine.released_at_s, machine.reason, machine.num_evicted) == (last_s, "scaled down", 0)


def test_ranks_that_step_together_drain_together() -> None:
    """Both ranks end their last step at the same time, and are told of once: the machine goes then, not at the timeout."""
    ran = run(
        arrivals([(0.0, 10, 20), (0.0, 10, 20)]),
        engine(overhead_s=1.0, data_parallel_size=2, num_together=2),
        router="round_robin",
        num_ranks=2,
        max_replicas=1,
        autoscaler=Script([1, 0]),
        interval_s=10.0,
        drain_timeout_s=600.0,
        ends_at_s=100.0,
    )
    [machine] = ran.simulation.machines
    assert set(ran.requests.replica.tolist()) == {0, 1}
    assert (machine.draining_at_s, machine.released_at_s, machine.reason) == (10.0, 20.0, "scaled down")


# --- what a pool is shown of its arrivals


def two_pools(rows: Any, max_model_lens: tuple[int, int], until_s: float) -> tuple[DataPlane, list[Pool]]:
    """Two pools without replicas, and what has come by then."""
    engines = np.concatenate([engine(max_model_len=n) for n in max_model_lens]).view(np.recarray)
    plane = DataPlane(engines, [1, 1], NUM_ITL_BINS, 0.0, routers.start(routers.KINDS["random"], 2, seed=1))
    env = simpy.Environment()
    specs = [
        PoolSpec(
            name=name,
            first_slot=index,
            max_replicas=1,
            num_gpus=1,
            price_per_gpu_hour=None,
            interval_s=15.0,
            stages=lambda: [],
            cold_start_s=0.0,
            warm_start=True,
            drain_timeout_s=1.0,
            requeue_on_timeout=True,
            replica_requests_per_s=1.0,
            replica_tokens=1.0,
            autoscaler=Constant(1),
        )
        for index, name in enumerate(["short", "long"])
    ]
    pools = [Pool(spec, index, env, plane, []) for index, spec in enumerate(specs)]
    plane.load(rows)
    plane.load(rows[:0])
    plane.run_until(until_s)
    return plane, pools


def test_requests_that_no_pool_could_take_yet_have_arrived_at_those_that_could_serve_them() -> None:
    """Three short prompts, one long one, and one that is too long for both and is refused."""
    rows = arrivals([(0.0, 10, 1)] * 3 + [(0.5, 500, 1), (0.6, 5000, 1)])
    plane, (short, long) = two_pools(rows, (100, 1000), until_s=1.0)
    assert [pool.view().num_arrived for pool in (short, long)] == [3, 4]
    assert [pool.view().num_waiting for pool in (short, long)] == [3, 4]
    assert [pool.view().waiting_tokens for pool in (short, long)] == [30, 530]
    plane.open(1, 0, 1.0)
    assert [pool.view().num_arrived for pool in (short, long)] == [0, 4]  # the long one's replica took them all


def test_a_request_that_can_never_be_served_is_no_demand() -> None:
    rows = arrivals([(0.0, 10, 1), (1.0, 5000, 1), (2.0, 10, 1)])
    watched = Watched(QueueTarget())
    run(rows, engine(max_model_len=1000), autoscaler=watched, max_replicas=64, ends_at_s=30.0)
    assert [view.num_arrived for view in watched.views] == [0, 2, 2]


def test_a_request_that_a_full_queue_turned_away_is_demand() -> None:
    rows = arrivals([(0.0, 10, 20)] * 3)
    watched = Watched(QueueTarget())
    full = engine(overhead_s=1.0, max_num_queued_reqs=1)
    ran = run(rows, full, autoscaler=watched, max_replicas=64, ends_at_s=30.0)
    assert (ran.requests.status == FINISHED).sum() == 2  # one on each of two replicas
    assert watched.views[1].num_arrived == 3


def test_a_request_that_comes_back_from_a_failed_machine_has_arrived_once() -> None:
    lives_s = iter([5.5, 1e9, 1e9])
    watched = Watched(QueueTarget(warm_buffer=1))
    ran = run(
        arrivals([(0.0, 10, 30)]),
        STEP_OF_A_SECOND,
        autoscaler=watched,
        max_replicas=2,
        time_to_failure_s=lambda: next(lives_s),
        stages=lambda: [],
    )
    assert (ran.requests.status == FINISHED).all()
    assert {view.num_arrived for view in watched.views[1:]} == {1}
