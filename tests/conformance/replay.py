"""Replays recorded vLLM workloads on our scheduler, step by step, and compares every decision.

A recording (`NAME_workload.json`, `NAME_steps.jsonl`) lets requests in by step index, so no timing is involved.
`python -m tests.conformance.replay DIR` prints a line a workload and the first mismatch side by side.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from replicas.delivery import deliver
from replicas.kv_blocks import computed_tokens
from replicas.queues import append
from replicas.scheduler import plan
from sim.metrics import NUM_ITL_BINS
from sim.records import ARRIVAL, ENGINE, NONE, WAITING, records
from sim.window import load, new_fleet

COMPARED = ("reqs", "new", "resumed", "preempted", "finished", "running", "waiting", "free_blocks")


def not_modelled(arguments: dict[str, Any]) -> str:
    """Returns which of a workload's engine arguments our scheduler does not have yet, or ''."""
    if arguments.get("enable_prefix_caching"):
        return "prefix caching"
    if arguments.get("scheduling_policy", "fcfs") != "fcfs":
        return "priority scheduling"
    if arguments.get("long_prefill_token_threshold"):
        return "long_prefill_token_threshold"
    return ""


def engine_of(workload: dict[str, Any]) -> Any:
    arguments = workload["engine_args"]
    engine = records(ENGINE, 1)
    engine.max_num_seqs = arguments["max_num_seqs"]
    engine.max_num_batched_tokens = arguments["max_num_batched_tokens"]
    engine.block_size = arguments["block_size"]
    engine.num_usable_blocks = workload["num_gpu_blocks"] - 1
    engine.watermark_blocks = int(arguments.get("watermark", 0.0) * workload["num_gpu_blocks"])
    engine.max_model_len = arguments["max_model_len"]
    engine.enable_chunked_prefill = arguments.get("enable_chunked_prefill", True)
    engine.scheduler_reserve_full_isl = arguments.get("scheduler_reserve_full_isl", True)
    engine.async_scheduling = arguments.get("async_scheduling", False)
    return engine


