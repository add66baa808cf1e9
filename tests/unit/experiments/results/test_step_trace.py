"""Steps of live replicas in virtual time, from steps whose instants are made up."""

import json
from types import SimpleNamespace
from typing import Any

from experiments.results.step_trace import StepTrace, StepWriter
from replicas.live.interface import Step

ROW = {"t0": 0.0, "t1": 0.25, "t2": -0.5, "t3": 0.0}
"""Planning takes 0.25 s from the call's start; the output is there 0.5 s before the call's end."""


def replica(machine: int) -> Any:
    return SimpleNamespace(books=SimpleNamespace(replica=SimpleNamespace(machine=machine)))


def step(number: int, lasted_s: float = 1.0, *, done: int | None = None) -> Step:
    """A call that plans step `number`, and ends it, or the one that is named."""
    ended = {**ROW, "step": number if done is None else done}
    return Step(lasted_s, planned=[{**ROW, "step": number}], done=[ended])


def test_a_step_lies_between_its_calls_start_and_end() -> None:
    (row,) = StepTrace().rows(replica(0), 10.0, step(1))
    assert [row[name] for name in ("t0", "t1", "t2", "t3")] == [10.0, 10.25, 10.5, 11.0]
    assert row["idle"] is None


def test_idle_time_is_from_the_end_of_the_same_replicas_step_before() -> None:
    trace = StepTrace()
    list(trace.rows(replica(0), 0.0, step(1)))
    list(trace.rows(replica(1), 2.0, step(1)))
    (row,) = trace.rows(replica(0), 3.0, step(2))
    assert row["idle"] == 2.0  # from 1 s to 3 s


def test_idle_time_ends_when_planning_begins_not_with_the_call() -> None:
    trace = StepTrace()
    list(trace.rows(replica(0), 0.0, step(1)))
    late = {**ROW, "t0": 0.125, "step": 2}
    (row,) = trace.rows(replica(0), 3.0, Step(1.0, planned=[late], done=[late]))
    assert row["idle"] == 2.125


def test_a_step_that_ends_with_the_next_call_began_with_its_own() -> None:
    trace = StepTrace()
    begun = step(1)
    begun.done.clear()
    assert list(trace.rows(replica(0), 0.0, begun)) == []
    (row,) = trace.rows(replica(0), 1.0, step(2, done=1))
    assert (row["step"], row["t0"], row["t1"], row["t2"], row["t3"]) == (1, 0.0, 0.25, 1.5, 2.0)


def test_each_replica_has_a_file_of_its_own(tmp_path: Any) -> None:
    with StepWriter(tmp_path / "steps") as write:
        write(replica(0), 0.0, step(1))
        write(replica(3), 0.0, step(1))
        write(replica(0), 1.0, step(2))
    files = {path.name: path.read_text().splitlines() for path in (tmp_path / "steps").iterdir()}
    assert {name: [json.loads(line)["step"] for line in lines] for name, lines in files.items()} == {
        "0_steps.jsonl": [1, 2],
        "3_steps.jsonl": [1],
    }
