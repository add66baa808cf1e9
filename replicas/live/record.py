"""Records an engine that serves in real time: open loop, nothing between its steps but the adding of requests."""

import csv
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replicas.live.interface import LiveEngine, Step

COLUMNS = (
    "id", "arrival_s", "added_s", "first_sched_s", "first_token_s", "last_token_s", "prompt_len", "output_len", "cached_tokens",
    "num_preemptions",
)  # fmt: skip


@dataclass
class Served:
    """What became of one request; instants in seconds from the start."""

    id: int
    arrival_s: float
    prompt_len: int
    output_len: int
    added_s: float = float("nan")
    first_sched_s: float = float("nan")
    first_token_s: float = float("nan")
    last_token_s: float = float("nan")
    cached_tokens: int = 0
    num_preemptions: int = 0
    is_finished: bool = False


@dataclass
class Recording:
    """A served workload: its requests, and its steps as a step trace has them (see `recorder`)."""

    requests: list[Served] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)

    def write(self, folder: Path, name: str, meta: Mapping[str, Any], prompts: Sequence[list[int]] | None = None) -> None:
        """Writes NAME_meta.json, NAME_requests.csv, NAME_steps.jsonl, and NAME_prompts.json where prompts share tokens."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}_meta.json").write_text(json.dumps(dict(meta), indent=1), encoding="utf-8")
        done = [one for one in self.requests if one.is_finished]
        with (folder / f"{name}_requests.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows([getattr(one, column) for column in COLUMNS] for one in done)
        with (folder / f"{name}_steps.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in self.steps)
        if prompts is not None:
            chosen = [prompts[one.id] for one in done]
            (folder / f"{name}_prompts.json").write_text(json.dumps(chosen), encoding="utf-8")


def record(engine: LiveEngine, arriving: Sequence[tuple[float, int]], prompts: Sequence[list[int]], max_s: float) -> Recording:
    """Serves requests as they arrive, by the wall clock.

    Args:
        engine: it serves nobody else, and runs free: it does not wait for its device between steps.
        arriving: (arrival in seconds, output tokens) of each request, in order.
        prompts: their token ids.
        max_s: no request is added later than that; those that were are served to the end.
    """
    recording = Recording()
    started = time.perf_counter()
    coming = list(enumerate(arriving))
    while coming or engine.has_work():
        now_s = time.perf_counter() - started
        while coming and (coming[0][1][0] <= now_s or now_s > max_s):
            number, (at_s, num_output) = coming.pop(0)
            if now_s <= max_s:
                served = Served(number, at_s, len(prompts[number]), num_output, added_s=time.perf_counter() - started)
                recording.requests.append(served)
                engine.add(number, prompts[number], num_output)
        if engine.has_work():
            began = time.perf_counter()
            step = engine.step()
            _note(recording, step, began - started, time.perf_counter() - started)
        elif coming:
            time.sleep(max(0.0, coming[0][1][0] - now_s))
    return recording


def _note(recording: Recording, step: Step, began_s: float, ended_s: float) -> None:
    by_id = {one.id: one for one in recording.requests}
    for row in step.planned:
        row["t0"], row["t1"] = began_s + row["t0"], began_s + row["t1"]
        for number in row.get("preempted", ()):
            by_id[number].num_preemptions += 1
        for number, _, computed, *_ in row["reqs"]:
            served = by_id[number]
            if served.first_sched_s != served.first_sched_s:
                served.first_sched_s, served.cached_tokens = row["t0"], computed
    for number in step.tokens:
        served = by_id[number]
        if served.first_token_s != served.first_token_s:
            served.first_token_s = ended_s
        served.last_token_s = ended_s
    for number in step.finished:
        by_id[number].is_finished = True
    for row in step.done:
        row["t2"], row["t3"] = ended_s + row["t2"], ended_s + row["t3"]
        last = recording.steps[-1]["t3"] if recording.steps else None
        row["idle"] = None if last is None else row["t0"] - last
        recording.steps.append(row)
