"""`make bench`: how fast, from start to finished Parquet and in the data plane alone. Figures, never assertions.

Every figure is the median of its repetitions, in a process of its own held to one core; the whole takes some minutes.
`python -m tests.benchmarks NAME ...` runs only those that are named.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import experiments.contracts.fleets as fleets
from sim.records import ARRIVAL
from tests.shared import FOLDER

ROOT = Path(__file__).parents[2]


def main(names: list[str]) -> None:
    print(f"{platform.platform()}, {processor()}, {os.cpu_count()} cores; each figure on one core")
    for name in names or list(BENCHMARKS):
        for line in BENCHMARKS[name]():
            print(f"  {line}", flush=True)


def processor() -> str:
    """Returns the processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


class Spent(NamedTuple):
    """What a process took."""

    wall_s: float
    cpu_s: float


def spent(*arguments: str, cache: str | None = None, code: int = 0) -> Spent:
    """Returns what a Python process on one core took that ends with this exit code."""
    environment = os.environ | ({"NUMBA_CACHE_DIR": cache} if cache else {})
    started_at_s, before = time.perf_counter(), os.times()
    command = [sys.executable, *arguments]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, preexec_fn=one_core)
    wall_s, after = time.perf_counter() - started_at_s, os.times()
    if ran.returncode != code:
        raise RuntimeError(f"{command}: exit code {ran.returncode}\n{ran.stderr.decode()}")
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Spent(wall_s, cpu_s)


def in_process(*arguments: str) -> float:
    """Returns the wall seconds of a Python process on one core."""
    return spent(*arguments).wall_s


def days(num_days: int) -> list[str]:
    """The opening question, a whole number of days, from a cached start to finished Parquet."""
    with tempfile.TemporaryDirectory() as out:
        config = "configs/opening_question.yaml"
        seconds = in_process("run_experiment.py", config, "--out", out, "--set", f"traffic.duration_s={num_days * 86400}.0")
        manifest = json.loads((Path(out) / "opening_question" / "manifest.json").read_text())
    counts, wall_s = manifest["counts"], manifest["wall_s"]
    return [
        f"opening_question.yaml, {num_days} day(s): {seconds:.1f} s in all ({wall_s['simulate']:.1f} s simulating and writing, "
        f"{wall_s['summarise']:.1f} s summing up)",
        f"  {counts['requests']:,} requests, {counts['tokens']:,} tokens, {counts['steps']:,} steps: "
        f"{counts['requests'] / seconds:,.0f} requests/s; peak memory {manifest['peak_memory_bytes'] / 1e6:,.0f} MB",
    ]


FIRST_EVENT = """
from experiments.settings.loading import load
from experiments.wiring import Wiring
from experiments.contracts.fleets import Kept
wiring = Wiring(load("configs/opening_question.yaml")[0].experiment, Kept(), print)
wiring.plane.load(next(wiring.simulation.arrivals))
wiring.plane.run_until(1.0)
"""


def start() -> list[str]:
    """Time to a first result, with the compiled code cached and without."""
    smoke = ("run_experiment.py", "configs/cpu_overlap.yaml", "--smoke", "--force", "--jobs", "1", "--set", "sweep=null")
    day = ("run_experiment.py", "configs/day_forecast_vs_reactive.yaml")
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as cache:
        cold = spent(*smoke, "--out", out, cache=cache)
        cached = [spent(*smoke, "--out", out, cache=cache) for _ in range(5)]
        first_event = [spent("-c", FIRST_EVENT, cache=cache) for _ in range(3)]
        typo = [spent(*day, "--set", "router.knd=random", code=2) for _ in range(5)]
        dry_run = [spent(*day, "--dry-run") for _ in range(5)]
    return [
        f"start, compile, and a run of 2,000 requests with its report: {cold.wall_s:.1f} s",
        f"the same with the code cached: {_median(cached)}",
        f"start to the first event of the opening question, code cached: {_median(first_event)}",
        f"a typo in a config: {_median(typo)}",
        f"a dry run: {_median(dry_run)}",
    ]


