"""A request that follows another, such as a conversation's next turn: when it arrives, and when it never does."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from experiments import run as run_experiment
from experiments.contracts.fleets import Constant, arrivals, classes, engine, run
from sim.errors import TraceError
from sim.records import FAILED, FINISHED, IN_FLIGHT, REJECTED
from sim.window import load, new_fleet
from traces.traffic import check_rows

SECOND = engine(overhead_s=1.0)  # a request of n output tokens takes n seconds


def turns(rows: Sequence[tuple[float, int, int, int, float]], class_ids: Sequence[int] = ()) -> Any:
    """(n,) ARRIVAL from (arrived_at_s, num_prompt_tokens, num_output_tokens, follows, delay_s), and perhaps classes."""
    made = arrivals([row[:3] for row in rows])
    made["follows"], made["delay_s"] = np.array([row[3:] for row in rows]).T
    made["class_id"] = class_ids or 0
    return made


@pytest.mark.parametrize("chunk", [1, 2, 1000])
def test_a_turn_arrives_its_delay_after_the_end_of_the_one_before(chunk: int) -> None:
    """Three turns of 2 s each, with 5 and 0.5 s of thought between them, are known when the first arrives."""
    ran = run(turns([(1.0, 10, 2, 0, 0.0), (1.0, 20, 2, 1, 5.0), (1.0, 30, 2, 1, 0.5)]), SECOND, chunk=chunk)
    assert ran.requests.arrived_at_s.tolist() == [1.0, 8.0, 10.5]
    assert ran.requests.finished_at_s.tolist() == [3.0, 10.0, 12.5]
    assert ran.simulation.num_never_sent.tolist() == [0]
    assert ran.plane.fleet.clock[0].num_held == 0  # nobody held them back: they were not due


def test_a_turn_does_not_arrive_before_its_own_instant() -> None:
    ran = run(turns([(0.0, 10, 2, 0, 0.0), (7.0, 10, 1, 1, 1.0), (7.5, 10, 1, 2, 9.0)]), SECOND)
    assert ran.requests.arrived_at_s.tolist() == [0.0, 7.0, 11.0]


def test_the_end_of_a_request_is_remembered_until_the_last_that_may_follow_it_is_known() -> None:
    """It ends at 2 s; the turn that follows it is let in at 60 s, when thousands of others have come and gone."""
    others = [(1.0 + k / 100, 10, 1, 0, 0.0) for k in range(5000)]
    ran = run(turns([(0.0, 10, 2, 0, 0.0), *others, (60.0, 99, 1, 5001, 100.0)]), SECOND, replicas=2, chunk=7)
    last = ran.requests[-1]
    assert (last.num_prompt_tokens, last.arrived_at_s) == (99, 102.0)


def test_a_turn_of_no_delay_enters_the_step_after_the_one_that_is_planned_with_the_last_token() -> None:
    """With another request in the batch the next step is planned at 2 s, before the turn arrives at that very instant."""
    ran = run(turns([(0.0, 10, 9, 0, 0.0), (0.0, 10, 2, 0, 0.0), (0.0, 10, 1, 1, 0.0)]), SECOND)
    turn = ran.requests[2]
    assert (turn.arrived_at_s, turn.scheduled_at_s, turn.finished_at_s) == (2.0, 3.0, 4.0)


def test_several_may_follow_the_same_request() -> None:
    ran = run(turns([(0.0, 10, 2, 0, 0.0), (0.0, 20, 1, 1, 3.0), (0.0, 30, 1, 2, 1.0), (0.0, 40, 1, 3, 2.0)]), SECOND)
    assert ran.requests.arrived_at_s.tolist() == [0.0, 3.0, 4.0, 5.0]
    assert ran.requests.num_prompt_tokens.tolist() == [10, 30, 40, 20]


def test_a_conversation_whose_turn_is_refused_does_not_go_on() -> None:
    """The second turn is too long for the engine: the two that follow it and the one behind them are never sent.

    Another that follows the first turn, which finished, is.
    """
    behind = [(0.0, 10, 1, 1, 1.0), (0.0, 10, 1, 1, 1.0), (0.0, 10, 1, 3, 1.0)]
    rows = [(0.0, 10, 1, 0, 0.0), (0.0, 999, 1, 1, 1.0), *behind, (0.0, 10, 1, 5, 5.0)]
    kinds = classes(*[(0, 0, 0, 0.0)] * 2)
    ran = run(turns(rows, [0, 0, 1, 0, 0, 1]), engine(overhead_s=1.0, max_model_len=100), classes=kinds)
    assert ran.requests.status.tolist() == [FINISHED, REJECTED, FINISHED]
    assert ran.requests.arrived_at_s.tolist() == [0.0, 2.0, 6.0]
    assert ran.simulation.num_never_sent.tolist() == [2, 1]
    assert not ran.simulation.is_cut_short


@pytest.mark.parametrize("chunk", [1, 1000])
def test_a_turn_that_is_let_in_after_the_one_before_was_refused_is_never_sent(chunk: int) -> None:
    rows = [(0.0, 999, 1, 0, 0.0), (5.0, 10, 1, 1, 0.0), (6.0, 10, 1, 1, 0.0), (7.0, 10, 1, 0, 0.0)]
    ran = run(turns(rows), engine(max_model_len=100), chunk=chunk)
    assert ran.requests.arrived_at_s.tolist() == [0.0, 7.0]
    assert ran.simulation.num_never_sent.tolist() == [2]
    assert not ran.simulation.is_cut_short


def test_a_conversation_whose_machine_fails_does_not_go_on() -> None:
    ran = run(
        turns([(0.0, 10, 100, 0, 0.0), (0.0, 10, 1, 1, 0.0)]), SECOND, stages=lambda: [("ready_at_s", 0.0)],
        time_to_failure_s=iter([3.0, 1e6]).__next__, requeue_on_failure=False,
    )  # fmt: skip
    assert ran.requests.status.tolist() == [FAILED]
    assert ran.simulation.num_never_sent.tolist() == [1]


def test_a_thought_longer_than_the_drain_does_not_end_the_run() -> None:
    """The last arrival of the traffic's own is at 0, and requests may finish for 5 s after the last arrival there is."""
    ran = run(turns([(0.0, 10, 1, 0, 0.0), (0.0, 10, 1, 1, 1000.0)]), SECOND, max_drain_s=5.0)
    assert ran.requests.arrived_at_s.tolist() == [0.0, 1001.0]
    assert ran.requests.status.tolist() == [FINISHED] * 2


