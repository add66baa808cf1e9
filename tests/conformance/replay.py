"""Replays recorded vLLM workloads on our scheduler, step by step, and compares every decision.

A recording (`NAME_workload.json`, `NAME_steps.jsonl`) lets requests in by step index, so no timing is involved.
`python -m tests.conformance.replay DIR` prints a line a workload and the first mismatch side by side.
"""

import json
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba as nb
import numpy as np

from experiments.contracts.fleets import ASKED
from replicas.batches import take_up
from replicas.door import enqueue
from replicas.eviction import clear
from replicas.kv_blocks import computed_tokens
from replicas.queues import slot_of
from replicas.vllm.delivery import deliver
from replicas.vllm.scheduler import plan
from sim.compiled import loop
from sim.metrics import NUM_ITL_BINS
from sim.records import ARRIVAL, CLASS, ENGINE, NONE, SEGMENT, Fleet, records
from sim.signatures import FLEET_TYPE
from sim.window import load, new_fleet
from tests.caches import bring_in
from tests.conformance.workloads import text_of, version_of

COMPARED = ("reqs", "new", "resumed", "preempted", "finished", "running", "waiting", "free_blocks")
MORE_COMPARED = ("loop_step", "cached", "drafts")  # where the recording tells them


MODELLED = {
    "max_num_seqs", "max_num_batched_tokens", "block_size", "num_gpu_blocks_override", "watermark", "max_model_len",
    "enable_chunked_prefill", "scheduler_reserve_full_isl", "async_scheduling", "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive", "scheduling_policy", "enable_prefix_caching", "max_loras",
    "num_speculative_tokens", "speculative_method", "acceptance_rate", "pipeline_parallel_size", "prefill_schedule_interval",
}  # fmt: skip
WITHOUT_EFFECT = {
    "model", "load_format", "skip_tokenizer_init", "dtype", "enforce_eager", "seed", "scheduler_cls", "disable_log_stats",
}  # fmt: skip


def not_modelled(arguments: dict[str, Any]) -> str:
    """Returns which of a workload's engine arguments are not known here, or ''."""
    return ", ".join(sorted(set(arguments) - MODELLED - WITHOUT_EFFECT))


def engine_of(workload: dict[str, Any]) -> Any:
    """Returns the (1,) ENGINE of a workload's engine arguments."""
    arguments = workload["engine_args"]
    num_drafts = arguments.get("num_speculative_tokens", 0)
    is_eagle = arguments.get("speculative_method") == "eagle"
    engine = records(ENGINE, 1)
    engine.max_num_seqs = arguments["max_num_seqs"]
    engine.max_num_batched_tokens = arguments["max_num_batched_tokens"]
    engine.data_parallel_size = engine.num_together = 1
    engine.num_stages = arguments.get("pipeline_parallel_size", 1)
    engine.prefill_schedule_interval = arguments.get("prefill_schedule_interval", 1)
    engine.block_size = arguments["block_size"]
    engine.num_usable_blocks = workload["num_gpu_blocks"] - 1
    engine.watermark_blocks = int(arguments.get("watermark", 0.0) * workload["num_gpu_blocks"])
    engine.max_model_len = arguments["max_model_len"]
    engine.enable_chunked_prefill = arguments.get("enable_chunked_prefill", True)
    engine.scheduler_reserve_full_isl = arguments.get("scheduler_reserve_full_isl", True)
    engine.async_scheduling = arguments.get("async_scheduling", False)
    engine.long_prefill_token_threshold = arguments.get("long_prefill_token_threshold", 0)
    engine.long_prefill_token_threshold_adaptive = arguments.get("long_prefill_token_threshold_adaptive", False)
    engine.threshold_binds_alone = engine.passed_by_go_first = version_of(workload) == "0.30.0"
    engine.schedules_by_priority = arguments.get("scheduling_policy", "fcfs") == "priority"
    engine.enable_prefix_caching = arguments.get("enable_prefix_caching", False)
    engine.max_loras = arguments.get("max_loras", 0)
    engine.num_speculative_tokens = num_drafts
    engine.num_lookahead_tokens = num_drafts if is_eagle else 0
    engine.drops_last_hit = is_eagle
    engine.acceptance_rate = arguments.get("acceptance_rate", 0.0)
    return engine


@loop(nb.types.void(FLEET_TYPE, nb.types.int64, nb.types.float64))
def add_request(fleet: Fleet, i: int, now_s: float) -> None:
    enqueue(fleet, 0, i, now_s)


@loop(nb.types.boolean(FLEET_TYPE, nb.types.float64))
def plan_step(fleet: Fleet, now_s: float) -> bool:
    is_planned = plan(fleet, 0, now_s)
    if is_planned:
        take_up(fleet, 0)
    return is_planned


