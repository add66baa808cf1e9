"""Fleets of engines with every option on, and machines that come and go under them: nothing is lost, and looking is free.

What one engine decides is compared with the naive one (test_naive_engine.py); here are what that one does not know: other
schedulers, requests that move from machine to machine, and the rings in which requests and their content live. Every run
checks the twelve invariants itself.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim.window
from experiments.contracts.fleets import Ran
from sim.records import FAILED, FINISHED, TIMED_OUT
from tests.property.strategies import Workload, machines, other_engines, workloads

OUTCOMES = ("status", "num_cached_tokens", "num_preemptions", "scheduled_at_s", "first_token_at_s", "finished_at_s")
any_workload = st.one_of(workloads(), other_engines())


def assert_all_served(work: Workload, ran: Ran, *, may_fail: bool) -> None:
    """Each request got all its tokens, each once, or failed with its machine; and nobody holds anything any more."""
    statuses = set(ran.requests.status.tolist())
    assert statuses <= ({FINISHED, FAILED} if may_fail else {FINISHED})
    finished = ran.requests[ran.requests.status == FINISHED]
    assert (finished.num_generated_tokens == finished.num_output_tokens).all()
    assert ran.requests.num_output_tokens.tolist() == [row[2] for row in work.rows]
    assert (ran.requests.num_cached_tokens < ran.requests.num_prompt_tokens).all()
    assert_nothing_left(ran)


def assert_nothing_left(ran: Ran) -> None:
    """All tokens that were delivered are somebody's, and nobody holds anything any more."""
    fleet = ran.plane.fleet
    assert fleet.replicas.num_delivered_tokens.sum() == ran.requests.num_generated_tokens.sum()
    for name in ("num_waiting", "num_running", "waiting_tokens", "running_tokens", "num_inflight"):
        assert (fleet.loads[name] == 0).all(), name
    assert (fleet.blocks.num_holders == 0).all()
    assert (fleet.growing.num_decodes == 0).all()
    for name in ("num_decoding", "decoding_context_tokens", "num_catching_up", "num_surplus", "num_masks"):
        assert (fleet.replicas[name] == 0).all(), name


@given(any_workload)
@settings(max_examples=60)
def test_an_engine_with_any_options_serves_everybody(work: Workload) -> None:
    assert_all_served(work, work.run(), may_fail=False)


@given(any_workload, machines())
@settings(max_examples=60)
def test_machines_that_come_and_go_lose_nobody(work: Workload, fleet: dict[str, Any]) -> None:
    """A request that moves keeps its tokens, but finds no adapter, grammar, draft or cached block where it comes."""
    assert_all_served(work, work.run(**fleet), may_fail=not fleet["requeue_on_timeout"])


@given(any_workload, machines(), st.integers(1, 2), st.sampled_from([0.05, 0.3, 1.0, 4.0]))
@settings(max_examples=100)
def test_clients_that_give_up_leave_nothing_behind(
    work: Workload, fleet: dict[str, Any], num_together: int, timeout_s: float
) -> None:
    """On any engine, on machines that come and go: every other class waits so long at most, the rest for ever."""
    more = [(1, 0), *[(kind[4:] if len(kind) > 4 else (1, 0)) for kind in work.classes]][1:]
    kinds = [
        (*kind[:4], *some, timeout_s * ((k + 1) % 2)) for k, (kind, some) in enumerate(zip(work.classes, more, strict=True))
    ]
    together = {"data_parallel_size": num_together, "num_together": num_together} | (
        {"num_stages": 1} if num_together > 1 else {}
    )
    work = replace(work, classes=kinds, engine=work.engine | together)
    ran = work.run(**fleet, num_ranks=num_together)
    assert_nothing_left(ran)
    late = ran.requests.finished_at_s - ran.requests.arrived_at_s > timeout_s + 1e-9
    assert not late[ran.requests.class_id % 2 == 0].any()
    assert (ran.requests.class_id[ran.requests.status == TIMED_OUT] % 2 == 0).all()
    gave_up = ran.requests[ran.requests.status == TIMED_OUT]
    assert (gave_up.finished_at_s == gave_up.arrived_at_s + timeout_s).all()


@given(any_workload, machines())
@settings(max_examples=60)
def test_ranks_that_step_together_lose_nobody(work: Workload, fleet: dict[str, Any]) -> None:
    together = replace(work, engine=work.engine | {"data_parallel_size": 2, "num_together": 2, "num_stages": 1})
    assert_all_served(together, together.run(**fleet, num_ranks=2), may_fail=not fleet["requeue_on_timeout"])


@given(any_workload, st.integers(2, 3), st.sampled_from([0.0, 1.0]))
@settings(max_examples=30)
def test_each_replica_of_a_fleet_is_a_single_engine(work: Workload, num_replicas: int, acceptance_rate: float) -> None:
    """Caches, grammars and adapters are each replica's own: what it was sent, ends the same when sent to an engine alone.

    All drafts hold or none does, as which of them hold depends on a request's number, and that is another one when alone.
    """
    work = replace(work, engine=work.engine | {"acceptance_rate": acceptance_rate})
    fleet = work.run(replicas=num_replicas, router="round_robin").requests
    for machine in range(num_replicas):
        mine = np.flatnonzero(fleet.machine == machine).tolist()
        if mine:
            segments = [work.segments[i] for i in mine] if work.segments else []
            alone = replace(work, rows=[work.rows[i] for i in mine], segments=segments).run().requests
            for name in OUTCOMES:
                np.testing.assert_array_equal(fleet[name][mine], alone[name], err_msg=name)


@given(any_workload, machines(), st.sampled_from([1, 7]))
@settings(max_examples=30)
def test_rings_that_wrap_or_grow_change_nothing(work: Workload, fleet: dict[str, Any], chunk: int) -> None:
    """Requests and their content let in one by one or seven at a time, in rings that begin with two places."""
    whole = work.run(**deepcopy(fleet))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sim.window, "_SMALLEST_RING", 2)
        pieces = work.run(**fleet, chunk=chunk)
    for name in ("machine", *OUTCOMES):
        np.testing.assert_array_equal(whole.requests[name], pieces.requests[name], err_msg=name)
