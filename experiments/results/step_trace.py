"""The steps of live replicas as rows in virtual time: kept in a file, or followed while the run goes on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from replicas.live.interface import Step
from replicas.live.process import LiveReplica


class StepTrace:
    """Places steps in virtual time.

    The rows are those of a recorded run: t0 planning begins, t1 it ends and the model runs, t2 its output is there, t3 it is
    taken in; c0..c3 CPU seconds; `idle` the time from the step before, which is the front end's work and waiting.
    """

    def __init__(self) -> None:
        self._began_at_s: dict[tuple[int, int], float] = {}  # of the steps that are not done
        self._last_ended_at_s: dict[int, float] = {}

    def rows(self, replica: LiveReplica, began_at_s: float, step: Step) -> Iterator[dict[str, Any]]:
        """Yields the rows of the steps that end with this call of the engine."""
        machine = int(replica.books.replica.machine)
        for row in step.planned:
            self._began_at_s[machine, row["step"]] = began_at_s
        for row in step.done:
            yield self._placed(machine, row, began_at_s + step.lasted_s)

    def _placed(self, machine: int, row: dict[str, Any], ended_at_s: float) -> dict[str, Any]:
        began_at_s = self._began_at_s.pop((machine, row["step"]), ended_at_s)
        instants = {name: began_at_s + row[name] for name in ("t0", "t1")}
        instants |= {name: ended_at_s + row[name] for name in ("t2", "t3")}
        last = self._last_ended_at_s.get(machine)
        self._last_ended_at_s[machine] = instants["t3"]
        return row | instants | {"idle": None if last is None else instants["t0"] - last}


class StepWriter:
    """Writes `MACHINE_steps.jsonl` for every live replica: a row a step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, TextIO] = {}
        self._trace = StepTrace()

    def __enter__(self) -> "StepWriter":
        self._folder.mkdir()
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            file.close()

    def __call__(self, replica: LiveReplica, began_at_s: float, step: Step) -> None:
        """Takes a step as a live replica has run it."""
        machine = int(replica.books.replica.machine)
        if machine not in self._files:
            self._files[machine] = (self._folder / f"{machine}_steps.jsonl").open("w", encoding="utf-8")
        for row in self._trace.rows(replica, began_at_s, step):
            self._files[machine].write(json.dumps(row) + "\n")