@loop(nb.types.void(FLEET_TYPE, nb.types.float64))
def deliver_step(fleet: Fleet, now_s: float) -> None:
    deliver(fleet, 0, now_s)


@loop(nb.types.int64(FLEET_TYPE, nb.types.int64[::1], nb.types.int64[::1]))
def computed_of_running(fleet: Fleet, ids: Any, computed: Any) -> int:
    """Fills in the ids of the running requests and their computed tokens, and returns how many they are."""
    num_running, i = 0, fleet.replicas[0].running.head
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        ids[num_running] = i
        computed[num_running] = computed_tokens(request, fleet.replicas[0].num_steps - 1)
        num_running += 1
        i = request.next
    return num_running


class Contents:
    """Token ids as segments: for each block of tokens one segment, the same for all requests that begin alike."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.numbers: dict[tuple[int, ...], int] = {}

    def segments_of(self, tokens: list[int]) -> list[tuple[int, int]]:
        """Returns (content, number of tokens) of every full block; only they are ever compared."""
        ends = range(self.block_size, len(tokens) + 1, self.block_size)
        return [(self.numbers.setdefault(tuple(tokens[:end]), len(self.numbers)), self.block_size) for end in ends]


class Replay:
    """One replica driven by step index, as the recorder drove vLLM's scheduler."""

    def __init__(self, workload: dict[str, Any]) -> None:
        self.requests = sorted(workload["requests"], key=lambda r: r["arrival_step"])
        self.names = [r["id"] for r in self.requests]
        classes = records(CLASS, len(self.requests))  # each request is of its own class
        for number, request in enumerate(self.requests):
            classes[ASKED][number] = self._class(request, workload["engine_args"])
        contents = Contents(workload["engine_args"]["block_size"])
        segments = [contents.segments_of(r["prompt"] + r["output_ids"]) for r in self.requests]
        arrivals = np.zeros(len(self.requests), ARRIVAL)
        arrivals["num_prompt_tokens"] = [len(r["prompt"]) for r in self.requests]
        arrivals["num_output_tokens"] = [r["output_len"] for r in self.requests]
        arrivals["class_id"] = np.arange(len(self.requests))
        arrivals["num_segments"] = [len(own) for own in segments]
        engine = engine_of(workload)
        fleet = new_fleet(engine, 1, NUM_ITL_BINS, classes=classes)
        self.fleet = load(fleet, arrivals, np.array([one for own in segments for one in own], SEGMENT))
        bring_in(self.fleet)
        self.fleet.loads[0].num_usable_blocks = engine[0].num_usable_blocks
        clear(self.fleet, 0)
        self.in_flight_limit = int(engine[0].num_stages + engine[0].async_scheduling)
        self.has_finished = False  # and the scheduler has not told its workers, which it does with the next step
        self.num_added = 0
        self.ids, self.computed = np.zeros((2, len(self.requests)), np.int64)

    def _class(self, request: dict[str, Any], arguments: dict[str, Any]) -> tuple[Any, ...]:
        """Returns what a CLASS record asks of the engine, in the order of `ASKED`, with a step as the unit of time.

        Steps are planned half a step after arrivals, so that a grammar that is compiled at once counts as one, too.
        """
        adapter = request.get("lora", 0) if arguments.get("max_loras") else 0
        grammar_s = 0.0
        if "grammar_ready_step" in request:
            grammar_s = max(0, request["grammar_ready_step"] - request["arrival_step"]) + 0.25
        return request.get("priority", 0), adapter, request.get("max_tokens", request["output_len"]), grammar_s, 1, 0

    def steps(self) -> Iterator[dict[str, Any]]:
        """Yields every step in the order in which its output is processed."""
        in_flight: deque[dict[str, Any]] = deque()  # {} for a plan without work, which takes a place as well
        loop_step = 0
        while self.num_added < len(self.requests) or in_flight or self.has_requests():
            self.add_arrivals(loop_step)
            if not self.turn(in_flight, loop_step) and in_flight:
                step = in_flight.popleft()
                if step:
                    yield self.deliver(step, loop_step)
            loop_step += 1
            if loop_step > 1_000_000:
                raise AssertionError("the replay does not end")

    def turn(self, in_flight: deque[dict[str, Any]], loop_step: int) -> bool:
        """Plans a step, if there is anything to plan for, and tells whether another may be planned behind it at once."""
        if not self.has_requests():
            return False
        self.has_finished = False
        planned = self.plan(loop_step)
        in_flight.append(planned)
        awaits_tokens = bool(planned) and self.batch().awaits_tokens
        return len(in_flight) < self.in_flight_limit and not awaits_tokens and (bool(planned) or self.has_requests())

    def has_requests(self) -> bool:
        return bool(self.fleet.loads[0].num_running or self.fleet.loads[0].num_waiting or self.has_finished)

    def batch(self) -> Any:
        """The step that was planned last."""
        fleet = self.fleet
        return fleet.batches[0, int(fleet.replicas[0].num_steps - 1) & (fleet.batches.shape[1] - 1)]

    def add_arrivals(self, loop_step: int) -> None:
        while self.num_added < len(self.requests) and self.requests[self.num_added]["arrival_step"] <= loop_step:
            add_request(self.fleet, self.num_added, float(loop_step))
            self.num_added += 1

    def plan(self, loop_step: int) -> dict[str, Any]:
        """Plans a step and tells it in the recorder's words; {} when there was nothing to do."""
        requests, gauges = self.fleet.requests, self.fleet.loads[0]
        before = self.computed_tokens()
        preemptions = requests.num_preemptions[: self.num_added].copy()
        has_work = plan_step(self.fleet, loop_step + 0.5)
        if not has_work:
            return {}
        after = self.computed_tokens()
        admitted = [i for i in after if i not in before]
        before |= {i: after[i] - int(requests[i].num_new_tokens) for i in admitted}
        preempted = np.flatnonzero(requests.num_preemptions[: self.num_added] > preemptions)
        scheduled = [i for i in after if after[i] > before[i]]
        return {
            "reqs": [[self.names[i], after[i] - before[i], before[i], int(requests[i].num_prompt_tokens)] for i in scheduled],
            "new": [self.names[i] for i in admitted if requests[i].num_preemptions == 0],
            "resumed": sorted(self.names[i] for i in admitted if requests[i].num_preemptions > 0),
            "preempted": sorted(self.names[i] for i in preempted),
            "running": int(gauges.num_running),
            "waiting": int(gauges.num_waiting),
            "free_blocks": int(gauges.num_free_blocks),
            "cached": {self.names[i]: before[i] for i in admitted},
            "drafts": self.drafts(scheduled),
        }

    def drafts(self, scheduled: list[int]) -> dict[str, int]:
        """Returns how many drafts the step just planned checks, by request."""
        if not self.fleet.engines[0].num_speculative_tokens:
            return {}
        half = int(self.batch().half)
        counts = {i: int(self.fleet.sequences[i].num_scheduled_drafts[half]) for i in scheduled}
        return {self.names[i]: count for i, count in counts.items() if count}

    def deliver(self, step: dict[str, Any], loop_step: int) -> dict[str, Any]:
        unfinished = np.isnan(self.fleet.requests.finished_at_s[: self.num_added])
        deliver_step(self.fleet, float(loop_step))
        finished = np.flatnonzero(unfinished & ~np.isnan(self.fleet.requests.finished_at_s[: self.num_added]))
        self.has_finished |= len(finished) > 0
        return step | {"loop_step": loop_step, "finished": sorted(self.names[i] for i in finished)}

    def computed_tokens(self) -> dict[int, int]:
        """Returns the tokens computed of each running request, in their order."""
        num_running = computed_of_running(self.fleet, self.ids, self.computed)
        return dict(zip(self.ids[:num_running].tolist(), self.computed[:num_running].tolist(), strict=True))


