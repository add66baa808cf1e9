"""Runs one simulation from its config to a whole result folder."""

import contextlib
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import simpy
from tqdm import tqdm

from experiments import calibrated, live
from experiments.manifest import manifest
from experiments.pages.figures import percent
from experiments.results.asked import Asked
from experiments.results.tables import write_json
from experiments.results.writer import PoolInfo, RunWriter
from experiments.settings.experiment import Experiment
from experiments.settings.loading import RunConfig
from experiments.whole_folder import whole_folder
from experiments.wiring import Wiring
from replicas.capacity import Capacity
from sim.errors import ConfigError, EngineError
from sim.records import Fleet
from traces.reuse import ideal_hit_rate
from traces.traffic import remarks


def run_one(
    run: RunConfig,
    folder: Path,
    progress: bool | None = False,
    line: int = 0,
    prepare: Callable[[Wiring], None] = lambda wiring: None,
) -> None:
    """Simulates `run` and leaves its results in `folder`, which is replaced as a whole or not at all.

    Args:
        run: the resolved config.
        folder: where the results go.
        progress: shows simulated time, requests/s and the time left, on stderr; None = in a line a minute instead of a bar.
        line: which line of the terminal that is, where several runs share it.
        prepare: changes what is wired up, before it runs.

    Raises:
        ConfigError: a router chose no candidate, or the measured window begins after the end of the traffic.
        TraceError: the traffic file is wrong.
        EngineError: a real engine did not start, or failed; then the results so far are there.
        InvariantError: our mistake; nothing is left behind.
    """
    with whole_folder(folder) as partial:
        failure = _simulate(run, partial, progress, line, prepare)
    if failure:
        raise EngineError(f"{failure}; the results so far are in {folder}")


def _simulate(run: RunConfig, folder: Path, progress: bool | None, line: int, prepare: Callable[[Wiring], None]) -> str:
    """Returns what ended the run before its time; empty when nothing did."""
    started = time.perf_counter()
    experiment = _simulation(run)
    (folder / "config.yaml").write_text(run.yaml, encoding="utf-8")
    if mistake := experiment.window_mistake():
        raise ConfigError(mistake)
    measure = experiment.measure
    asked = Asked(experiment.traffic)
    writer = RunWriter(
        folder,
        pools=[PoolInfo(pool.name) for pool in experiment.pools],
        classes=experiment.traffic.class_names,
        slo=experiment.slo.model_dump(exclude_none=True),
        timeline_interval_s=experiment.timeline_interval_s,
        measure_start_s=measure.start_s,
        measure_end_s=measure.end_s,
        asked=asked,
    )
    with _bar(run, progress, line) as tick:
        wiring = Wiring(experiment, writer, tick, asked)
        simulation = wiring.simulation
        prepare(wiring)
        gaps = GapWindow(wiring.plane.fleet, measure.start_s, measure.end_s)
        simulation.env.process(gaps.watch(simulation.env))
        built = time.perf_counter()
        with live.watching(wiring, folder) as found:
            ended_at_s = simulation.run()
    simulated = time.perf_counter()
    itl_counts, itl_sums = gaps.taken(wiring.plane.fleet)
    machines = [asdict(machine) for machine in simulation.machines]
    totals = {
        "duration_s": ended_at_s,
        "itl_counts": itl_counts,
        "itl_sums": itl_sums,
        "warnings": [*_warnings(wiring, ended_at_s), *live.warnings(found)],
        "never_sent": simulation.num_never_sent,
        "has_prefix_cache": bool(wiring.engines["enable_prefix_caching"].any()),
        "ideal_cached_share": _ideal_cached_share(wiring),
        "step_times": {pool.name: calibrated.step_times(pool.replicas) for pool in experiment.pools},
    }
    writer.finish(machines, totals)
    wall_s = {
        "build": built - started,
        "simulate": simulated - built,
        "summarise": time.perf_counter() - simulated,
    }
    write_json(folder / "manifest.json", _manifest(run, wiring, wall_s) | found)
    return simulation.failure


def _simulation(run: RunConfig) -> Experiment:
    assert isinstance(run.experiment, Experiment), "only simulations come here"
    return run.experiment