def test_turns_behind_a_request_that_is_given_up_in_flight_are_never_sent() -> None:
    rows = turns([(0.0, 10, 1, 0, 0.0), (0.0, 10, 1, 1, 0.0), (0.0, 10, 1, 1, 0.0)])
    ran = run(rows, replicas=0, max_replicas=1, autoscaler=Constant(0), max_drain_s=5.0)
    assert ran.requests.status.tolist() == [IN_FLIGHT]
    assert ran.simulation.num_never_sent.tolist() == [2]
    assert ran.ended_at_s == 5.0


@pytest.mark.parametrize("chunk", [1, 1000])
def test_a_client_that_holds_requests_back_sends_those_first_that_are_due_first(chunk: int) -> None:
    """One in flight. The turn is due at 1 s, behind four that were due at 0; who is let in when decides nothing."""
    rows = [(0.0, 10 + k, 1, 0, 0.0) for k in range(5)]
    ran = run(turns([*rows, (0.0, 99, 1, 5, 0.0), (3.5, 100, 1, 0, 0.0)]), SECOND, max_concurrency=1, chunk=chunk)
    assert ran.requests.num_prompt_tokens.tolist() == [10, 11, 12, 13, 14, 99, 100]
    assert ran.requests.arrived_at_s.tolist() == [float(second) for second in range(7)]


def test_a_request_in_thought_takes_no_place_in_flight() -> None:
    ran = run(turns([(0.0, 10, 2, 0, 0.0), (0.0, 20, 2, 1, 1.0), (0.0, 30, 4, 0, 0.0)]), SECOND, max_concurrency=1)
    assert ran.requests.num_prompt_tokens.tolist() == [10, 30, 20]
    assert ran.requests.arrived_at_s.tolist() == [0.0, 2.0, 6.0]


def test_of_one_priority_the_turn_that_arrives_later_waits_longer() -> None:
    """The traffic knows the turn first, and it comes last: places in a queue are those of arrivals."""
    limits = engine(overhead_s=1.0, max_num_seqs=1, schedules_by_priority=1)
    rows = [(0.0, 10, 2, 0, 0.0), (0.0, 20, 1, 1, 1.0), (0.5, 30, 9, 0, 0.0), (0.6, 40, 1, 0, 0.0)]
    ran = run(turns(rows), limits)
    assert ran.requests.num_prompt_tokens[np.argsort(ran.requests.scheduled_at_s)].tolist() == [10, 30, 40, 20]


