"""Records what vLLM's own scheduler decides, step by step, for workloads that enter by step index.

The classes are vLLM's (`Scheduler`, `AsyncScheduler`); the loop is that of its engine core (`EngineCore.step` and
`step_with_batch_queue`, vllm/v1/engine/core.py, 0.32.0 and 0.30.0 alike); the model's outputs are made up from the workload.
No model runs, so a run takes a millisecond a step or less. vLLM is needed only here: run this with an interpreter that has
the workload's version,

    python -m tests.conformance.record WORKLOAD.json... --out DIR     # writes DIR/NAME_workload.json, DIR/NAME_steps.jsonl
    python -m tests.conformance.record --check DIR                    # records DIR's workloads again and compares
    python -m tests.conformance.record --serve                        # workloads in, {"steps": [...]} out, a line each
"""

import argparse
import gzip
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tests.conformance.live_vllm import STOP_TOKEN, AnyGrammar, installed_version, load_vllm, new_request, new_scheduler
from tests.conformance.workloads import is_stopped_early, text_of, version_of

FILLER_TOKEN = 1  # drafts, and what a verification accepts beyond the end of a request: vLLM looks at neither
MAX_IDLE_LOOPS = 10_000


@dataclass
class Batch:
    """A scheduled step: vLLM's output, its row, and for each request that emits the most drafts it can accept."""

    output: Any
    row: dict[str, Any]
    num_verifiable: dict[str, int]