class Replay:
    """One replica driven by step index, as the recorder drove vLLM's scheduler."""

    def __init__(self, workload: dict[str, Any]) -> None:
        self.requests = sorted(workload["requests"], key=lambda r: r["arrival_step"])
        self.names = [r["id"] for r in self.requests]
        arrivals = np.zeros(len(self.requests), ARRIVAL)
        arrivals["num_prompt_tokens"] = [len(r["prompt"]) for r in self.requests]
        arrivals["num_output_tokens"] = [r["output_len"] for r in self.requests]
        engine = engine_of(workload)
        self.fleet = load(new_fleet(engine, 1, NUM_ITL_BINS), arrivals)
        self.fleet.loads[0].num_free_blocks = self.fleet.loads[0].num_usable_blocks = engine[0].num_usable_blocks
        self.in_flight_limit = 2 if engine[0].async_scheduling else 1
        self.num_added = 0
        self.computed = np.zeros(len(self.requests), np.int64)

    def steps(self) -> Iterator[dict[str, Any]]:
        """Yields every step in the order in which its output is processed."""
        in_flight: list[dict[str, Any]] = []
        loop_step = 0
        while self.num_added < len(self.requests) or self.fleet.loads[0].num_running or self.fleet.loads[0].num_waiting:
            self.add_arrivals(loop_step)
            planned = self.plan()
            if planned:
                in_flight.append(planned)
            if in_flight and (not planned or len(in_flight) == self.in_flight_limit):
                yield self.deliver(in_flight.pop(0), loop_step, num_behind=len(in_flight))
            loop_step += 1
            if loop_step > 1_000_000:
                raise AssertionError("the replay does not end")

    def add_arrivals(self, loop_step: int) -> None:
        replica, waiting = self.fleet.replicas[0], self.fleet.loads[0]
        while self.num_added < len(self.requests) and self.requests[self.num_added]["arrival_step"] <= loop_step:
            request = self.fleet.requests[self.num_added]
            request.phase, request.machine = WAITING, replica.machine
            append(self.fleet, replica.waiting, self.num_added)
            waiting.num_waiting += 1
            waiting.waiting_tokens += request.num_prompt_tokens
            self.num_added += 1

    def plan(self) -> dict[str, Any]:
        """Plans a step and tells it in the recorder's words; {} when there was nothing to do."""
        requests, replica, gauges = self.fleet.requests, self.fleet.replicas[0], self.fleet.loads[0]
        ran, preemptions = set(self.running()), requests.num_preemptions[: self.num_added].copy()
        has_work = plan(self.fleet, 0, float(replica.num_steps))
        preempted = np.flatnonzero(requests.num_preemptions[: self.num_added] > preemptions)
        self.computed[preempted] = 0
        if not has_work:
            return {}
        scheduled = []
        for i in self.running():
            before, after = int(self.computed[i]), int(computed_tokens(requests[i], replica.num_steps - 1))
            if after > before:
                scheduled.append([self.names[i], after - before, before, int(requests[i].num_prompt_tokens)])
            self.computed[i] = after
        admitted = [i for i in self.running() if i not in ran]
        return {
            "reqs": scheduled,
            "new": [self.names[i] for i in admitted if requests[i].num_preemptions == 0],
            "resumed": sorted(self.names[i] for i in admitted if requests[i].num_preemptions > 0),
            "preempted": sorted(self.names[i] for i in preempted),
            "running": int(gauges.num_running),
            "waiting": int(gauges.num_waiting),
            "free_blocks": int(gauges.num_free_blocks),
        }

    def deliver(self, step: dict[str, Any], loop_step: int, num_behind: int) -> dict[str, Any]:
        self.fleet.replicas[0].is_planned = num_behind
        unfinished = np.isnan(self.fleet.requests.finished_at_s[: self.num_added])
        deliver(self.fleet, 0, float(loop_step))
        finished = np.flatnonzero(unfinished & ~np.isnan(self.fleet.requests.finished_at_s[: self.num_added]))
        return step | {"loop_step": loop_step, "finished": sorted(self.names[i] for i in finished)}

    def running(self) -> list[int]:
        found, i = [], int(self.fleet.replicas[0].running.head)
        while i != NONE:
            found.append(i)
            i = int(self.fleet.requests[i].next)
        return found


def recorded_steps(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the recorded steps; what vLLM calls free has the same meaning as ours (its null block is never free)."""
    for line in path.read_text().splitlines():
        step = json.loads(line)
        step["reqs"] = [row[:4] for row in step["reqs"]]
        for name in ("resumed", "preempted", "finished"):
            step[name] = sorted(step[name])
        yield step


def compare(workload_path: Path) -> tuple[int, int, str]:
    """Returns (steps, mismatched steps, the first mismatch side by side) of one recording."""
    workload = json.loads(workload_path.read_text())
    theirs = list(recorded_steps(workload_path.with_name(workload_path.name.replace("_workload.json", "_steps.jsonl"))))
    ours = list(Replay(workload).steps())
    mismatches, first = abs(len(ours) - len(theirs)), ""
    for number, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        wrong = [name for name in (*COMPARED, "loop_step") if our[name] != their[name]]
        mismatches += bool(wrong)
        if wrong and not first:
            sides = (f"  {name}: ours {our[name]}\n  {name}: vLLM {their[name]}" for name in wrong)
            first = "\n".join((f"step {number}", *sides))
    if len(ours) != len(theirs) and not first:
        first = f"{len(ours)} steps of ours, {len(theirs)} of vLLM"
    return len(theirs), mismatches, first


def main(folder: str) -> int:
    failed = 0
    for path in sorted(Path(folder).glob("*_workload.json")):
        workload = json.loads(path.read_text())
        missing = not_modelled(workload["engine_args"])
        if missing:
            print(f"{workload['name']:20} not modelled yet: {missing}")
            continue
        num_steps, mismatches, first = compare(path)
        print(f"{workload['name']:20} {num_steps:6} steps {mismatches:6} mismatches {first}")
        failed += bool(mismatches)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
