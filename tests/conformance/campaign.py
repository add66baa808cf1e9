"""Compares our scheduler with a live vLLM's on many random workloads, every decision of every step.

    python -m tests.conformance.campaign --live PYTHON [--workloads 500] [--steps 1000000] [--features prefix,async]

PYTHON is an interpreter with vLLM 0.32.0 or 0.30.0; it records each workload (tests/conformance/record.py), we replay it. A
workload on which the two differ is made smaller as long as they still differ, and printed with the first step that differs.
"""

import argparse
import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tests.conformance.replay import COMPARED, MORE_COMPARED, not_modelled
from tests.conformance.shrink import Workload, shrunk
from tests.conformance.workloads import FEATURES, features_of, generate

MAX_SECONDS = 300  # for one workload of one side; the first one includes imports and compilation
MAX_SHRUNK = 10  # failures of a run; what is wrong once is mostly wrong often
Step = dict[str, Any]


class Side:
    """A process that tells its scheduler's steps of the workloads it is given, started again when it dies."""

    def __init__(self, *command: str) -> None:
        self.command = command
        self.start()

    def start(self) -> None:
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(self.command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def steps(self, workload: Workload) -> tuple[list[Step], str]:
        """Returns the steps, and what went wrong after them, or ''."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        killer = threading.Timer(MAX_SECONDS, self.process.kill)
        killer.start()
        try:
            self.process.stdin.write(json.dumps(workload) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        killer.cancel()
        if line:
            answer = json.loads(line)
            return answer["steps"], answer.get("error", "")
        code = self.process.wait()
        self.start()
        return [], f"it took over {MAX_SECONDS} s" if code == -signal.SIGKILL else f"its process ended with code {code}"

    def close(self) -> None:
        self.process.communicate()


@dataclass
class Sides:
    """Our scheduler and vLLM's."""

    ours: Side
    live: Side

    def first_mismatch(self, workload: Workload, theirs: list[Step]) -> tuple[int, str]:
        """Returns the number of the first step that differs and both sides of it; (-1, '') when none does."""
        ours, error = self.ours.steps(workload)
        for number, (our, their) in enumerate(zip(ours, theirs, strict=False)):
            if sides := different(our, their):
                return number, f"step {number}\n{sides}"
        number = min(len(ours), len(theirs))
        if error:
            return number, f"step {number}: ours failed: {error}"
        if len(ours) == len(theirs):
            return -1, ""
        return number, f"step {number}: ours {ours[number:][:1] or 'has ended'}\n  vLLM {theirs[number:][:1] or 'has ended'}"

    def differ(self, workload: Workload) -> bool:
        """Whether the two differ on a workload; what vLLM fails on tells nothing."""
        theirs, error = self.live.steps(workload)
        return not error and self.first_mismatch(workload, theirs)[0] >= 0


@dataclass
class Tally:
    """What a campaign has seen so far."""

    workloads: Counter[str] = field(default_factory=Counter)  # by feature; 'all' counts every one
    steps: Counter[str] = field(default_factory=Counter)
    mismatched: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)  # by what is not modelled
    failures: list[str] = field(default_factory=list)

    def fail(self, failure: str) -> None:
        self.failures.append(failure)
        print(failure, end="\n\n", flush=True)

    def add(self, workload: Workload, num_steps: int, is_mismatched: bool) -> None:
        for name in ("all", *features_of(workload)):
            self.workloads[name] += 1
            self.steps[name] += num_steps
            self.mismatched[name] += is_mismatched

    def __iadd__(self, other: "Tally") -> "Tally":
        for name in ("workloads", "steps", "mismatched", "skipped", "failures"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    def __str__(self) -> str:
        lines = [f"{'feature':12} {'workloads':>10} {'steps':>10} {'mismatched workloads':>21}"]
        for name in ("all", *FEATURES):
            lines.append(f"{name:12} {self.workloads[name]:10} {self.steps[name]:10} {self.mismatched[name]:21}")
        lines.extend(f"not modelled: {reason}, {number} workloads skipped" for reason, number in self.skipped.items())
        return "\n".join(lines)


def different(our: Step, their: Step) -> str:
    """Returns the fields in which two steps differ, side by side; what is a set to vLLM is compared without order."""
    their = their | {name: sorted(their[name]) for name in ("resumed", "preempted", "finished")}
    their["reqs"] = [row[:4] for row in their["reqs"]]
    compared = [*COMPARED, *(name for name in MORE_COMPARED if name in their)]
    lines = (f"  {name}: ours {our[name]}\n  {name}: vLLM {their[name]}" for name in compared if our[name] != their[name])
    return "\n".join(lines)


def run(seeds: Iterable[int], options: argparse.Namespace) -> Tally:
    """Compares the workloads of some seeds until there are enough steps."""
    tally = Tally()
    sides = Sides(
        Side(sys.executable, "-m", "tests.conformance.ours"),
        Side(options.live, "-m", "tests.conformance.record", "--serve"),
    )
    version = version_of(options.live)
    allowed = options.features.split(",") if options.features else tuple(FEATURES)
    for seed in tqdm(seeds, unit=" workloads", disable=None):
        workload = generate(seed, allowed, vllm_version=version)
        missing = not_modelled(workload["engine_args"])
        if missing:
            tally.skipped[missing] += 1
            continue
        compare(workload, sides, tally, options.keep)
        if tally.steps["all"] >= options.steps / options.jobs:
            break
    sides.ours.close()
    sides.live.close()
    return tally


def version_of(python: str) -> str:
    """Returns the version of the vLLM that an interpreter has."""
    ask = "from tests.conformance.live_vllm import installed_version; print(installed_version())"
    answer = subprocess.run([python, "-c", ask], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    return answer.stdout.split()[-1]


def compare(workload: Workload, sides: Sides, tally: Tally, keep: Path | None) -> None:
    """Compares one workload and adds what it found to the tally; a failure comes with its smallest workload."""
    what = f"{workload['name']} {features_of(workload)}"
    theirs, error = sides.live.steps(workload)
    is_mismatched = bool(error) or sides.first_mismatch(workload, theirs)[0] >= 0
    tally.add(workload, len(theirs), is_mismatched)
    if error:
        tally.fail(f"{what}: vLLM failed: {error}")
    elif is_mismatched and len(tally.failures) >= MAX_SHRUNK:
        tally.fail(f"{what}: differs, not shrunk")
    elif is_mismatched:
        smallest = shrunk(workload, sides.differ)
        theirs, _ = sides.live.steps(smallest)
        told = (f"{what}, shrunk to {features_of(smallest)}:", json.dumps(smallest), sides.first_mismatch(smallest, theirs)[1])
        tally.fail("\n".join(told))
        if keep:
            write(keep, smallest | {"name": workload["name"]}, theirs)


def write(folder: Path, workload: Workload, steps: list[Step]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{workload['name']}_workload.json").write_text(json.dumps(workload))
    (folder / f"{workload['name']}_steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", required=True, metavar="PYTHON", help="an interpreter with vLLM 0.32.0 or 0.30.0")
    parser.add_argument("--workloads", type=int, default=500)
    parser.add_argument("--steps", type=int, default=1_000_000, help="stop after so many steps of vLLM's")
    parser.add_argument("--seed", type=int, default=1, help="of the first workload; each next one has the next seed")
    parser.add_argument("--features", default="", help=f"draw only from these, with commas: {', '.join(FEATURES)}")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the shrunk failures there, as recordings")
    options = parser.parse_args(arguments)
    unknown = set(filter(None, options.features.split(","))) - set(FEATURES)
    if unknown:
        parser.error(f"no features {sorted(unknown)}; known: {', '.join(FEATURES)}")
    seeds = range(options.seed, options.seed + options.workloads)
    tally = Tally()
    if options.jobs == 1:
        tally += run(seeds, options)
    else:
        with ProcessPoolExecutor(options.jobs) as pool:
            for job in [pool.submit(run, seeds[i :: options.jobs], options) for i in range(options.jobs)]:
                tally += job.result()
    print(tally)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
