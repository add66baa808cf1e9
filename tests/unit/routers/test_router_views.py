"""What a router is shown and told: keys of prefixes, sessions, classes, the age of the loads, and events."""

import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments.contracts import RouterContract
from experiments.contracts.fleets import Ran, Script, arrivals, classes, engine, run
from routers import RouterKind
from routers.pick import router
from sim.errors import ConfigError
from sim.records import (
    CACHED,
    CLEARED,
    ENDED_ON,
    EVENT_NAMES,
    EVICTED,
    FINISHED,
    FIRST_TOKEN,
    IN_FLIGHT,
    NONE,
    SENT,
    TIMED_OUT,
    RouterView,
)
from tests.commands import ROOT
from tests.scenario.test_readme import shown

AFFINITY = shown("my_affinity.py", ROOT / "docs" / "routers.md")
"""Prefix affinity, as a user would write it: to where the longest prefix went, unless others have much less to do."""


@pytest.fixture(scope="module")
def affinity(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The router, imported once: each time it would be compiled again."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "my_affinity.py").write_text(AFFINITY)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield __import__("my_affinity").affinity
    del sys.modules["my_affinity"]


NUM_GROUPS, NUM_EACH, PREFIX = 5, 12, 512


def conversations(gap_s: float = 1.0, num_groups: int = NUM_GROUPS) -> tuple[Any, list[list[tuple[int, int]]]]:
    """Requests of some groups in turn; those of one share 512 tokens, 64 more are each one's own."""
    rows = arrivals([(gap_s * i, PREFIX + 64, 4) for i in range(num_groups * NUM_EACH)])
    return rows, [[(1 + i % num_groups, PREFIX)] for i in range(len(rows))]


def cached(ran: Ran) -> int:
    return int(ran.requests.num_cached_tokens.sum())


def test_an_outside_router_with_prefix_affinity_takes_25_lines_and_finds_every_prefix(affinity: RouterKind) -> None:
    """One request at a time, four replicas: the first of a group computes its prefix, all others find it.

    In turn over four replicas, each of these computes each prefix once: the groups are five, so a group comes to all of them.
    """
    rows, segments = conversations()
    found = {}
    for name, kind in {"affinity": affinity, "round_robin": "round_robin"}.items():
        found[name] = run(rows, engine(enable_prefix_caching=1), replicas=4, router=kind, segments=segments)
    assert cached(found["affinity"]) == NUM_GROUPS * (NUM_EACH - 1) * PREFIX
    assert cached(found["round_robin"]) == NUM_GROUPS * (NUM_EACH - 4) * PREFIX
    body = AFFINITY[AFFINITY.index("class Affinity") : AFFINITY.index("affinity = RouterKind")]
    assert len([line for line in body.splitlines() if line.strip()]) <= 25


class TestAffinity(RouterContract):
    @pytest.fixture(autouse=True)
    def _each(self, affinity: RouterKind) -> None:
        self.router = affinity


def in_python(kind: RouterKind) -> RouterKind:
    """Returns a router without its compiled half."""
    source, told = (getattr(one, "py_func", one) for one in (kind.choose, kind.observe))
    return replace(kind, router=lambda view: source(view), observe=None if told is None else lambda view: told(view))


def test_keys_memory_and_options_are_the_same_compiled_or_in_plain_python(affinity: RouterKind) -> None:
    rows, segments = conversations(0.01, 7)
    ways = (affinity, in_python(affinity))
    first, second = (
        run(rows, engine(enable_prefix_caching=1), replicas=3, router=kind, segments=segments, scrape_interval_s=0.5)
        for kind in ways
    )
    assert first.requests.tolist() == second.requests.tolist()
    assert set(first.requests.replica.tolist()) == {0, 1, 2}
    assert cached(first) > 0


class Noted:
    """A router in plain Python that takes the candidates in turn and keeps all it is shown and told."""

    def __init__(self, *observes: str, key_block_size: int = 0, sees_sessions: bool = False) -> None:
        self.events: list[tuple[float, str, int, int, int, int, int]] = []
        self.asked: list[dict[str, Any]] = []
        self.kind = RouterKind(
            self.choose,
            key_block_size=lambda options: key_block_size,
            sees_sessions=sees_sessions,
            observe=self.observe if observes else None,
            observes=observes,
        )

    def choose(self, view: RouterView) -> int:
        request = {name: view.request[name].item() for name in view.request.dtype.names}
        times = {name: view.times[name].item() for name in view.times.dtype.names}
        self.asked.append(request | times | {"keys": view.keys.tolist(), "num_told": len(self.events)})
        return int(view.candidates[len(self.asked) % view.candidates.size])

    def observe(self, view: RouterView) -> None:
        one = view.event
        name = EVENT_NAMES[int(one.what).bit_length() - 1]
        numbers = (int(one.request), int(one.replica), int(one.num_tokens), int(one.status), int(one.key))
        self.events.append((float(one.at_s), name, *numbers))

    def told(self, name: str) -> list[Any]:
        return [event for event in self.events if event[1] == name]


def test_every_event_is_told_once_in_order_and_when_it_happened() -> None:
    rows, segments = conversations(0.05)
    noted = Noted("sent", "first_token", "ended")
    ran = run(rows, engine(enable_prefix_caching=1), replicas=2, router=noted.kind, segments=segments)
    asked_last = noted.asked[-1]["num_told"]
    assert 0 < asked_last < 3 * len(rows), "what happens after the last arrival is told to nobody who asks"
    assert [event[0] for event in noted.events] == sorted(event[0] for event in noted.events)
    known, requests = noted.asked[-1]["now_s"], ran.requests
    for name, instants, tokens in (
        ("sent", requests.routed_at_s, requests.num_prompt_tokens),
        ("first_token", requests.first_token_at_s, requests.num_cached_tokens),
        ("ended", requests.finished_at_s, requests.num_output_tokens),
    ):
        happened = {i: (instants[i], requests.replica[i], tokens[i]) for i in np.flatnonzero(instants < known)}
        found = {event[2]: (event[0], event[3], event[4]) for event in noted.told(name) if event[0] < known}
        assert found == happened
        assert len(found) == sum(event[0] < known for event in noted.told(name))
    assert {event[5] for event in noted.told("ended")} == {FINISHED}


def test_a_router_is_told_of_a_client_that_gave_up_with_the_tokens_that_it_got() -> None:
    """The client has 2 of 9 tokens after 2.5 s; the router is told before it is asked for the next request, at 4 s."""
    noted = Noted("ended")
    run(
        arrivals([(0.0, 10, 9), (4.0, 10, 1)]),
        engine(overhead_s=1.0),
        router=noted.kind,
        classes=classes((0, 0, 0, 0.0, 1, 0, 2.5)),
    )
    assert noted.told("ended")[0] == (2.5, "ended", 0, 0, 2, TIMED_OUT, 0)


def test_keys_of_a_prompt_are_those_of_the_engines_blocks_and_shared_as_far_as_tokens_are() -> None:
    """Blocks of 16: of 576 tokens 36 keys, 32 of them the group's. Each is told as cached when its block is full."""
    rows, segments = conversations()
    noted = Noted("cached", key_block_size=16)
    run(rows, engine(enable_prefix_caching=1), router=noted.kind, segments=segments)
    keys = [one["keys"] for one in noted.asked]
    assert {len(one) for one in keys} == {36}
    for i, ours in enumerate(keys):
        for j, theirs in enumerate(keys[:i]):
            num_same = sum(one == other for one, other in zip(ours, theirs, strict=True))
            assert num_same == (32 if i % NUM_GROUPS == j % NUM_GROUPS else 0)
    told = {event[6] for event in noted.told("cached")}
    assert told >= {key for ours in keys[:-1] for key in ours}


def test_keys_in_blocks_of_another_size_leave_the_engines_own_as_they_were() -> None:
    rows, segments = conversations(0.02)
    limits = engine(enable_prefix_caching=1, num_usable_blocks=200)
    kinds = [Noted(key_block_size=size).kind for size in (0, 7, 16, 1000)]
    runs = [run(rows, limits, router=kind, segments=segments) for kind in kinds]
    assert len({tuple(ran.requests.tolist()) for ran in runs}) == 1
    assert cached(runs[0]) > 0


def test_cached_less_evicted_is_what_the_cache_holds_also_when_replicas_come_and_go() -> None:
    """In a cache of 100 blocks, of which a prompt takes 36. What was told last counts: a replica that begins is empty."""
    rows, segments = conversations(0.02, 11)
    noted = Noted("cached", "evicted", "cleared")
    ran = run(
        rows,
        engine(enable_prefix_caching=1, num_usable_blocks=100),
        max_replicas=3,
        autoscaler=Script([3, 1, 3]),
        interval_s=0.5,
        stages=lambda: [],
        router=noted.kind,
        segments=segments,
    )
    ran.plane._tell()
    held = [Counter[int]() for _ in range(3)]
    for _, name, _, replica, _, _, key in noted.events:
        if name == "cleared":
            held[replica].clear()
        else:
            held[replica][key] += 1 if name == "cached" else -1
    fleet = ran.plane.fleet
    for slot in range(3):
        blocks = fleet.blocks[slot][fleet.blocks[slot]["is_registered"] > 0] if fleet.replicas[slot].machine != NONE else []
        assert +held[slot] == Counter(blocks["key"].tolist() if len(blocks) else [])
    assert len(noted.told("evicted")) > 0
    assert len(noted.told("cleared")) >= 4


def test_what_is_taken_off_a_replica_is_told_to_have_left_it_and_not_the_system() -> None:
    """Two of three replicas go amid a hundred waiting requests each: these are sent again."""
    noted = Noted("sent", "ended")
    ran = run(
        arrivals([(0.0, 50, 100)] * 300),
        engine(max_num_seqs=2),
        max_replicas=3,
        autoscaler=Script([3, 1]),
        interval_s=2.0,
        drain_timeout_s=0.5,
        router=noted.kind,
    )
    ran.plane._tell()
    left = [event for event in noted.told("ended") if event[5] == IN_FLIGHT]
    assert len(left) == sum(machine.num_evicted for machine in ran.simulation.machines) > 100
    assert len(noted.told("sent")) == 300 + len(left)
    assert Counter(event[5] for event in noted.told("ended")) == {IN_FLIGHT: len(left), FINISHED: 300}
    assert ran.plane.fleet.clock[0].num_lost_events == 0


@router
def first(view: RouterView) -> int:
    return view.candidates[0]


@router
def count(view: RouterView) -> None:
    view.memory[0 if view.event.what == FIRST_TOKEN else 1] += 1


@pytest.mark.parametrize("is_compiled", [True, False])
def test_events_are_told_in_time_though_nobody_is_routed(is_compiled: bool) -> None:
    """Three thousand first tokens and ends after the last arrival, in a ring with room for less."""
    kind = RouterKind(first, observe=count, observes=("first_token", "ended"))
    limits = engine(max_num_seqs=4, num_usable_blocks=64)
    ran = run(arrivals([(0.0, 16, 2)] * 3000), limits, router=kind if is_compiled else in_python(kind))
    assert ran.plane.fleet.events.size < 3000
    noted, told = (int(ran.plane.fleet.clock[0][name]) for name in ("num_noted", "num_told"))
    assert noted == 6000
    assert ran.plane.routing.view.memory[:2].sum() == told > 4000


def test_loads_have_the_age_of_their_scrape() -> None:
    for scrape_interval_s in (0.0, 10.0):
        noted = Noted()
        run(arrivals([(1.5 + 3 * i, 10, 1) for i in range(20)]), router=noted.kind, scrape_interval_s=scrape_interval_s)
        for one in noted.asked:
            assert one["now_s"] == one["arrived_at_s"]
            assert one["scraped_at_s"] == (one["now_s"] if scrape_interval_s == 0 else one["now_s"] // 10 * 10)


def test_a_session_is_shown_to_those_who_ask_for_it() -> None:
    rows = arrivals([(0.1 * i, 10, 1) for i in range(9)])
    rows["session"] = [1, 2, 3, 1, 2, 3, 0, 7, 1]
    seeing, blind = Noted(sees_sessions=True), Noted()
    run(rows, router=seeing.kind)
    run(rows, router=blind.kind)
    assert [one["session"] for one in seeing.asked] == rows["session"].tolist()
    assert {one["session"] for one in blind.asked} == {0}


def test_what_a_class_asks_for_is_shown_with_its_request() -> None:
    rows = arrivals([(0.1 * i, 10, 1, i % 2) for i in range(4)])
    noted = Noted()
    run(rows, router=noted.kind, classes=classes((3, 0, 0, 0.0), (-1, 2, 50, 0.0)))
    shown = [(one["priority"], one["adapter"], one["max_tokens"], one["class_id"]) for one in noted.asked]
    assert shown == [(3, 0, 0, 0), (-1, 2, 50, 1)] * 2


@pytest.mark.parametrize("name", ["loads", "candidates", "clients", "keys", "request", "times", "event"])
def test_a_plain_router_can_write_to_its_own_memory_alone(name: str) -> None:
    def scribbles(view: RouterView) -> int:
        view.memory[0] += 1
        seen = getattr(view, name)
        if seen.dtype.names:
            seen[seen.dtype.names[0]] = 3
        else:
            seen[:] = 3
        return int(view.candidates[0])

    with pytest.raises(ConfigError, match=r"router .*scribbles|scribbles: "):
        run(arrivals([(0.0, 100, 1)]), router=RouterKind(scribbles, key_block_size=lambda options: 16))


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"observe": count}, "has one and observes none"),
        ({"observes": ("sent",)}, "without a function `observe`"),
        ({"observe": count, "observes": ("snet",)}, "observes 'snet', which is none of sent, first_token, ended, cached"),
        ({"observe": count, "observes": ("sent",)}, "one function that is compiled and one in plain Python"),
    ],
)
def test_what_a_router_declares_wrongly_is_a_line(declared: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RouterKind(lambda view: 0, **declared)


def test_events_have_the_names_under_which_they_are_declared() -> None:
    numbers = (SENT, FIRST_TOKEN, ENDED_ON, CACHED, EVICTED, CLEARED)
    assert [EVENT_NAMES[number.bit_length() - 1] for number in numbers] == [*EVENT_NAMES]
