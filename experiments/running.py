"""Runs configs one after the other or in parallel processes, and gives access to what they left."""

import importlib
import json
import multiprocessing
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from experiments.provenance import source_hash
from experiments.settings.experiment import Experiment, Study
from experiments.settings.kinds import EXTERNAL
from experiments.settings.loading import RunConfig, load
from experiments.tasks import TASKS, runner_of
from replicas.calibration.file import located
from replicas.live.kinds import LIVE
from sim.errors import ConfigError


@dataclass(frozen=True)
class Outcome:
    """What became of one run."""

    run: RunConfig
    folder: Path
    seconds: float
    is_reused: bool = False  # a complete result of the same config was there
    error: Exception | None = None
    details: str = ""  # where the error came from, for us


class Result:
    """The result folder of one run, or of several with a column `run`; tables are read when first asked for."""

    def __init__(self, folder: Path, runs: Sequence["Result"] = (), slug: str = "") -> None:
        self.folder, self.runs, self.slug = folder, list(runs), slug

    def __repr__(self) -> str:
        return f"Result({str(self.folder)!r}{f', {len(self.runs)} runs' if self.runs else ''})"

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request."""
        return self._table("requests")

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row of scope `all` for each interval, and one of scope `pool` for each pool: sum one scope, not both."""
        return self._table("timeline")

    @cached_property
    def replicas(self) -> pd.DataFrame:
        """One row a machine."""
        return self._table("replicas")

    @cached_property
    def errors(self) -> pd.DataFrame:
        """Of a validation: one row for each recording, metric and statistic."""
        return self._table("errors")

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row for the whole, each class and each pool."""
        return self._table("summary")

    @cached_property
    def plan(self) -> dict[str, Any]:
        """Of a plan, everything that its page shows, as plain data; of several, by the run's name."""
        if self.runs:
            return {run.slug: run.plan for run in self.runs}
        found: dict[str, Any] = json.loads((self.folder / "plan.json").read_text(encoding="utf-8"))
        return found

    @cached_property
    def pools(self) -> pd.DataFrame:
        """Of a plan, one row for each pool of each hardware and arrangement."""
        return self._table("pools")

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What was run, with which code and seed, and how long it took; of several runs, by their name."""
        if self.runs:
            return {run.slug: run.manifest for run in self.runs}
        manifest: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text())
        return manifest

    def _table(self, name: str) -> pd.DataFrame:
        if not self.runs:
            return pd.read_parquet(self.folder / f"{name}.parquet")
        tables = [getattr(run, name).assign(run=run.slug) for run in self.runs]
        together = pd.concat(tables, ignore_index=True)
        return together[["run", *(column for column in together if column != "run")]]


def run(
    path: str | Path,
    *,
    out: str | Path = "results",
    jobs: int = 1,
    seed: int | None = None,
    sets: Sequence[str] = (),
    smoke: bool = False,
    force: bool = False,
    progress: bool | None = None,
) -> Result:
    """Runs one config file.

    Args:
        path: the YAML file.
        out: where the folder named after the experiment goes.
        jobs: processes to run in. With more than one, a script that calls this must do so under
            `if __name__ == "__main__":`, as always with multiprocessing.
        seed: replaces the file's seeds.
        sets: changes such as `"traffic.limit=1000"`.
        smoke: shrinks every run to seconds.
        force: runs even where a complete result of the same config lies.
        progress: shows a bar on stderr; None = where stderr is a terminal.

    Raises:
        ConfigError: with everything that is wrong with the file.
        TraceError: a traffic file is wrong.
    """
    runs = load(path, sets, seed, smoke)
    folders = []
    for outcome in run_all(runs, Path(out), jobs, force, sys.stderr.isatty() if progress is None else progress):
        if outcome.error is not None:
            raise outcome.error
        folders.append(outcome.folder)
    gather(runs, Path(out))
    return result(runs, Path(out))


def result(runs: Sequence[RunConfig], out: Path) -> Result:
    """Returns the results of one experiment's finished runs."""
    single = [Result(folder_of(run, out), slug=run.slug) for run in runs]
    return single[0] if len(runs) == 1 and not runs[0].slug else Result(out / runs[0].experiment.name, single)


def folder_of(run: RunConfig, out: Path) -> Path:
    """Returns where a run's results go."""
    return out / run.experiment.name / run.slug if run.slug else out / run.experiment.name


def is_complete(run: RunConfig, folder: Path) -> bool:
    """Tells whether `folder` is the whole result of exactly this config, made by this code from the files as they are."""
    manifest = folder / "manifest.json"
    try:
        made = json.loads(manifest.read_text())
        is_newer = all(manifest.stat().st_mtime >= path.stat().st_mtime for path in _inputs(run.document))
        is_same = (made["config_hash"], made["code"]["source_hash"]) == (run.hash, source_hash())
        return is_newer and is_same and not made.get("failure")
    except (OSError, ValueError, KeyError, TypeError):
        return False