_MOST_LOOKED_THROUGH = 1_000_000
"""Requests whose shared tokens are looked through a second time, at a microsecond or two each."""


class GapWindow:
    """Cuts the gaps between tokens out that fall into the measured window."""

    def __init__(self, fleet: Fleet, start_s: float, end_s: float | None) -> None:
        self.counts, self.sums = fleet.itl_counts, fleet.itl_sums
        self.start_s, self.end_s = start_s, end_s
        self.before: tuple[Any, Any] | None = None  # until the window begins
        self.after: tuple[Any, Any] | None = None

    def watch(self, env: simpy.Environment) -> Generator[Any, Any, None]:
        """Notes the counts at both ends of the window; the largest gap starts anew at its beginning."""
        if self.start_s > 0:
            yield env.timeout(self.start_s)
        self.before = (self.counts.copy(), self.sums.copy())
        self.sums[:, 2] = 0.0
        if self.end_s is not None:
            yield env.timeout(self.end_s - env.now)
            self.after = (self.counts.copy(), self.sums.copy())

    def taken(self, fleet: Fleet) -> tuple[Any, Any]:
        """Returns (num_pools, NUM_ITL_BINS) counts and (num_pools, 3) sum, sum of squares and maximum of the window."""
        if self.before is None:
            return np.zeros_like(self.counts), np.zeros_like(self.sums)
        counts, sums = self.after or (fleet.itl_counts, fleet.itl_sums)
        within = sums - self.before[1]
        within[:, 2] = sums[:, 2]
        return counts - self.before[0], within


LINE_EVERY_S = 60.0
"""Seconds between two lines about a run, where there is no terminal for a bar."""


@contextlib.contextmanager
def _bar(run: RunConfig, shows: bool | None, line: int) -> Iterator[Callable[[float, int], None]]:
    ends_at_s, started = _simulation(run).traffic.ends_at_s, time.perf_counter()
    layout = "{desc}: {percentage:3.0f}% |{bar}| {n:,.0f}/{total:,.0f} simulated s{postfix}, {remaining} left"
    with tqdm(total=ends_at_s, desc=run.name, bar_format=layout, disable=not shows, position=line, leave=False) as bar:
        said_at = started

        def tick(now_s: float, num_ended: int) -> None:
            nonlocal said_at
            now = time.perf_counter()
            bar.set_postfix_str(f"{num_ended / max(1e-9, now - started):,.0f} requests/s", refresh=False)
            bar.update(min(now_s, ends_at_s) - bar.n)
            if shows is None and now - said_at >= LINE_EVERY_S:
                said_at = now
                print(_progress(run.name, now_s, ends_at_s, num_ended, now - started), file=sys.stderr, flush=True)

        yield tick


def _progress(name: str, now_s: float, ends_at_s: float, num_ended: int, took_s: float) -> str:
    """A line about a run on its way.

    >>> _progress("day/fixed", 21600.0, 86400.0, 120_000, 60.0)
    'day/fixed: 25 % of 86,400 simulated s, 120,000 requests ended, 60 s gone, 180 s left at this pace'
    """
    share = min(1.0, now_s / ends_at_s) if ends_at_s > 0 else 1.0
    left = f", {took_s * (1 / share - 1):,.0f} s left at this pace" if 0 < share < 1 else ""
    of = f"{percent(share, 0)} of {ends_at_s:,.0f} simulated s" if share < 1 else "all have arrived"
    return f"{name}: {of}, {num_ended:,} requests ended, {took_s:,.0f} s gone{left}"


def _ideal_cached_share(wiring: Wiring) -> float:
    """Returns the share of prompt tokens that one endless cache would find; NaN where it would take minutes to say."""
    experiment = wiring.experiment
    if not experiment.traffic.shares_tokens or wiring.simulation.audit.num_requests > _MOST_LOOKED_THROUGH:
        return float("nan")
    return ideal_hit_rate(experiment.traffic.stream(experiment.seed), int(wiring.engines["block_size"].min()))


