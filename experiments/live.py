"""Keeps what is seen of live replicas' steps while an experiment runs."""

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

import routers
from experiments.results.step_trace import StepWriter
from experiments.settings.experiment import Pool
from experiments.settings.gateway import OPEN
from experiments.wiring import Wiring, classes_of
from replicas.live.config import Vllm
from replicas.live.interface import Step
from replicas.live.plane import EngineSource, LivePlane
from replicas.live.process import LiveReplica
from replicas.live.shadow import Pair, Shadow, described


@contextlib.contextmanager
def watching(wiring: Wiring, folder: Path) -> Iterator[dict[str, Any]]:
    """Keeps what is seen of live replicas' steps while the run goes on, in `folder`.

    Yields:
        A mapping for the manifest, filled in at the end; empty when no replica is live.
    """
    found: dict[str, Any] = {}
    if not isinstance(wiring.plane, LivePlane):
        yield found
        return
    pools = {i: pool for i, pool in enumerate(wiring.experiment.pools) if i in wiring.sources}
    with contextlib.ExitStack() as stack:
        if any(isinstance(pool.replicas, Vllm) and pool.replicas.record_steps for pool in pools.values()):
            writer = stack.enter_context(StepWriter(folder / "steps"))
            wiring.plane.watches.append(writer)
        names = {i: pool.name for i, pool in pools.items() if isinstance(pool.replicas, Vllm) and pool.replicas.shadow}
        watched = [Shadows(wiring, names)] if names else []
        wiring.plane.watches += watched
        followed = [i for i, pool in pools.items() if isinstance(pool.replicas, Vllm) and pool.replicas.recalibrate]
        if followed:
            from experiments.recalibration import Recalibrations  # here: it brings scipy, which takes its time

            recalibrations = Recalibrations(wiring.experiment, wiring.engines, followed)
            wiring.plane.watches.append(recalibrations)
        errors: Counter[str] = Counter()
        wiring.plane.watches.append(lambda replica, began_at_s, step: errors.update(step.failed.values()))
        yield found
        for shadows in watched:
            found["shadow"] = shadows.finish(folder)
        if followed:
            found["recalibration"] = recalibrations.told()
        found["server_errors"] = dict(errors.most_common(20))
        found["not_as_asked"] = [line for i, pool in pools.items() for line in _not_as_asked(pool, wiring.sources[i])]
        found["live"] = {pool.name: _told(wiring.sources[i], wiring.engines[i]) for i, pool in pools.items()}
        found["failure"] = wiring.simulation.failure


def _told(source: EngineSource, engine: Any) -> dict[str, Any]:
    """Returns what the manifest says of a live pool: its limits, and its measured start in the words of `lifecycle`."""
    lifecycle = source.lifecycle(float(engine["dense_weight_bytes"] + engine["expert_weight_bytes"]))
    return source.limits._asdict() | ({"lifecycle": lifecycle, "starts": source.starts} if lifecycle else {})


def _not_as_asked(pool: Pool, source: EngineSource) -> list[str]:
    """Returns what an engine does otherwise than its options say, so that a surrogate with the same options is another."""
    options = pool.replicas
    if not isinstance(options, Vllm) or options.async_scheduling == source.limits.async_scheduling:
        return []
    words = ("off", "on")
    return [
        f"pool {pool.name}: async_scheduling is {words[options.async_scheduling]} in the config and "
        f"{words[source.limits.async_scheduling]} in the engine, as vLLM {source.limits.version} has it here"
    ]


def warnings(found: Mapping[str, Any]) -> list[str]:
    """Returns what a reader of the results has to know of live replicas, in lines for the report.

    Args:
        found: what `watching` yielded, after the run.
    """
    errors = found.get("server_errors", {}).items()
    lines = [f"{num:,} request{'' if num == 1 else 's'} failed at the server: {text}" for text, num in errors]
    return [*found.get("not_as_asked", []), *lines[:MOST_WARNINGS]]


MOST_WARNINGS = 3
"""Reasons of a server in the report; the manifest has twenty."""

REPORT_S = 10.0
"""Seconds of real time between two reports of the shadows."""


class Shadows:
    """The surrogates beside the live replicas of the pools that ask for it, one for each machine.

    Args:
        wiring: the run.
        names: pool number -> name.
    """

    def __init__(self, wiring: Wiring, names: dict[int, str]) -> None:
        self._wiring, self._names = wiring, names
        self._shadows: dict[tuple[str, int], Shadow] = {}
        self._reported_at = time.monotonic()

    def __call__(self, replica: LiveReplica, began_at_s: float, step: Step) -> None:
        """Shows a step of a live replica to its shadow, and now and then says on stderr how far the shadows are off."""
        pool, machine = int(replica.books.replica.pool), int(replica.books.replica.machine)
        if pool not in self._names:
            return
        key = self._names[pool], machine
        if key not in self._shadows:
            self._shadows[key] = self._new(pool)
        self._shadows[key].watch(replica, began_at_s, step)
        if time.monotonic() - self._reported_at > REPORT_S:
            self._reported_at = time.monotonic()
            self._report()

    def finish(self, folder: Path) -> dict[str, str]:
        """Writes shadow.parquet, a row a request, and returns a line for each machine."""
        import pandas as pd  # here: only what a live engine and its shadow did comes as a table

        tables = []
        for (name, machine), shadow in self._shadows.items():
            shadow.finish()
            tables.append(pd.DataFrame(shadow.pairs, columns=[*Pair._fields]).assign(pool=name, replica=machine))
        if tables:
            pd.concat(tables, ignore_index=True).to_parquet(folder / "shadow.parquet", index=False)
        self._report()
        return {f"{name}/{machine}": described(f"{name}/{machine}", one) for (name, machine), one in self._shadows.items()}

    def _new(self, pool: int) -> Shadow:
        wiring = self._wiring
        return Shadow(
            wiring.engines[pool : pool + 1],
            classes_of(wiring.experiment, OPEN),  # who comes here was let in
            routers.start(routers.KINDS["round_robin"], 1, seed=0),
        )

    def _report(self) -> None:
        for (name, machine), shadow in self._shadows.items():
            tqdm.write(described(f"{name}/{machine}", shadow), file=sys.stderr)
