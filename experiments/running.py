"""Runs configs one after the other or in parallel processes, and gives access to what they left."""

import json
import pickle
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from experiments import ahead
from experiments.attempts import attempt, attempt_in_worker, without_worker
from experiments.lock import held
from experiments.provenance import source_hash
from experiments.settings.experiment import Experiment, Study
from experiments.settings.loading import RunConfig, load
from experiments.settings.tasks import TASKS
from experiments.workers import Lost, in_processes
from replicas.calibration.file import located
from sim.errors import ConfigError
from sim.outside import load_external, names_in

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Outcome:
    """What became of one run."""

    run: RunConfig
    folder: Path
    seconds: float
    error: BaseException | None = None
    details: str = ""  # where the error came from, for us
    is_reused: bool = False  # a complete result of the same config was there


class Result:
    """The result folder of one run, or of several with a column `run`; tables are read when first asked for."""

    def __init__(self, folder: Path, runs: Sequence["Result"] = (), slug: str = "") -> None:
        self.folder, self.runs, self.slug = folder, list(runs), slug

    def __repr__(self) -> str:
        return f"Result({str(self.folder)!r}{f', {len(self.runs)} runs' if self.runs else ''})"

    @cached_property
    def requests(self) -> "pd.DataFrame":
        """One row a request."""
        return self._table("requests")

    @cached_property
    def timeline(self) -> "pd.DataFrame":
        """One row of scope `all` for each interval, and one of scope `pool` for each pool: sum one scope, not both."""
        return self._table("timeline")

    @cached_property
    def replicas(self) -> "pd.DataFrame":
        """One row a machine."""
        return self._table("replicas")

    @cached_property
    def errors(self) -> "pd.DataFrame":
        """Of a validation: one row for each recording, metric and statistic."""
        return self._table("errors")

    @cached_property
    def summary(self) -> "pd.DataFrame":
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
    def pools(self) -> "pd.DataFrame":
        """Of a plan, one row for each pool of each hardware and arrangement."""
        return self._table("pools")

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What was run, with which code and seed, and how long it took; of several runs, by their name."""
        if self.runs:
            return {run.slug: run.manifest for run in self.runs}
        manifest: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text())
        return manifest

    def _table(self, name: str) -> "pd.DataFrame":
        import pandas as pd  # here: a command leaves tables, and only from Python are they read

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
        path: the YAML file, or the name of a shipped one.
        out: where the folder named after the experiment goes.
        jobs: processes to run in. With more than one, a script that calls this must do so under
            `if __name__ == "__main__":`, as always with multiprocessing.
        seed: replaces the file's seeds.
        sets: changes such as `"traffic.limit=1000"`.
        smoke: shrinks every run to seconds.
        force: runs even where a complete result of the same config lies.
        progress: shows a bar on stderr, or nothing; None = a bar where stderr is a terminal, else a line now and then.

    Raises:
        ConfigError: with everything that is wrong with the file; another command writes the same results; the user's own
            router, autoscaler or traffic failed; the machine refused something.
        TraceError: a traffic file is wrong.
    """
    runs, out = load(path, sets, seed, smoke), Path(out)
    with claimed(runs, out):
        shows = True if progress is None and sys.stderr.isatty() else progress
        failed = [outcome for outcome in run_all(runs, out, jobs, force, shows) if outcome.error is not None]
        slugs = {outcome.run.slug for outcome in failed}
        done = [run for run in runs if run.slug not in slugs]
        gather(done, out)
    for outcome in failed:
        assert outcome.error is not None
        outcome.error.add_note(f"in run {outcome.run.name}" + (f"; {len(done)} of {len(runs)} are done" if done else ""))
        raise outcome.error
    return result(runs, out)


