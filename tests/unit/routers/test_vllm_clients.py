"""`vllm` with several API servers: each balances on what it knows itself.

Its rule by hand: the lowest of max(clients * own in flight, waiting + running), where a client takes each request that it sent
since the last scrape for one of every client, and does not see what the others sent.
"""

from typing import Any

import numpy as np
import pytest

import routers
from experiments.contracts.fleets import Ran, Script, arrivals, engine, run
from routers.options import VllmClients
from sim.records import LOAD, RouterView, records
from sim.routing import Routing


def started(num_clients: int, num_slots: int = 3) -> Routing:
    return routers.start(routers.KINDS["vllm"], num_slots, 1, VllmClients(num_clients=num_clients))


def loads_of(waiting: list[int], running: list[int], kv_usage: float = 0.0) -> Any:
    loads = records(LOAD, len(waiting))
    loads["num_waiting"], loads["num_running"] = waiting, running
    loads["num_usable_blocks"], loads["num_free_blocks"] = 100, round(100 * (1 - kv_usage))
    return loads


def ask(loads: Any, router: Routing, request_id: int) -> int:
    router.view.loads[:], router.view.request.id = loads, request_id
    return int(router.choose(router.shown(range(len(loads)))))


def test_a_client_counts_its_own_requests_in_flight_for_all_clients() -> None:
    """Client 0 has two on replica 0, so four by its count; client 1, which has none there, takes the scrape's word: three."""
    loads, router = loads_of([0, 0, 0], [3, 5, 5]), started(2)
    router.view.clients["num_inflight"][0] = [3, 0]
    assert ask(loads, router, request_id=0) == 1
    assert ask(loads, router, request_id=1) == 0


def test_the_whole_fleets_requests_in_flight_are_nobodys_own() -> None:
    loads, router = loads_of([0, 0, 0], [4, 5, 6]), started(4)
    loads["num_inflight"] = [90, 1, 1]
    assert [ask(loads, router, request_id) for request_id in range(4)] == [0, 0, 0, 0]


def test_since_the_scrape_a_client_sees_what_it_sent_itself_and_nothing_else() -> None:
    """The scrape showed 1, 2 and 3 waiting. Since then client 0 sent one to replica 0, client 1 two to replica 1."""
    loads, router = loads_of([1 + 1, 2 + 2, 3], [0, 0, 0]), started(2)
    router.view.clients["num_new"] = [[1, 0], [0, 2], [0, 0]]
    # client 0: 1 + 2 * 1, 2, 3;  client 1: 1, 2 + 2 * 2, 3
    assert ask(loads, router, request_id=0) == 1
    assert ask(loads, router, request_id=1) == 0


def test_a_queue_weighs_more_the_fuller_the_cache() -> None:
    """At 80 % a waiting request counts 1 + 6 * 0.3 = 2.8, a running one 1."""
    loads, router = loads_of([2, 0, 0], [0, 6, 5], kv_usage=0.8), started(1)
    assert ask(loads, router, request_id=0) == 2  # 5.6, 6, 5
    loads["num_running"] = [0, 6, 6]
    assert ask(loads, router, request_id=0) == 0
    loads["num_free_blocks"] = 50  # from half on
    loads["num_running"] = [0, 2, 3]
    assert {ask(loads, router, request_id=0) for _ in range(6)} == {0, 1}


def test_clients_begin_their_scans_apart_and_move_on() -> None:
    """Three replicas, all equal: of three clients each begins at another, and one further with its next request."""
    loads, router = loads_of([0, 0, 0], [0, 0, 0]), started(3)
    assert [ask(loads, router, request_id) for request_id in range(6)] == [0, 1, 2, 1, 2, 0]


@pytest.mark.parametrize("scrape_interval_s", [0.0, 0.5])
@pytest.mark.parametrize("num_clients", [1, 3])
def test_what_clients_have_in_flight_adds_up_to_what_the_router_counts(num_clients: int, scrape_interval_s: float) -> None:
    """At every request, also while replicas are drained, give up what they hold, and come back."""
    looks = []

    def look(view: RouterView) -> int:
        looks.append(view.clients["num_inflight"].sum(axis=1).tolist() == view.loads["num_inflight"].tolist())
        return int(view.candidates[view.request.id * 7 % view.candidates.size])

    ran = run(
        arrivals([(0.01 * i, 50, 1 + i * 13 % 60) for i in range(1000)]),
        engine(max_num_seqs=8),
        max_replicas=4,
        autoscaler=Script([4, 1, 4]),
        interval_s=2.0,
        stages=lambda: [("ready_at_s", 1.0)],
        drain_timeout_s=0.1,
        router=look,
        options=VllmClients(num_clients=num_clients),
        scrape_interval_s=scrape_interval_s,
    )
    assert len(looks) >= 1000
    assert all(looks)
    assert sum(machine.num_evicted for machine in ran.simulation.machines) > 0
    assert (ran.plane.fleet.clients["num_inflight"] == 0).all()


def burst(num_clients: int, rows: Any) -> Ran:
    return run(
        rows,
        engine(max_num_seqs=8),
        replicas=4,
        router="vllm",
        options=VllmClients(num_clients=num_clients),
        scrape_interval_s=0.1,
    )


def test_more_clients_that_know_less_of_each_other_balance_differently() -> None:
    rng = np.random.default_rng(5)
    instants_s, tokens = np.sort(rng.random(400)), rng.integers(1, 200, 400)
    rows = arrivals([(float(at_s), 50, int(n)) for at_s, n in zip(instants_s, tokens, strict=True)])
    by_clients = {n: tuple(burst(n, rows).requests.machine.tolist()) for n in (1, 2, 8)}
    assert len(set(by_clients.values())) == 3
