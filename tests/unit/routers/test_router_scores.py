"""What each router makes of loads that it is shown: scores by hand, and the order of equals."""

from typing import Any, Literal

import numpy as np
import pytest

import routers
from routers.pick import random_below
from sim.params import Params
from sim.records import LOAD, records
from sim.routing import Routing, as_record


def shown(**gauges: list[int]) -> Any:
    """(n,) LOAD with these gauges and all else at 0."""
    loads = records(LOAD, len(next(iter(gauges.values()))))
    loads["num_usable_blocks"] = loads["num_free_blocks"] = 100
    for name, values in gauges.items():
        loads[name] = values
    return loads


def started(kind: str, num_slots: int, seed: int = 1, **options: int) -> Routing:
    return routers.start(routers.KINDS[kind], num_slots, seed, routers.KINDS[kind].options(**options))


def chosen(kind: str, loads: Any, router: Routing | None = None, candidates: list[int] | None = None) -> int:
    router = router or started(kind, len(loads))
    router.view.loads[:] = loads
    return int(router.choose(router.shown(range(len(loads)) if candidates is None else candidates)))


@pytest.mark.parametrize(
    ("kind", "gauges"),
    [
        ("least_loaded", {"num_waiting": [2, 0], "num_running": [0, 3]}),  # 2, 3
        ("least_loaded", {"num_waiting": [0, 3], "num_running": [2, 0]}),
        ("least_loaded", {"num_waiting": [1, 1], "num_running": [1, 2], "waiting_tokens": [90, 0], "num_inflight": [9, 0]}),
        ("least_tokens", {"waiting_tokens": [30, 0], "running_tokens": [0, 61]}),  # 60, 61
        ("least_tokens", {"waiting_tokens": [0, 31], "running_tokens": [61, 0]}),  # 61, 62
        ("least_tokens", {"waiting_tokens": [10, 10], "running_tokens": [0, 1], "num_waiting": [9, 0]}),
        ("vllm_old", {"num_waiting": [1, 0], "num_running": [0, 5]}),  # 4, 5
        ("vllm_old", {"num_waiting": [0, 1], "num_running": [3, 0]}),  # 3, 4
        ("vllm_old", {"num_waiting": [1, 1], "num_running": [0, 1], "waiting_tokens": [90, 0]}),
    ],
)
def test_the_lower_score_is_chosen(kind: str, gauges: dict[str, list[int]]) -> None:
    """Slot 0 has the lower score; turned round, slot 1."""
    assert chosen(kind, shown(**gauges)) == 0
    assert chosen(kind, shown(**{name: values[::-1] for name, values in gauges.items()})) == 1


def test_the_lowest_alone_is_chosen_without_a_draw() -> None:
    """Which replicas tie may differ between two policies; what is drawn elsewhere must not differ with it."""
    router = started("least_loaded", 3)
    before = router.view.random.tolist()
    assert chosen("least_loaded", shown(num_running=[3, 1, 2]), router) == 1
    assert router.view.random.tolist() == before
    chosen("least_loaded", shown(num_running=[1, 1, 2]), router)
    assert router.view.random.tolist() != before


@pytest.mark.parametrize("kind", ["least_loaded", "least_tokens", "vllm_old", "round_robin", "vllm"])
def test_a_slot_that_is_no_candidate_counts_for_nothing(kind: str) -> None:
    """The idle slots 0 and 3 take no requests; of 2 and 1, in the order in which they became ready, 2 has less."""
    loads = shown(num_waiting=[0, 9, 1, 0], waiting_tokens=[0, 900, 100, 0])
    assert chosen(kind, loads, candidates=[2, 1]) == 2


