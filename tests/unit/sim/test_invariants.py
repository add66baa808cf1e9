"""Each invariant of docs/design.md, broken on purpose: `check` has to notice, and to say which.

Most are broken after a healthy run, where one fact is changed that other facts contradict; some by an engine, a router or a
fleet that really misbehaves.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba as nb
import numpy as np
import pytest

import routers
import sim.invariants
from accuracy.repeated import simulated
from experiments.contracts.fleets import Constant, Ran, arrivals, engine, run
from experiments.settings.router import Router
from planning.plans import trial
from replicas.data_plane import set_now
from replicas.plane import DataPlane
from routers.pick import router
from sim.errors import InvariantError
from sim.invariants import NAMES, Audit, check
from sim.records import E2E, FINISHED, IN_FLIGHT, NEVER, NO_REASON, REJECTED, TTFT
from tests.accuracy.made_up import row
from tests.unit.accuracy.measured.test_served import read
from tests.unit.replicas.calibration.test_gpu_calibration import of_a_gpu, write_gpu


def a_run() -> Ran:
    """Two replicas, small caches, 20 requests: some preempted, the first refused; every invariant holds."""
    rows = [(0.0, 500, 1), *((0.01 * i, 20, 30) for i in range(20))]
    tight = engine(block_size=4, num_usable_blocks=30, max_num_seqs=8, max_model_len=200, scheduler_reserve_full_isl=0)
    return run(arrivals(rows), tight, replicas=2)


def checked(ran: Ran, **facts: Any) -> list[str]:
    return check(ran.simulation.audit, ran.plane.fleet, ran.simulation.pools, **({"is_cut_short": False} | facts))


def written(ran: Ran, rows: Any) -> None:
    """Audits the run again, as if `rows` were the requests that came out of it."""
    before = ran.simulation.audit
    ran.simulation.audit = Audit(ended_at_s=before.ended_at_s, request_s=before.request_s)
    ran.simulation.audit.count(rows)


def changed(ran: Ran, where: Any, **fields: Any) -> None:
    """Audits the run again with these fields of some requests changed."""
    rows = ran.requests.copy()
    for name, value in fields.items():
        rows[name][where] = value
    written(ran, rows)


def test_a_healthy_run_passes_and_has_something_to_check() -> None:
    ran = a_run()
    assert checked(ran) == list(NAMES)
    assert [name.split()[0] for name in NAMES] == [str(number) for number in range(1, 13)]
    assert ran.requests.status.tolist() == [REJECTED] + [FINISHED] * 20
    assert ran.requests.num_preemptions.sum() > 0


def lose_a_request(ran: Ran) -> None:
    written(ran, ran.requests[:-1])


def write_a_request_twice(ran: Ran) -> None:
    written(ran, np.concatenate([ran.requests, ran.requests[-1:]]).view(np.recarray))


def forget_that_one_ended(ran: Ran) -> None:
    changed(ran, 5, status=IN_FLIGHT)


def lose_a_row_of_the_traffic(ran: Ran) -> None:
    ran.plane.fleet.never_sent[0] -= 1


def forget_the_class_of_one_that_finished(ran: Ran) -> None:
    ran.plane.fleet.demand[0, 0].num_finished -= 1


def turn_the_clock_back(ran: Ran) -> None:
    clock = ran.plane.fleet.clock
    python = getattr(set_now, "py_func", set_now)
    python(clock[0], clock[0].now_s - 1.0)


def schedule_before_the_arrival(ran: Ran) -> None:
    changed(ran, 5, scheduled_at_s=ran.requests.arrived_at_s[5] - 0.001)


def finish_without_a_first_token(ran: Ran) -> None:
    changed(ran, 5, first_token_at_s=NEVER)


def look_again(ran: Ran) -> None:
    ran.simulation.audit.look(ran.plane.fleet, ran.plane.recounts(), ran.plane.recount_unrouted())


def leak_a_block(ran: Ran) -> None:
    ran.plane.fleet.loads.num_free_blocks[1] -= 1
    look_again(ran)


def count_a_waiting_request_too_many(ran: Ran) -> None:
    ran.plane.fleet.loads.num_waiting[1] += 1
    look_again(ran)


def count_a_prompt_that_has_its_first_token(ran: Ran) -> None:
    ran.plane.fleet.replicas.tokens_before_first[1] += 20
    look_again(ran)


def count_a_request_that_waits_for_no_replica(ran: Ran) -> None:
    ran.plane.fleet.unrouted[0] += (0, 0, 1)
    look_again(ran)


def run_one_sequence_too_many(ran: Ran) -> None:
    ran.plane.fleet.engines.max_num_seqs[0] = ran.plane.fleet.replicas.peak_running.max() - 1


def batch_one_token_too_many(ran: Ran) -> None:
    ran.plane.fleet.engines.max_num_batched_tokens[0] = ran.plane.fleet.replicas.peak_batched_tokens.max() - 1


def have_more_in_flight_than_the_client_may(ran: Ran) -> None:
    ran.plane.fleet.clock[0].max_concurrency = ran.plane.fleet.clock[0].peak_in_system - 1


def hold_a_request_back_for_no_reason(ran: Ran) -> None:
    ran.plane.fleet.clock[0].num_held = 1


def stop_an_answer_short(ran: Ran) -> None:
    changed(ran, 5, num_generated_tokens=29)


def deliver_a_token_twice(ran: Ran) -> None:
    ran.plane.fleet.replicas.num_delivered_tokens[0] += 1


def count_a_first_token_twice(ran: Ran) -> None:
    ran.plane.fleet.latency_counts[0, TTFT, 100] += 1


def miss_a_last_token(ran: Ran) -> None:
    ran.plane.fleet.latency_counts[0, E2E, 100] -= 1


def count_a_gap_too_many(ran: Ran) -> None:
    ran.plane.fleet.itl_counts[0, 100] += 1


def count_a_gap_twice_as_long(ran: Ran) -> None:
    ran.plane.fleet.itl_sums[0, 0] += 0.010


def keep_a_request_in_the_system_longer_than_it_was(ran: Ran) -> None:
    changed(ran, 5, finished_at_s=ran.requests.finished_at_s[5] + 0.5)


def scrape_the_future(ran: Ran) -> None:
    ran.plane.fleet.clock[0].scraped_at_s = ran.plane.fleet.clock[0].now_s + 1.0
    look_again(ran)


def bill_a_second_twice(ran: Ran) -> None:
    ran.simulation.pools[0].billed_gpu_s += 1.0


def leave_a_second_off_the_timeline(ran: Ran) -> None:
    ran.simulation.pools[0].reported_gpu_s -= 1.0


def never_release_a_machine(ran: Ran) -> None:
    ran.simulation.machines[1].released_at_s = None


def refuse_without_a_reason(ran: Ran) -> None:
    changed(ran, 0, reason=NO_REASON)


BREAKS: list[tuple[int, Callable[[Ran], None]]] = [
    (1, lose_a_request),
    (1, write_a_request_twice),
    (1, forget_that_one_ended),
    (1, lose_a_row_of_the_traffic),
    (1, forget_the_class_of_one_that_finished),
    (2, turn_the_clock_back),
    (2, hold_a_request_back_for_no_reason),
    (3, schedule_before_the_arrival),
    (3, finish_without_a_first_token),
    (4, leak_a_block),
    (4, count_a_waiting_request_too_many),
    (4, count_a_prompt_that_has_its_first_token),
    (4, count_a_request_that_waits_for_no_replica),
    (5, run_one_sequence_too_many),
    (5, batch_one_token_too_many),
    (5, have_more_in_flight_than_the_client_may),
    (7, stop_an_answer_short),
    (7, deliver_a_token_twice),
    (7, count_a_first_token_twice),
    (7, miss_a_last_token),
    (8, count_a_gap_too_many),
    (8, count_a_gap_twice_as_long),
    (9, keep_a_request_in_the_system_longer_than_it_was),
    (10, scrape_the_future),
    (11, bill_a_second_twice),
    (11, leave_a_second_off_the_timeline),
    (11, never_release_a_machine),
    (12, refuse_without_a_reason),
]


@pytest.mark.parametrize(("number", "wrong"), BREAKS, ids=[f"{number}-{wrong.__name__}" for number, wrong in BREAKS])
def test_a_broken_invariant_is_named(number: int, wrong: Callable[[Ran], None]) -> None:
    ran = a_run()
    wrong(ran)
    with pytest.raises(InvariantError, match=rf"^invariant {number}: .*, expected |^invariant {number}: .*, limit ") as raised:
        checked(ran)
    assert "\n" not in str(raised.value)


def test_order_of_instants_names_the_first_request() -> None:
    ran = a_run()
    changed(ran, [7, 9], first_token_at_s=0.0)
    with pytest.raises(InvariantError, match=r"first: request 7\): 2, expected 0"):
        checked(ran)


@router
def thief(view: Any) -> int:
    view.loads[view.candidates[0]].num_free_blocks -= np.int32(view.request.id == 0)
    return int(view.candidates[0])


@pytest.mark.skipif(bool(nb.config.DISABLE_JIT), reason="what a router in plain Python sees it cannot write to")
def test_invariant_4_a_router_that_takes_a_block_is_caught_while_it_runs() -> None:
    """A compiled router can write to the loads that it is shown; the next recount, a tick of the timeline later, sees it."""
    with pytest.raises(InvariantError, match="invariant 4"):
        run(arrivals([(0.0, 10, 50)]), router=thief, timeline_interval_s=0.1)


def test_invariant_6_an_engine_that_idles_beside_its_queue_is_caught() -> None:
    """Without chunks a prompt over the budget is never admitted. A config cannot say this; if it could, this would show it."""
    stuck = engine(enable_chunked_prefill=0, max_num_batched_tokens=8)
    with pytest.raises(InvariantError, match="invariant 6"):
        run(arrivals([(0.0, 10, 1)]), stuck, max_drain_s=10.0)


RECOUNTS = DataPlane.recounts


def miscounted(plane: DataPlane) -> Any:
    """Recounts, with a request more in every engine than there is."""
    counts = RECOUNTS(plane)
    counts[:, 0] += 1
    return counts


def test_invariant_4_every_kind_that_runs_a_fleet_checks_its_books(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A simulation, a plan's trial, and a served result that is simulated again: by a fit, or to say how far off it is."""
    write_gpu(of_a_gpu(), tmp_path / "gpu.yaml")
    (served,) = read(tmp_path, row(2.0, out_len={"requested": 3}))
    choice = Router(kind="least_tokens", options=routers.KINDS["least_tokens"].options())
    doors: list[Callable[[], Any]] = [
        lambda: run(arrivals([(0.0, 10, 5)])),
        lambda: trial.simulate(arrivals([(0.0, 10, 5)]), engine(), 1, choice, seed=1),
        lambda: simulated.simulate(served, str(tmp_path / "gpu.yaml"), 0.0),
    ]
    for door in doors:
        door()
    monkeypatch.setattr(DataPlane, "recounts", miscounted)
    for door in doors:
        with pytest.raises(InvariantError, match="invariant 4: replicas whose gauges differ"):
            door()


def test_invariant_10_an_undeclared_oracle_is_caught() -> None:
    with pytest.raises(InvariantError, match="invariant 10: policies that saw the future"):
        checked(a_run(), num_undeclared_oracles=1)


def test_invariant_10_a_router_that_could_see_output_lengths_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    seeing = np.dtype([("id", "i8"), ("num_output_tokens", "i8")])
    monkeypatch.setattr(sim.invariants, "REQUEST_VIEW", seeing)
    with pytest.raises(InvariantError, match="invariant 10: output lengths"):
        checked(a_run())


def test_invariant_12_requests_left_hanging_are_caught_unless_the_run_was_cut() -> None:
    """No replica ever comes: the request is in flight at the end, which only a run cut at its drain limit may have."""
    ran = run(arrivals([(0.0, 10, 1)]), replicas=0, max_replicas=1, autoscaler=Constant(0), max_drain_s=5.0)
    assert ran.simulation.is_cut_short
    checked(ran, is_cut_short=True)
    with pytest.raises(InvariantError, match="invariant 12: requests left hanging: 1"):
        checked(ran, is_cut_short=False)