def _median(runs: list[Spent]) -> str:
    wall_s, cpu_s = (statistics.median(times) for times in zip(*runs, strict=True))
    return f"{wall_s:.2f} s, {cpu_s:.2f} s of CPU"


def poisson(num_requests: int, per_s: float, mean_prompt: float, mean_output: float) -> np.ndarray:
    """(n,) ARRIVAL with lognormal lengths."""
    rng = np.random.default_rng(1)
    rows = np.zeros(num_requests, ARRIVAL)
    rows["arrived_at_s"] = np.cumsum(rng.exponential(1 / per_s, num_requests))
    for name, mean in (("num_prompt_tokens", mean_prompt), ("num_output_tokens", mean_output)):
        rows[name] = np.clip(rng.lognormal(np.log(mean) - 0.32, 0.8, num_requests), 1, 5 * mean)
    return rows


def timed(arriving: np.ndarray, **options: object) -> tuple[float, int]:
    """Returns (CPU seconds, engine steps) of a run; the best of three, as other load only ever adds."""
    found = []
    for _ in range(3):
        started = time.process_time()
        ran = fleets.run(arriving, timeline_interval_s=1e6, interval_s=1e6, chunk=1 << 15, **options)  # type: ignore[arg-type]
        found.append((time.process_time() - started, int(ran.plane.fleet.replicas["num_steps"].sum())))
    return min(found)


def data_plane() -> list[str]:
    """A light engine: short answers, a fixed step time."""
    arriving = poisson(1_000_000, 4000.0, 500, 20)
    light = fleets.engine(overhead_s=0.02, async_scheduling=1)
    seconds, steps = timed(arriving, engines=light, replicas=20, router="power_of_d_choices")
    return [f"data plane alone, 20 light replicas: {1e6 / seconds:,.0f} requests/s, {steps / seconds:,.0f} steps/s"]


MOONCAKE = """
import sys, time
from experiments.settings.loading import load
from experiments.wiring import Wiring
from experiments.contracts.fleets import Kept
best = []
for _ in range(3):
    run = load("configs/mooncake.yaml", sets=["traffic.path=" + sys.argv[1]])[0]
    wiring = Wiring(run.experiment, Kept(), lambda *told: None)
    plane, spent = wiring.plane, []
    run_until, load_rows = plane.run_until, plane.load

    def timed(function):
        def call(*arguments):
            started = time.process_time()
            found = function(*arguments)
            spent.append(time.process_time() - started)
            return found
        return call

    plane.run_until, plane.load = timed(run_until), timed(load_rows)
    wiring.simulation.run()
    best.append(sum(spent))
rows = wiring.simulation.sink.rows
cached = sum(int(block["num_cached_tokens"].sum()) for block in rows)
prompts = sum(int(block["num_prompt_tokens"].sum()) for block in rows)
print(min(best), sum(map(len, rows)), prompts, cached / prompts, int(plane.fleet.replicas["num_steps"].sum()))
"""


def mooncake() -> list[str]:
    """The Mooncake conversation trace on eight replicas with prefix caching, in the data plane; skipped without the trace."""
    trace = FOLDER / "data/traces/mooncake/conversation_trace.jsonl"
    if not trace.exists():
        return [f"mooncake: {trace} is not here"]
    command = [sys.executable, "-c", MOONCAKE, str(trace)]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, preexec_fn=one_core).stdout.split()
    return [
        f"mooncake.yaml, data plane: {float(told[0]):.2f} s for {int(told[1]):,} requests, {int(told[2]):,} prompt tokens in "
        f"16-token blocks, {int(told[4]):,} steps; {float(told[3]):.1%} of the prompt tokens from the caches"
    ]