@pytest.mark.parametrize("running", [[4, 2, 3, 2, 2, 5], [4, 5, 3, 2, 2, 5]])
def test_draws_among_equals_are_fair_and_leave_the_others_out(running: list[int]) -> None:
    """Of 300 fair draws each of n equals gets its share, within five standard deviations."""
    loads, router = shown(num_running=running), started("least_loaded", 6)
    counts = np.bincount([chosen("least_loaded", loads, router) for _ in range(300)], minlength=6)
    best = np.flatnonzero(np.array(running) == 2)
    share = 1 / len(best)
    assert counts[best].sum() == 300
    assert np.abs(counts[best] - 300 * share).max() < 5 * np.sqrt(300 * share * (1 - share))


def test_draws_are_those_of_the_published_generator() -> None:
    """From 1 and 1 on: 40,014 - 40,692 is below 0 and 2,147,483,562 more. From 7 and 11 on: 280,098 - 447,612, likewise."""
    for seeds, n, draw in [((1, 1), 10, 4), ((7, 11), 10, 8), ((7, 11), 7, 3)]:
        router = started("random", 2)
        router.view.random[:] = seeds
        assert random_below(router.view, n) == draw


def test_round_robin_takes_candidates_in_turn_and_goes_on_where_their_number_changes() -> None:
    loads, router = shown(num_running=[0, 0, 0]), started("round_robin", 3)
    assert [chosen("round_robin", loads, router, [2, 0, 1]) for _ in range(4)] == [2, 0, 1, 2]
    assert [chosen("round_robin", loads, router, [0, 1]) for _ in range(2)] == [0, 1]  # turns 4 and 5 of two


def test_equals_of_vllm_old_are_taken_in_turn() -> None:
    loads, router = shown(num_running=[1, 1, 1]), started("vllm_old", 3)
    assert [chosen("vllm_old", loads, router) for _ in range(4)] == [0, 1, 2, 0]
    loads = shown(num_running=[1, 2, 1])
    assert [chosen("vllm_old", loads, router) for _ in range(3)] == [2, 2, 0]  # scans that begin at 1, 2 and 0


def test_power_of_two_choices_never_takes_the_most_loaded_and_power_of_all_takes_the_least() -> None:
    """Two different ones of four are drawn: the most loaded always meets a better one, the least loaded half the draws."""
    loads = shown(waiting_tokens=[30, 10, 40, 20])
    router = started("power_of_d_choices", 4, d=2)
    counts = np.bincount([chosen("power_of_d_choices", loads, router) for _ in range(300)], minlength=4)
    assert counts[2] == 0
    assert abs(counts[1] - 150) <= 43  # five standard deviations
    assert counts[3] > counts[0] > 0  # a third and a sixth of the draws
    assert abs(counts[0] - 50) <= 32
    for d in (4, 9):
        router = started("power_of_d_choices", 4, d=d)
        assert {chosen("power_of_d_choices", loads, router) for _ in range(50)} == {1}


def test_of_equals_power_of_d_choices_takes_the_one_drawn_first() -> None:
    """With d = 1 the first draw is all that there is."""
    loads = shown(waiting_tokens=[10, 10, 10, 10])
    for seed in range(20):
        one, three = (started("power_of_d_choices", 4, seed, d=d) for d in (1, 3))
        assert chosen("power_of_d_choices", loads, one) == chosen("power_of_d_choices", loads, three)


def test_a_deployment_has_one_client_unless_it_says_so() -> None:
    assert started("vllm", 2).view.clients.shape == (2, 1)


class Words(Params):
    count: int = 3
    share: float = 0.5
    at_most: int | None = None
    least_s: float | None = None
    is_fair: bool = True
    order: Literal["lru", "lfu"] = "lfu"
    names: tuple[str, ...] = ("a",)


def test_options_reach_a_compiled_router_by_name() -> None:
    """Numbers as they are, a word as its place, nothing as -1 or NaN; and no field for a list."""
    record = as_record(Words())
    assert (record.count, record.share, record.at_most, record.is_fair, record.order) == (3, 0.5, -1, 1, 1)
    assert np.isnan(record.least_s)
    assert "names" not in record.dtype.names