def recorded_steps(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the recorded steps; what vLLM calls free has the same meaning as ours (its null block is never free)."""
    for line in text_of(path).splitlines():
        step = json.loads(line)
        step["reqs"] = [row[:4] for row in step["reqs"]]
        for name in ("resumed", "preempted", "finished"):
            step[name] = sorted(step[name])
        yield step


def compare(workload_path: Path) -> tuple[int, int, str]:
    """Returns (steps, mismatched steps, the first mismatch side by side) of one recording."""
    workload = json.loads(text_of(workload_path))
    theirs = list(recorded_steps(workload_path.with_name(workload_path.name.replace("_workload.json", "_steps.jsonl"))))
    ours = list(Replay(workload).steps())
    mismatches, first = abs(len(ours) - len(theirs)), ""
    for number, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        wrong = [name for name in (*COMPARED, *MORE_COMPARED) if name in their and our[name] != their[name]]
        mismatches += bool(wrong)
        if wrong and not first:
            sides = (f"  {name}: ours {our[name]}\n  {name}: vLLM {their[name]}" for name in wrong)
            first = "\n".join((f"step {number}", *sides))
    if len(ours) != len(theirs) and not first:
        first = f"{len(ours)} steps of ours, {len(theirs)} of vLLM"
    return len(theirs), mismatches, first


def main(folder: str) -> int:
    failed = 0
    for path in sorted(Path(folder).glob("*_workload.json*")):
        missing = not_modelled(json.loads(text_of(path))["engine_args"])
        if missing:
            print(f"{path.name.partition('_workload.json')[0]:28} not modelled: {missing}")
            continue
        num_steps, mismatches, first = compare(path)
        print(f"{path.name.partition('_workload.json')[0]:28} {num_steps:6} steps {mismatches:6} mismatches {first}")
        failed += bool(mismatches)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