_FILES = ("path", "steps", "recordings", "served", "kernels")
"""Keys whose values are files or folders; `calibration` is another, with a place of its own to be found."""


def _inputs(document: Any) -> Iterator[Path]:
    """The files that a config refers to: recordings, lengths, calibrations, and the modules of the user's own policies."""
    if isinstance(document, list):
        for one in document:
            yield from _inputs(one)
    elif isinstance(document, dict):
        yield from (Path(document[key]) for key in _FILES if isinstance(document.get(key), str))
        if isinstance(document.get("calibration"), str):
            yield located(document["calibration"])
        if EXTERNAL.fullmatch(str(document.get("kind"))):
            module = importlib.import_module(document["kind"].partition(":")[0])
            yield Path(module.__file__ or "")
        for one in document.values():
            yield from _inputs(one)


def run_all(
    runs: Sequence[RunConfig], out: Path, jobs: int = 1, force: bool = False, progress: bool = False
) -> Iterator[Outcome]:
    """Runs what is not there yet and yields each outcome as it comes, failed ones included.

    Raises:
        ConfigError: two runs would share a folder, or a folder holds something else.
    """
    _check_folders(runs, out)
    todo = []
    for run in runs:
        folder = folder_of(run, out)
        if not force and is_complete(run, folder):
            yield Outcome(run, folder, 0.0, is_reused=True)
        else:
            todo.append((run, folder))
    _clear_single_results({folder.parent for run, folder in todo if run.slug})
    if len(todo) <= 1 or jobs <= 1 or any(_is_live(run.experiment) for run, _ in todo):
        yield from (_run_one(run, folder, progress) for run, folder in todo)
        return
    context = multiprocessing.get_context("spawn")  # the same start on every platform; no inherited state
    jobs = min(jobs, len(todo))
    lock = context.RLock()  # the bars of all processes share the terminal
    tqdm.set_lock(lock)
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=tqdm.set_lock, initargs=(lock,)) as pool:
        waiting = [pool.submit(_run_one, run, folder, progress, 1 + number % jobs) for number, (run, folder) in enumerate(todo)]
        try:
            for done in tqdm(as_completed(waiting), total=len(waiting), unit="run", disable=not progress):
                yield done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _is_live(experiment: Study) -> bool:
    """Tells whether some replicas are real engines, which share a device by turns, and only within a process."""
    return isinstance(experiment, Experiment) and any(isinstance(pool.replicas, LIVE) for pool in experiment.pools)


def _run_one(run: RunConfig, folder: Path, progress: bool, line: int = 0) -> Outcome:
    started = time.perf_counter()
    try:
        runner_of(run.experiment.kind)(run, folder, progress, line)
    except Exception as error:
        return Outcome(run, folder, time.perf_counter() - started, error=error, details=traceback.format_exc())
    return Outcome(run, folder, time.perf_counter() - started)


def _check_folders(runs: Sequence[RunConfig], out: Path) -> None:
    owners: dict[Path, RunConfig] = {}
    for run in runs:
        folder = folder_of(run, out)
        other = owners.setdefault(out / run.experiment.name, run)
        if other.source != run.source:
            raise ConfigError(
                f"{run.source}: name: '{run.experiment.name}' is also the name in {other.source}; both would write {folder}"
            )
        if folder.is_file() or (folder.is_dir() and not _is_ours(folder)):
            raise ConfigError(f"{run.source}: {folder} exists and is no result folder; move it or choose another --out")


def _clear_single_results(folders: set[Path]) -> None:
    """Removes what an earlier version of an experiment left where there is now a folder of runs."""
    for folder in sorted(folders):
        if (folder / "manifest.json").exists():
            shutil.rmtree(folder)


def _is_ours(folder: Path) -> bool:
    """Whether a folder may be replaced: it is empty, a result, or a folder of results."""
    return not any(folder.iterdir()) or bool(list(folder.glob("manifest.json")) or list(folder.glob("*/manifest.json")))


def gather(runs: Sequence[RunConfig], out: Path) -> None:
    """Writes the table of one experiment's runs: theirs, one after the other, with run, seed and axes."""
    if not runs or not runs[0].slug:
        return
    name = TASKS[runs[0].experiment.kind].table
    if not name:
        return
    tables = []
    for run in runs:
        table = pd.read_parquet(folder_of(run, out) / f"{name}.parquet")
        table.insert(0, "run", run.slug)
        table.insert(1, "seed", run.seed)
        for position, (axis, label) in enumerate(run.axes):
            table.insert(2 + position, axis, label)
        tables.append(table)
    target = out / runs[0].experiment.name / f"{name}.parquet"
    temporary = target.with_suffix(".tmp")
    pd.concat(tables, ignore_index=True).to_parquet(temporary, index=False)
    shutil.move(temporary, target)