class Recorder:
    """vLLM's scheduler, driven by step index as its engine core would drive it."""

    def __init__(self, workload: dict[str, Any], model_config: Any) -> None:
        from vllm.utils.hashing import sha256  # type: ignore[import-not-found]
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # type: ignore[import-not-found]

        if version_of(workload) != installed_version():
            raise ValueError(f"this workload is for vLLM {version_of(workload)}, this is {installed_version()}")
        init_none_hash(sha256)
        arguments = workload["engine_args"]
        hasher = get_request_block_hasher(arguments["block_size"], sha256) if arguments.get("enable_prefix_caching") else None
        self.wanted = {r["id"]: r for r in sorted(workload["requests"], key=lambda r: r["arrival_step"])}
        self.arrivals = deque(new_request(r, position, hasher) for position, r in enumerate(self.wanted.values()))
        self.awaiting_grammar = [r for r in self.arrivals if r.use_structured_output]
        self.scheduler = new_scheduler(workload, model_config)
        self.in_flight_limit: int = self.scheduler.vllm_config.max_concurrent_batches
        self.prefill_interval: int = arguments.get("prefill_schedule_interval", 1)
        self.num_schedules = 0  # the data-parallel engine core's `step_counter`
        self.num_drafts: int = arguments.get("num_speculative_tokens", 0)
        self.in_flight: deque[Batch] = deque()

    def steps(self) -> Iterator[dict[str, Any]]:
        """Yields every step that ran a token, in the order in which its output is processed."""
        number = loop_step = idle_loops = 0
        while self.arrivals or self.in_flight or self.scheduler.has_requests():
            self.add_arrivals(loop_step)
            row = self.step_queued(loop_step) if self.in_flight_limit > 1 else self.step(loop_step)
            if row:
                yield {"step": number} | row
                number += 1
            idle_loops = 0 if row else idle_loops + 1
            loop_step += 1
            if idle_loops > MAX_IDLE_LOOPS:
                raise RuntimeError(f"{self.scheduler.get_request_counts()} requests running and waiting, and no step")

    def add_arrivals(self, loop_step: int) -> None:
        """Adds the requests that are due; then a structured request's grammar may have been compiled."""
        while self.arrivals and self.wanted[self.arrivals[0].request_id]["arrival_step"] <= loop_step:
            self.scheduler.add_request(self.arrivals.popleft())
        for request in self.awaiting_grammar[:]:
            if self.wanted[request.request_id]["grammar_ready_step"] <= loop_step:
                request.structured_output_request.grammar = AnyGrammar()
                self.awaiting_grammar.remove(request)

    def step(self, loop_step: int) -> dict[str, Any]:
        """`EngineCore.step` and `post_step`: schedule, run, process; then the drafts for the next step."""
        if not self.scheduler.has_requests():
            return {}
        batch = self.schedule()
        row = self.process(batch, loop_step)
        if self.num_drafts and row:
            self.propose(list(batch.output.num_scheduled_tokens))
        return row

    def step_queued(self, loop_step: int) -> dict[str, Any]:
        """`EngineCore.step_with_batch_queue`: filling the queue goes before processing its oldest batch.

        An empty batch takes a place in the queue as well. One with structured output whose masks depend on tokens in flight is
        put there after the oldest has been processed.
        """
        deferred: list[Batch] = []
        if self.scheduler.has_requests():
            batch = self.schedule()
            if batch.row["reqs"] and batch.output.pending_structured_output_tokens:
                deferred = [batch]
            else:
                self.in_flight.append(batch)
                if len(self.in_flight) < self.in_flight_limit and (batch.row["reqs"] or self.scheduler.has_requests()):
                    return {}
        row = self.process(self.in_flight.popleft(), loop_step) if self.in_flight else {}
        self.in_flight.extend(deferred)
        return row

    def schedule(self) -> Batch:
        scheduler = self.scheduler
        preemptions = {r.request_id: r.num_preemptions for r in scheduler.running}
        admitted = {r.request_id for queue in waiting_queues(scheduler) for r in queue}
        output = scheduler.schedule(self.num_schedules % self.prefill_interval != 0)
        self.num_schedules += 1
        requests = {name: scheduler.requests[name] for name in output.num_scheduled_tokens}  # in scheduling order
        num_drafts = {name: len(tokens) for name, tokens in output.scheduled_spec_decode_tokens.items()}
        computed = {name: r.num_computed_tokens - output.num_scheduled_tokens[name] for name, r in requests.items()}
        admitted &= requests.keys()
        row = {
            "reqs": [
                [name, output.num_scheduled_tokens[name], computed[name], r.num_prompt_tokens, r.num_tokens]
                for name, r in requests.items()
            ],
            "new": [name for name, r in requests.items() if name in admitted and not r.num_preemptions],
            "resumed": sorted(name for name, r in requests.items() if name in admitted and r.num_preemptions),
            "preempted": [name for name, before in preemptions.items() if scheduler.requests[name].num_preemptions > before],
            "running": len(scheduler.running),
            "waiting": sum(map(len, waiting_queues(scheduler))),
            "free_blocks": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            "total_blocks": scheduler.kv_cache_manager.block_pool.num_gpu_blocks,
            "cached": {name: computed[name] for name in requests if name in admitted},
        }
        if self.num_drafts:
            row["drafts"] = num_drafts
        # A request admitted for one token is padded with placeholders to the length of a verification; none is accepted.
        verifiable = {name: 0 if name in admitted else num_drafts.get(name, 0) for name, r in requests.items() if emits(r)}
        return Batch(output, row, verifiable)

    def process(self, batch: Batch, loop_step: int) -> dict[str, Any]:
        """Hands a batch's made-up outputs to the scheduler; returns its row, {} for a batch without tokens."""
        from vllm.v1.outputs import ModelRunnerOutput  # type: ignore[import-not-found]

        names = list(batch.output.num_scheduled_tokens)
        sampled = [self.sampled(name, batch.num_verifiable[name]) if name in batch.num_verifiable else [] for name in names]
        result = ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)
        outputs = self.scheduler.update_from_output(batch.output, result)
        if not names:
            return {}
        finished = [o.request_id for to_client in outputs.values() for o in to_client.outputs if o.finish_reason is not None]
        row: dict[str, Any] = {"loop_step": loop_step} | batch.row
        return row | {"finished": finished}

    def sampled(self, name: str, num_verifiable: int) -> list[int]:
        """Returns the accepted drafts and the token after them, as the workload wants the request to continue."""
        request, wanted = self.scheduler.requests.get(name), self.wanted[name]
        if request is None:  # it stopped while this step was in flight
            return [FILLER_TOKEN]
        known = request.num_output_tokens
        accepted = wanted.get("accepted", [0])
        num_accepted = min(accepted[known % len(accepted)], num_verifiable)
        return [output_token(wanted, i) for i in range(known, known + num_accepted + 1)]

    def propose(self, names: list[str]) -> None:
        """Proposes drafts for a step's requests; the scheduler itself ignores those in the middle of a prefill."""
        from vllm.v1.outputs import DraftTokenIds

        drafts = [[FILLER_TOKEN] * self.num_drafts for _ in names]
        self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))


