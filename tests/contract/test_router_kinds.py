"""What every router in the table must do, ours or yours: add its line to `routers.KINDS` and run."""

from typing import Any

import numpy as np
import pytest

import routers
from routers.pick import router
from sim.errors import ConfigError
from sim.params import Params
from sim.records import FINISHED, LOAD, REQUEST_VIEW, RouterState, records
from tests.fleets import Ran, arrivals, engine, run
from tests.property.strategies import Script

NUM_REPLICAS = 4
DRAWS_AT_EVERY_REQUEST = {"random", "power_of_d_choices"}
BLIND_TO_LOAD = {"random", "round_robin"}
OPTIONS: dict[str, Params] = {"power_of_d_choices": routers.KINDS["power_of_d_choices"].options(d=NUM_REPLICAS)}  # type: ignore[call-arg]
"""With as many choices as replicas it sees them all, and has to balance as well as the others."""

every_kind = pytest.mark.parametrize("kind", sorted(routers.KINDS))
each_that_balances = pytest.mark.parametrize("kind", sorted(set(routers.KINDS) - {"random"}))
each_that_sees_load = pytest.mark.parametrize("kind", sorted(set(routers.KINDS) - BLIND_TO_LOAD))
live_or_stale = pytest.mark.parametrize("scrape_interval_s", [0.0, 1000.0])


def new_state(kind: str, seed: int = 1) -> RouterState:
    return routers.new_state(seed, NUM_REPLICAS, OPTIONS.get(kind) or routers.KINDS[kind].options())


def idle(num_replicas: int = NUM_REPLICAS) -> Any:
    """(n,) LOAD of replicas without work."""
    loads = records(LOAD, num_replicas)
    loads["num_usable_blocks"] = loads["num_free_blocks"] = 100
    return loads


def busy(random: np.random.Generator) -> Any:
    """(n,) LOAD with everything somewhere between idle and overloaded, and often equal."""
    loads = idle()
    for name in ("num_waiting", "num_running", "num_inflight"):
        loads[name] = random.integers(0, 4, NUM_REPLICAS)
    for name in ("waiting_tokens", "running_tokens"):
        loads[name] = 100 * random.integers(0, 4, NUM_REPLICAS)
    loads["num_free_blocks"] = random.integers(0, 101, NUM_REPLICAS)
    return loads


def ask(kind: str, loads: Any, candidates: Any, state: RouterState, num_prompt_tokens: int = 100) -> int:
    request = records(REQUEST_VIEW, 1)
    request["num_prompt_tokens"] = num_prompt_tokens
    return int(routers.KINDS[kind].choose(loads, np.asarray(candidates), request, state))


def through(kind: str, rows: list[tuple[float, int, int]], **fleet: Any) -> Ran:
    return run(arrivals(rows), router=kind, options=OPTIONS.get(kind), **fleet)


def sent_to(requests: Any) -> list[int]:
    """How many requests each machine got."""
    return np.bincount(requests.machine, minlength=NUM_REPLICAS).tolist()


@every_kind
def test_chooses_a_candidate_whatever_the_loads(kind: str) -> None:
    """Any subset of the replicas, in any order."""
    random, state = np.random.default_rng(1), new_state(kind)
    for _ in range(300):
        candidates = random.permutation(NUM_REPLICAS)[: random.integers(1, NUM_REPLICAS + 1)]
        assert ask(kind, busy(random), candidates, state) in candidates


@every_kind
def test_works_with_one_replica(kind: str) -> None:
    assert [ask(kind, idle(), [2], new_state(kind)) for _ in range(10)] == [2] * 10
    assert (through(kind, [(0.1 * i, 50, 5) for i in range(20)]).requests.status == FINISHED).all()


@every_kind
def test_same_seed_same_choices(kind: str) -> None:
    def choices(seed: int) -> list[int]:
        random, state = np.random.default_rng(2), new_state(kind, seed)
        return [ask(kind, busy(random), range(NUM_REPLICAS), state) for _ in range(200)]

    assert choices(seed=7) == choices(seed=7)
    if kind in DRAWS_AT_EVERY_REQUEST:
        assert choices(seed=7) != choices(seed=8)