def test_a_turn_finds_the_conversation_in_the_prefix_cache_whenever_it_was_let_in() -> None:
    """Twenty conversations of five turns, each of which begins with all that was said before; segments outlive many chunks."""
    rows, said = [], []
    for turn in range(5):
        rows += [(0.01 * k + 2.0 * turn, 40 * (turn + 1), 10, 20 if turn else 0, 1.0 + k % 7) for k in range(20)]
        said += [[(k, 40 * (turn + 1) + 10)] for k in range(20)]
    limits = engine(overhead_s=0.05, enable_prefix_caching=1, num_usable_blocks=2000)
    known, later = (run(turns(rows), limits, segments=said, chunk=chunk) for chunk in (1000, 3))
    for name in ("arrived_at_s", "finished_at_s", "num_cached_tokens", "num_prompt_tokens"):
        assert known.requests[name].tolist() == later.requests[name].tolist()
    assert known.requests.num_prompt_tokens.tolist() != [row[1] for row in rows]
    before = known.requests.num_prompt_tokens - 40  # and an answer of 10, of which the last token was never read
    assert known.requests.num_cached_tokens.tolist() == np.where(before > 0, (before + 9) // 16 * 16, 0).tolist()


# What a kind may say


def test_a_request_that_follows_none_there_is_is_refused_at_the_door() -> None:
    rows = turns([(0.0, 10, 1, 0, 0.0)] * 3 + [(0.0, 10, 1, 3, 0.0)])
    check_rows(rows, 0, 0.0, 1, max_follows=3)
    with pytest.raises(TraceError, match="request 3: follows is 3; allowed: 0 to 2, the number of requests before it and no"):
        check_rows(rows, 0, 0.0, 1, max_follows=2)
    rows["follows"][1] = 2
    with pytest.raises(TraceError, match="request 1: follows is 2; allowed: 0 to 1"):
        check_rows(rows, 0, 0.0, 1, max_follows=3)
    rows["follows"][1] = -1
    with pytest.raises(TraceError, match="request 1: follows is -1; allowed: 0 to 1"):
        check_rows(rows, 0, 0.0, 1, max_follows=3)
    rows["follows"][1], rows["delay_s"][2] = 0, np.nan
    with pytest.raises(TraceError, match="request 2: delay_s is nan; allowed"):
        check_rows(rows, 0, 0.0, 1, max_follows=3)


def test_what_the_fleet_does_not_remember_cannot_be_followed() -> None:
    with pytest.raises(AssertionError):
        load(new_fleet(engine(), 1, 1, max_follows=1), turns([(0.0, 10, 1, 0, 0.0)] * 2 + [(0.0, 10, 1, 2, 0.0)]))


CHATS = """
from collections import Counter
from collections.abc import Iterator

import numpy as np

from sim.records import ARRIVAL
from traces.traffic import Traffic


class Chats(Traffic):
    '''A conversation a second, of three turns; every tenth has a second one that no engine takes.'''

    ends_at_s = property(lambda self: 100.0)
    mean_prompt_tokens = property(lambda self: 100.0)
    mean_output_tokens = property(lambda self: 10.0)
    max_follows = property(lambda self: 1)

    def mean_rate_per_s(self, start_s, end_s):
        return 3.0

    def arrivals(self, seed, counts, segments, chunk_rows):
        rows = np.zeros(300, ARRIVAL)
        rows["arrived_at_s"] = np.arange(300) // 3
        rows["num_prompt_tokens"], rows["num_output_tokens"] = 100, 10
        rows["num_prompt_tokens"][1::30] = 10**6
        rows["follows"], rows["delay_s"] = np.arange(300) % 3 > 0, 4.5
        counts["read"] += 300
        yield rows
"""


def test_a_kind_of_the_users_own_sends_conversations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chats.py").write_text(CHATS)
    monkeypatch.syspath_prepend(tmp_path)
    pool = {"name": "main", "model": "llama-3.1-8b", "gpu": "h100-sxm", "replicas": {"kind": "surrogate"}}
    pools = [pool | {"autoscaler": {"kind": "fixed", "replicas": 1}}]
    document = {"traffic": {"kind": "chats:Chats"}, "router": {"kind": "round_robin"}, "pools": pools}
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump(document))
    result = run_experiment(tmp_path / "chat.yaml", out=tmp_path, progress=False)
    summary = json.loads((result.folder / "summary.json").read_text())
    counts = summary["all"]["requests"]
    assert (counts["arrived"], counts["finished"], counts["rejected"], counts["never_sent"]) == (290, 280, 10, 10)
    assert any(line.startswith("10 requests were never sent") for line in summary["warnings"])
    requests = pd.read_parquet(result.folder / "requests.parquet")
    assert requests["arrived_at_s"].is_monotonic_increasing
    assert requests["id"].tolist() == list(range(290))
    first = requests[requests["arrived_at_s"].isin(np.arange(100.0))]
    second = requests[requests["arrived_at_s"].isin(first["finished_at_s"] + 4.5)]
    third = requests[requests["arrived_at_s"].isin(second["finished_at_s"] + 4.5)]
    assert (len(first), len(second), len(third)) == (100, 100, 90)
    timeline = pd.read_parquet(result.folder / "timeline.parquet")
    assert timeline[timeline["scope"] == "all"]["arrivals"].sum() == 290