def waiting_queues(scheduler: Any) -> list[Any]:
    """Returns a scheduler's queues: beside `waiting` the one that its version has."""
    names = ("waiting", "skipped_waiting", "kv_holding_waiting")
    return [getattr(scheduler, name) for name in names if hasattr(scheduler, name)]


def emits(request: Any) -> bool:
    """Whether a request that was just scheduled samples a token in this step."""
    return not request.is_prefill_chunk


def output_token(wanted: dict[str, Any], index: int) -> int:
    if index == wanted["output_len"] - 1 and is_stopped_early(wanted):
        return STOP_TOKEN
    tokens: list[int] = wanted["output_ids"]
    return tokens[index] if index < len(tokens) else FILLER_TOKEN


def write(workload_path: Path, folder: Path, model_config: Any) -> int:
    """Records a workload into a folder, gzipped if the workload is; returns the number of steps."""
    text = text_of(workload_path)
    workload = json.loads(text)
    lines = [json.dumps(row) + "\n" for row in Recorder(workload, model_config).steps()]
    folder.mkdir(parents=True, exist_ok=True)
    suffix = ".gz" if workload_path.suffix == ".gz" else ""
    for ending, content in (("workload.json", text), ("steps.jsonl", "".join(lines))):
        data = gzip.compress(content.encode(), mtime=0) if suffix else content.encode()
        (folder / f"{workload['name']}_{ending}{suffix}").write_bytes(data)
    return len(lines)


def check(folder: Path, model_config: Any) -> int:
    """Records a folder's workloads again and prints in how many steps anything that both recordings tell differs.

    Those of another version of vLLM are passed over.
    """
    num_failed = 0
    for path in sorted(folder.glob("*_workload.json*")):
        workload = json.loads(text_of(path))
        if version_of(workload) != installed_version():
            continue
        recorded = text_of(path.with_name(path.name.replace("_workload.json", "_steps.jsonl"))).splitlines()
        before, now = [json.loads(line) for line in recorded], list(Recorder(workload, model_config).steps())
        mismatched = [i for i, (a, b) in enumerate(zip(before, now, strict=False)) if not is_same(a, b)]
        num_mismatched = len(mismatched) + abs(len(before) - len(now))
        print(f"{workload['name']:20} {len(before):6} steps {num_mismatched:6} mismatches")
        if mismatched:
            print(f"  before {before[mismatched[0]]}\n  now    {now[mismatched[0]]}")
        num_failed += bool(num_mismatched)
    return num_failed


def is_same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two rows agree in every field that both have; `preempted` and `finished` have no order."""
    unordered = ("resumed", "preempted", "finished")
    return all(sorted(a[name]) == sorted(b[name]) if name in unordered else a[name] == b[name] for name in a.keys() & b.keys())


def serve(steps_of: Callable[[dict[str, Any]], Iterator[dict[str, Any]]], answers: TextIO) -> None:
    """Answers each workload on standard input with its steps and, under `error`, what went wrong after them, a line each."""
    for line in sys.stdin:
        steps: list[dict[str, Any]] = []
        answer: dict[str, Any] = {"steps": steps}
        try:
            for step in steps_of(json.loads(line)):
                steps.append(step)
        except Exception as error:  # the campaign tells it beside the workload
            answer["error"] = f"{type(error).__name__}: {error}"
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", type=Path, metavar="WORKLOAD.json")
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--check", type=Path, metavar="DIR")
    parser.add_argument("--serve", action="store_true")
    options = parser.parse_args()
    if bool(options.workloads) != bool(options.out) or not (options.out or options.check or options.serve):
        parser.error("give workloads and --out, or --check, or --serve")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to standard output
    model_config = load_vllm()
    if options.serve:
        serve(lambda workload: Recorder(workload, model_config).steps(), answers)
        return 0
    sys.stdout = answers
    for path in options.workloads:
        print(f"{path.name} {write(path, options.out, model_config)} steps")
    failed = check(options.check, model_config) if options.check else 0
    answers.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