@every_kind
def test_changes_nothing_but_its_own_memory(kind: str) -> None:
    random, state = np.random.default_rng(3), new_state(kind)
    loads, candidates, request = busy(random), np.arange(NUM_REPLICAS), records(REQUEST_VIEW, 1)
    before = [loads.tobytes(), candidates.tobytes(), request.tobytes(), state.options.tobytes()]
    for _ in range(100):
        routers.KINDS[kind].choose(loads, candidates, request, state)
    assert before == [loads.tobytes(), candidates.tobytes(), request.tobytes(), state.options.tobytes()]


@every_kind
def test_counters_grow_by_one_a_request_at_most(kind: str) -> None:
    """So they are far from overflow in the longest run. A router has no memory but the arrays that it was given."""
    state = new_state(kind)
    for _ in range(2000):
        ask(kind, idle(), range(NUM_REPLICAS), state)
    assert abs(state.memory).max() <= 2000


@pytest.mark.parametrize("kind", sorted(set(routers.KINDS) - DRAWS_AT_EVERY_REQUEST))
def test_r02_no_random_number_is_drawn_without_a_tie(kind: str) -> None:
    """One replica is better by every measure: whoever draws here makes runs differ that have no reason to."""
    state, loads = new_state(kind), idle()
    for name in ("num_waiting", "num_running", "num_inflight", "waiting_tokens", "running_tokens"):
        loads[name] = [30, 10, 20, 40]
    before = state.random.copy()
    for _ in range(50):
        ask(kind, loads, range(NUM_REPLICAS), state)
    assert state.random.tolist() == before.tolist()


@every_kind
def test_r02_ties_are_spread_over_all_replicas(kind: str) -> None:
    """One request at a time finds four idle replicas: a fair draw gives each 100 of 400, within 5 standard deviations (43)."""
    state = new_state(kind)
    choices = [ask(kind, idle(), range(NUM_REPLICAS), state) for _ in range(400)]
    assert np.bincount(choices, minlength=NUM_REPLICAS).min() >= 57


@every_kind
def test_r02_ties_are_spread_among_the_best_only(kind: str) -> None:
    """Replicas 1 and 3 are idle, the others have ten requests: a router that sees loads uses both, and only them."""
    state, loads = new_state(kind), idle()
    for name in ("num_waiting", "num_running", "num_inflight", "waiting_tokens", "running_tokens"):
        loads[name] = [10, 0, 10, 0]
    choices = {ask(kind, loads, range(NUM_REPLICAS), state) for _ in range(100)}
    assert choices == ({0, 1, 2, 3} if kind in BLIND_TO_LOAD else {1, 3})


@every_kind
@live_or_stale
def test_r04_all_replicas_are_used(kind: str, scrape_interval_s: float) -> None:
    ran = through(kind, [(0.01 * i, 50, 20) for i in range(200)], replicas=NUM_REPLICAS, scrape_interval_s=scrape_interval_s)
    assert min(sent_to(ran.requests)) > 0


@each_that_balances
@live_or_stale
def test_r05_a_request_counts_from_its_dispatch(kind: str, scrape_interval_s: float) -> None:
    """A long prompt, 32 k tokens for one answer token, then three more while its only step runs: each goes elsewhere."""
    ran = through(
        kind,
        [(0.1 * i, 32_000, 1) for i in range(4)],
        engines=engine(overhead_s=1.0, max_num_batched_tokens=32_000),
        replicas=NUM_REPLICAS,
        scrape_interval_s=scrape_interval_s,
    )
    assert sent_to(ran.requests) == [1, 1, 1, 1]


@each_that_balances
@live_or_stale
def test_r19_simultaneous_arrivals_each_see_those_before_them(kind: str, scrape_interval_s: float) -> None:
    """Four first turns at one instant, four idle replicas: one each."""
    ran = through(kind, [(0.0, 100, 10)] * 4, replicas=NUM_REPLICAS, scrape_interval_s=scrape_interval_s)
    assert sent_to(ran.requests) == [1, 1, 1, 1]


@each_that_balances
def test_an_old_view_does_not_make_a_herd(kind: str) -> None:
    """No scrape in the whole run: what the router has sent itself is all it knows, and it is enough to give each its share."""
    ran = through(kind, [(0.1 * i, 100, 10) for i in range(40)], replicas=NUM_REPLICAS, scrape_interval_s=1000.0)
    assert sent_to(ran.requests) == [10, 10, 10, 10]


