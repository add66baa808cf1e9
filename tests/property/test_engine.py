"""Fleets of every kind Hypothesis can think of: nothing is lost, everything ends, and what should not matter does not.

Every run checks the twelve invariants itself (`experiments.contracts.fleets.run`).
"""

import heapq
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import routers
import sim.window
from experiments.contracts.fleets import Ran
from sim.records import DRAIN_TIMEOUT, FAILED, FINISHED, OVER_KV_CACHE, OVER_MAX_MODEL_LEN, REJECTED, RouterView
from tests.property.strategies import Case, changing_fleets, conversations, steady_fleets

INSTANTS = ("arrived_at_s", "routed_at_s", "scheduled_at_s", "first_token_at_s", "last_token_at_s", "finished_at_s")
OUTCOMES = ("machine", "num_generated_tokens", "num_preemptions", "status", "reason")

fleets = st.one_of(steady_fleets(), changing_fleets())
any_fleets = st.one_of(fleets, conversations())


def assert_same(ours: Ran, theirs: Ran, k: float = 1.0) -> None:
    """Both runs did the same to every request, bit by bit; the second one's instants are `k` times the first one's."""
    for name in INSTANTS:
        np.testing.assert_array_equal(ours.requests[name] * k, theirs.requests[name], err_msg=name)
    for name in OUTCOMES:
        np.testing.assert_array_equal(ours.requests[name], theirs.requests[name], err_msg=name)


@given(fleets)
@settings(max_examples=200)
def test_everything_ends_and_tokens_are_conserved(case: Case) -> None:
    """Each request comes out once, in order, and is served in full, refused for a reason, or failed by a drain.

    A token is delivered once: what machines delivered is what requests got, however often they were preempted or moved.
    """
    ran = case.run()
    requests = ran.requests
    assert requests.arrived_at_s.tolist() == sent_at_s(case, requests)
    for request, (_, num_prompt_tokens, num_output_tokens) in zip(requests, case.rows, strict=True):
        if not case.is_servable(num_prompt_tokens, num_output_tokens):
            assert request.status == REJECTED
            assert request.reason in (OVER_MAX_MODEL_LEN, OVER_KV_CACHE)
            assert request.num_generated_tokens == 0
        elif request.status == FAILED:
            assert not case.requeue_on_timeout
            assert request.reason == DRAIN_TIMEOUT
            assert request.num_generated_tokens < num_output_tokens
        else:
            assert request.status == FINISHED
            assert request.num_generated_tokens == num_output_tokens
    fleet, machines = ran.plane.fleet, ran.simulation.machines
    assert fleet.replicas.num_delivered_tokens.sum() == requests.num_generated_tokens.sum()
    assert (fleet.loads.num_waiting == 0).all()
    assert (fleet.loads.num_running == 0).all()
    assert (fleet.seen.num_inflight == 0).all()
    assert sum(machine.num_evicted for machine in machines) >= np.count_nonzero(requests.status == FAILED)
    assert_machines_serve_only_while_they_are_there(ran)


def sent_at_s(case: Case, requests: Any) -> list[float]:
    """When a client sends each request, if those before it end when they do: in order, each as soon as it is there and fewer
    than `max_concurrency` of those before it are in flight."""
    in_flight: list[float] = []  # a heap of their ends
    sent: list[float] = []
    for (at_s, _, _), ends_at_s in zip(case.rows, requests.finished_at_s.tolist(), strict=True):
        earliest_s = max([at_s, *sent[-1:]])
        while case.max_concurrency is not None and len(in_flight) >= case.max_concurrency:
            earliest_s = max(earliest_s, heapq.heappop(in_flight))
        sent.append(earliest_s)
        heapq.heappush(in_flight, ends_at_s)
    return sent


def assert_machines_serve_only_while_they_are_there(ran: Ran) -> None:
    """The machine that finished a request was ready before that, and not yet gone."""
    for request in ran.requests[ran.requests.status == FINISHED]:
        machine = ran.simulation.machines[int(request.machine)]
        assert machine.ready_at_s is not None
        assert machine.released_at_s is not None
        assert machine.ready_at_s < request.finished_at_s <= machine.released_at_s


@given(any_fleets, st.sampled_from([0.25, 2.0, 1024.0]))
@settings(max_examples=50)
def test_a_slower_clock_changes_nothing_but_the_clock(case: Case, k: float) -> None:
    """All times k times as long: all instants k times as late. Exact, as k is a power of two."""
    assert_same(case.run(), case.scaled(k).run(), k)


@given(steady_fleets())
@settings(max_examples=50)
def test_each_replica_of_a_fleet_is_a_single_engine(case: Case) -> None:
    """What a replica was sent, sent to an engine alone, comes out at the same instants, bit by bit."""
    fleet = case.run()
    sent = [(at_s, *row[1:]) for at_s, row in zip(fleet.requests.arrived_at_s.tolist(), case.rows, strict=True)]
    one = replace(case, decisions=[1], max_replicas=1, router="round_robin", max_concurrency=None)
    for machine in range(case.max_replicas):
        mine = np.flatnonzero(fleet.requests.machine == machine)
        if len(mine):
            alone = one.run(rows=[sent[i] for i in mine])
            part = fleet._replace(requests=fleet.requests[mine])
            part.requests["machine"] = 0
            assert_same(part, alone)


@given(any_fleets, st.sampled_from([1, 7]), st.sampled_from([1, 8]))
@settings(max_examples=50)
def test_a_ring_that_wraps_or_grows_changes_nothing(case: Case, chunk: int, ring: int) -> None:
    """Requests let in one by one or seven at a time, in a ring that begins with 1 or 8 places instead of 4,096."""
    whole = case.run(chunk=1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sim.window, "_SMALLEST_RING", ring)
        assert_same(whole, case.run(chunk=chunk))


@given(any_fleets, st.sampled_from([0.5, 3.3]))
@settings(max_examples=50)
def test_looking_more_often_changes_nothing(case: Case, timeline_interval_s: float) -> None:
    """The timeline only looks; so does the recount of all sums that goes with it."""
    assert_same(case.run(), case.run(timeline_interval_s=timeline_interval_s))


@given(any_fleets)
@settings(max_examples=50)
def test_a_router_decides_the_same_compiled_or_in_plain_python(case: Case) -> None:
    """The same source, called from the loop or asked by it through Python at every request."""
    kind = routers.KINDS[case.router]
    assert_same(case.run(), case.run(router=in_python(kind), options=kind.options()))


def in_python(kind: routers.RouterKind) -> routers.RouterKind:
    """Returns a router without its compiled half."""
    source = getattr(kind.choose, "py_func", kind.choose)
    return replace(kind, router=lambda view: source(view))


def fewest_in_flight(view: RouterView) -> int:
    """A router as a user would write it."""
    return min(view.candidates.tolist(), key=lambda r: (view.loads[r].num_inflight, r))


@given(fleets)
@settings(max_examples=30)
def test_a_users_router_loses_nothing_either(case: Case) -> None:
    """The same conservation with a router in plain Python, which the loop has to come back for."""
    counts = Counter(replace(case, router=fewest_in_flight).run().requests.status.tolist())
    assert counts[FINISHED] + counts[REJECTED] + counts[FAILED] == len(case.rows)