@contextmanager
def claimed(runs: Sequence[RunConfig], out: Path) -> Iterator[None]:
    """Keeps other commands from writing the results of these experiments, from before the first run until all is read.

    Raises:
        ConfigError: two runs would share a folder, a folder holds something else, or another command writes there.
        OSError: nothing can be written there.
    """
    _check_folders(runs, out)
    with held(out / run.experiment.name for run in runs):
        yield


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
        inputs = [*_inputs(run.document), *_own_modules(run.document)]
        is_newer = all(manifest.stat().st_mtime >= path.stat().st_mtime for path in inputs)
        is_same = (made["config_hash"], made["code"]["source_hash"]) == (run.hash, source_hash())
        return is_newer and is_same and not made.get("failure")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _is_made_from(run: RunConfig, folder: Path) -> bool:
    """Tells whether `folder` is the result of this config, whatever the code."""
    try:
        return bool(json.loads((folder / "manifest.json").read_text())["config_hash"] == run.hash)
    except (OSError, ValueError, KeyError):
        return False


_FILES = ("path", "steps", "recordings", "served", "kernels")
"""Keys whose values are files or folders; `calibration` is another, with a place of its own to be found."""


def _inputs(document: Any) -> Iterator[Path]:
    """The files that a config refers to: recordings, lengths, calibrations."""
    if isinstance(document, list):
        for one in document:
            yield from _inputs(one)
    elif isinstance(document, dict):
        yield from (Path(document[key]) for key in _FILES if isinstance(document.get(key), str))
        if isinstance(document.get("calibration"), str):
            yield located(document["calibration"])
        for one in document.values():
            yield from _inputs(one)


def _own_modules(document: Any) -> Iterator[Path]:
    """The files of the user's own code that a config names."""
    for name in names_in(document):
        load_external(name)
        yield Path(sys.modules[name.partition(":")[0]].__file__ or "")


def run_all(
    runs: Sequence[RunConfig], out: Path, jobs: int = 1, force: bool = False, progress: bool | None = False
) -> Iterator[Outcome]:
    """Runs what is not there yet and yields each outcome as it comes, failed ones included; the caller has `claimed` them.

    Args:
        runs: of all experiments.
        out: where their folders go.
        jobs: processes.
        force: runs also what is there.
        progress: shows bars; None = says before a long run what it takes, and a line a minute.
    """
    todo = []
    for run in runs:
        folder = folder_of(run, out)
        if not force and is_complete(run, folder):
            yield Outcome(run, folder, 0.0, is_reused=True)
        else:
            todo.append((run, folder))
    _clear_single_results({folder.parent for run, folder in todo if run.slug})
    jobs = 1 if any(_is_live(run.experiment) for run, _ in todo) else min(jobs, len(todo))
    if progress is not False:
        ahead.say([run.experiment for run, _ in todo], jobs, out)
    if jobs <= 1:
        yield from (Outcome(run, folder, *attempt(run, folder, progress)) for run, folder in todo)
        return
    tasks = [(pickle.dumps(run), [*names_in(run.document)], folder, progress) for run, folder in todo]
    with tqdm(total=len(tasks), unit="run", disable=not progress) as bar:
        for number, answer in in_processes(attempt_in_worker, tasks, jobs):
            bar.update()
            run, folder = todo[number]
            yield Outcome(run, folder, *(without_worker(run, answer) if isinstance(answer, Lost) else answer))


def _is_live(experiment: Study) -> bool:
    """Tells whether some replicas are real engines, which share a device by turns, and only within a process."""
    return isinstance(experiment, Experiment) and any(pool.replicas.is_live for pool in experiment.pools)


def _check_folders(runs: Sequence[RunConfig], out: Path) -> None:
    file = next((place for place in (out, *out.parents) if place.exists() and not place.is_dir()), None)
    if file is not None:
        raise ConfigError(f"--out {out}: {file} is a file; choose a folder")
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
    """Writes the table of one experiment's runs: theirs, one after the other, with run, seed and axes.

    Raises:
        ConfigError: a folder holds the result of another config by now.
    """
    for run in runs:
        folder = folder_of(run, out)
        if not _is_made_from(run, folder):
            raise ConfigError(f"{folder}: another command has written there meanwhile; choose another --out for one")
    if not runs or not runs[0].slug:
        return
    name = TASKS[runs[0].experiment.kind].table
    if not name:
        return
    import pandas as pd  # here: one run alone has no tables to put together

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
    try:
        pd.concat(tables, ignore_index=True).to_parquet(temporary, index=False)
        shutil.move(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)  # of a disk that was full