@every_kind
@live_or_stale
@pytest.mark.parametrize("drain_timeout_s", [0.5, 600.0])
def test_r10_a_drained_replica_is_not_chosen_again_and_nothing_is_lost(
    kind: str, scrape_interval_s: float, drain_timeout_s: float
) -> None:
    """Three of four replicas are let go at 2 s, in the middle of the traffic; what they cannot finish goes to the fourth."""
    ran = through(
        kind,
        [(0.01 * i, 50, 100) for i in range(400)],
        engines=engine(max_num_seqs=16),
        max_replicas=NUM_REPLICAS,
        autoscaler=Script([4, 1]),
        interval_s=2.0,
        drain_timeout_s=drain_timeout_s,
        scrape_interval_s=scrape_interval_s,
    )
    drained = [machine for machine in ran.simulation.machines if machine.draining_at_s is not None]
    assert len(drained) == 3
    for machine in drained:
        assert not (ran.requests.routed_at_s[ran.requests.machine == machine.id] > 2.0).any()
    assert (ran.requests.status == FINISHED).all()
    assert any(machine.num_evicted for machine in drained) == (drain_timeout_s < 1)


@each_that_sees_load
def test_r11_an_overloaded_replica_is_avoided_until_the_next_sample_shows_it_healthy(kind: str) -> None:
    """Twenty requests find one replica, and are done at 8 s. A second comes at 2 s; samples are taken each 10 s.

    From 2 to 10 s the first one's mark stands, so the second gets all; after the sample at 10 s both are idle, and share.
    """
    rows = [(0.0, 100, 8)] * 20 + [(3.0 + i, 100, 1) for i in range(3)] + [(11.0 + 2 * i, 100, 1) for i in range(20)]
    ran = through(
        kind,
        rows,
        engines=engine(overhead_s=1.0),
        max_replicas=2,
        autoscaler=Script([1, 2]),
        interval_s=2.0,
        stages=lambda: [],
        scrape_interval_s=10.0,
    )
    assert set(ran.requests.machine[20:23].tolist()) == {1}
    assert set(ran.requests.machine[23:].tolist()) == {0, 1}


@router
def choose_99(loads: Any, candidates: Any, request: Any, state: RouterState) -> int:
    """A compiled router that is wrong."""
    return 99


WRONG_CHOICES = [99, -1, None, "main", 0.5, 1.0, [0], {}]


@pytest.mark.parametrize("choice", WRONG_CHOICES)
def test_a_choice_that_is_no_candidate_is_one_clear_line(choice: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        run(arrivals([(0.0, 10, 1)]), replicas=2, router=lambda loads, candidates, request, state: choice)
    name = "test_a_choice_that_is_no_candidate_is_one_clear_line.<locals>.<lambda>"
    said = f"chose {choice!r} for request 0; the candidates are [0, 1]"
    assert str(raised.value) == f"router {__name__}:{name}: {said}"


def test_a_compiled_choice_that_is_no_candidate_is_the_same_line() -> None:
    with pytest.raises(ConfigError, match=r"^router \S+:choose_99: chose 99 for request 0; the candidates are \[0, 1\]$"):
        run(arrivals([(0.0, 10, 1)]), replicas=2, router=choose_99)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_wrong_choice_for_a_request_that_had_to_wait_is_the_same_line(is_compiled: bool) -> None:
    """No replica is ready before 60 s; the router is asked then."""
    wrong: Any = choose_99 if is_compiled else lambda loads, candidates, request, state: 99
    with pytest.raises(ConfigError, match=r"^router \S+: chose 99 for request 0; the candidates are \[0\]$"):
        run(arrivals([(0.0, 10, 1)]), router=wrong, warm_start=False)


def test_a_closed_replica_is_no_candidate() -> None:
    """Slot 1 drains from 2 s on; a router that goes on choosing it is told so."""
    with pytest.raises(ConfigError, match=r"^router \S+: chose 1 for request \d+; the candidates are \[0\]$"):
        run(
            arrivals([(0.5 * i, 10, 10) for i in range(20)]),
            router=lambda loads, candidates, request, state: 1,
            max_replicas=2,
            autoscaler=Script([2, 1]),
            interval_s=2.0,
        )