def _warnings(wiring: Wiring, ended_at_s: float) -> list[str]:
    found = [*wiring.experiment.traffic.notes, *remarks(wiring.traffic.counts)]
    lines = [f"traffic: {line}" for line in found]
    lines += [wiring.experiment.model_remark()] if wiring.experiment.model_remark() else []
    clock = wiring.plane.fleet.clock[0]
    if clock.num_held:
        lines.append(
            f"traffic: {clock.num_held:,} requests were held back by max_concurrency {clock.max_concurrency:,}, for "
            f"{clock.held_s / clock.num_held:,.4g} s on average and {clock.max_held_s:,.4g} s at most: their latencies count "
            "from when they were sent"
        )
    num_cut = int(clock.num_cut_answers)
    if num_cut:
        lines.append(f"{num_cut:,} answers were cut at their class's max_tokens or the engine's max_model_len")
    measured_to_s = wiring.experiment.measure.end_s
    if measured_to_s is not None and measured_to_s > ended_at_s:
        lines.append(f"measure.end_s is {measured_to_s:,.6g}, and the run ended at {ended_at_s:,.6g} s: so does the window")
    lines += _step_time_warnings(wiring)
    lines += [
        f"pool {pool.name}: {found.refused(engine)}"
        for pool, found, engine in zip(wiring.experiment.pools, wiring.served, wiring.engines, strict=True)
        if found.share == 0
    ]
    lines += [
        f"pool {name}: {limiter.num_dropped_answers:,} answers of its autoscaler were no finite number: dropped"
        for name, limiter in wiring.limiters.items()
        if limiter.num_dropped_answers
    ]
    failed = [machine for machine in wiring.simulation.machines if machine.reason == "failed"]
    if failed:
        lines.append(f"{len(failed):,} replicas failed, with {sum(one.num_evicted for one in failed):,} requests in them")
    num_evicted = sum(one.num_evicted for one in wiring.simulation.machines if one.reason != "failed")
    if num_evicted:
        lines.append(f"{num_evicted:,} requests were taken off draining replicas at the drain timeout")
    return lines


def _step_time_warnings(wiring: Wiring) -> list[str]:
    """At most one line for each pool: what its step times stood on that nobody measured."""
    experiment = wiring.experiment
    uses_adapters = any(kind.lora is not None for kind in experiment.classes.values())
    lines = [
        calibrated.warning(pool.name, pool.replicas, pool.model, pool.gpu, _ran(wiring, index), uses_adapters)
        for index, pool in enumerate(experiment.pools)
    ]
    return [line for line in lines if line]


def _ran(wiring: Wiring, pool: int) -> Any:
    """The pool's REPLICA records."""
    replicas = wiring.plane.fleet.replicas
    return replicas[replicas["pool"] == pool]


def _as_dict(capacity: Capacity | None) -> dict[str, Any] | None:
    return None if capacity is None else asdict(capacity)


def _manifest(run: RunConfig, wiring: Wiring, wall_s: dict[str, float]) -> dict[str, Any]:
    experiment, simulation = wiring.experiment, wiring.simulation
    replicas = wiring.plane.fleet.replicas
    counts = {
        "traffic": dict(wiring.traffic.counts),
        "requests": simulation.audit.num_requests,
        "steps": int(replicas["num_steps"].sum()),
        "tokens": simulation.audit.num_tokens,
        "preemptions": int(replicas["num_preemptions"].sum()),
        "machines": len(simulation.machines),
        "held_back": int(wiring.plane.fleet.clock[0].num_held),
        "never_sent": int(simulation.num_never_sent.sum()),
    }
    return manifest(run, counts, wall_s) | {
        "is_cut_short": simulation.is_cut_short,
        "invariants_checked": wiring.simulation.invariants,
        "pools": {
            pool.name: {
                "is_oracle": experiment.decides_for(pool).is_oracle,
                "replica_capacity": _as_dict(wiring.capacities[index]),
                "memory": str(pool.replicas.memory(pool.model, pool.gpu)),
                "step_times": calibrated.step_times(pool.replicas),
                "calibration": calibrated.calibration_used(pool.replicas, _ran(wiring, index)),
                "scale_ups": wiring.limiters[pool.name].num_scale_ups,
                "scale_downs": wiring.limiters[pool.name].num_scale_downs,
                "reversals": wiring.limiters[pool.name].num_reversals,
                "dropped_answers": wiring.limiters[pool.name].num_dropped_answers,
            }
            for index, pool in enumerate(experiment.pools)
        },
    }