def batches() -> list[str]:
    """The cost of a step as the batch grows: half a million steps of decodes, with nobody coming or going."""
    lines = []
    for batch in (8, 64, 512):
        rows = poisson(batch, 1e6, 500, 1)
        rows["num_output_tokens"] = 500_000
        limits = fleets.engine(max_num_seqs=batch, num_usable_blocks=10**8)
        seconds, steps = timed(rows, engines=limits)
        lines.append(f"a step with {batch} requests: {seconds / steps * 1e9:,.0f} ns")
    return lines


def replicas() -> list[str]:
    """The cost of a request as the fleet grows: 200 s of 8 requests/s and 20 steps/s on every replica."""
    lines = []
    for router in ("least_tokens", "power_of_d_choices"):
        cost = {}
        for num_replicas in (20, 1000):
            arriving = poisson(1600 * num_replicas, 8.0 * num_replicas, 2000, 400)
            seconds, _ = timed(arriving, engines=fleets.engine(overhead_s=0.05), replicas=num_replicas, router=router)
            cost[num_replicas] = seconds / len(arriving)
        lines.append(
            f"{router}, 1,000 replicas at 8,000 requests/s: {cost[1000] * 1e6:.2f} us a request, "
            f"{cost[1000] / cost[20]:.2f} times that of 20 replicas at 160"
        )
    return lines


def overload() -> list[str]:
    """The cost of a request as the queue grows: one replica, six priorities, twenty times what it serves."""
    urgent = fleets.classes(*((priority, 0, 0, 0.0) for priority in range(6)))
    limits = fleets.engine(max_num_seqs=64, schedules_by_priority=1)
    cost = {}
    for num_requests in (40_000, 320_000):
        rows = poisson(num_requests, 6000.0, 200, 20)
        rows["class_id"] = np.random.default_rng(1).integers(6, size=num_requests)
        seconds, _ = timed(rows, engines=limits, classes=urgent)
        cost[num_requests] = seconds / num_requests
    return [
        f"an overloaded replica with six priorities, 320,000 requests: {cost[320_000] * 1e6:.2f} us a request, "
        f"{cost[320_000] / cost[40_000]:.2f} times that of 40,000"
    ]


FLEET = """
traffic:
  kind: poisson
  rate_per_s: {per_s}
  duration_s: {duration_s}
  lengths: {{prompt: {{kind: lognormal, mean: 1000, p99: 5000}}, output: {{kind: lognormal, mean: 200, p99: 1000}}}}
router: {{kind: {router}}}
pools:
  - name: main
    model: llama-3.1-8b
    gpu: h100-sxm
    replicas: {{kind: surrogate, flops_efficiency: 0.5}}
    autoscaler: {{kind: fixed, replicas: {replicas}}}
"""


def whole_runs() -> list[str]:
    """The same through the command, traffic and Parquet included: 1.6 M requests and as many steps each on both fleets."""
    lines = []
    for router in ("least_tokens", "power_of_d_choices"):
        cost = {}
        for num_replicas in (20, 1000):
            with tempfile.TemporaryDirectory() as out:
                config = Path(out) / "fleet.yaml"
                size = {"per_s": 8 * num_replicas, "duration_s": 200_000 / num_replicas, "replicas": num_replicas}
                config.write_text(FLEET.format(router=router, **size))
                in_process("run_experiment.py", str(config), "--out", out)
                manifest = json.loads((Path(out) / "fleet" / "manifest.json").read_text())
            cost[num_replicas] = sum(manifest["wall_s"].values()) / manifest["counts"]["requests"]
        lines.append(
            f"{router}, a whole run of 1,000 replicas at 8,000 requests/s: {cost[1000] * 1e6:.2f} us a request, "
            f"{cost[1000] / cost[20]:.2f} times that of 20 replicas at 160"
        )
    return lines


BENCHMARKS: dict[str, Callable[[], list[str]]] = {
    "start": start,
    "day": lambda: days(1),
    "two_days": lambda: days(2),
    "data_plane": data_plane,
    "batches": batches,
    "replicas": replicas,
    "overload": overload,
    "whole_runs": whole_runs,
    "mooncake": mooncake,
}

if __name__ == "__main__":
    one_core()
    main(sys.argv[1:])
