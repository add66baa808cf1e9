"""Runs the tests meant for a mutant in a copy of the tree: the tree itself is never changed."""

import contextlib
import multiprocessing
import os
import queue
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numba
import numpy as np
import psutil
import pytest
from tqdm import tqdm

from tests.mutants.mutant import Mutant, Verdict
from tests.shared import FOLDER

LEFT_BEHIND = (".git", ".venv*", ".*_cache", ".hypothesis", "*.egg-info", "results", "build")
"""At the top: what was made there, not written."""

PATIENCE = 5
"""A mutant may take this many times as long as its tests take without it; then it counts as noticed."""

LEAST_S = 30.0

MOST_BYTES = 4 << 30
"""A loop that a mutant has made endless may fill the memory before its time is over; then it counts as noticed."""

Times = dict[tuple[tuple[str, ...], bool], float]
"""Seconds of a set of tests, compiled or as plain Python."""

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [__name__, *("pandas", "pyarrow.compute", "pyarrow.parquet", "pydantic", "scipy.stats", "simpy")]
)  # imported once: that takes longer than most sets of tests


class Copy:
    """A copy of the tree, to be changed one file at a time."""

    def __init__(self, root: Path, place: Path) -> None:
        self.place = place
        self.log = place.with_name(f"{place.name}.log")
        at_top, below = shutil.ignore_patterns(*LEFT_BEHIND), shutil.ignore_patterns("__pycache__")
        shutil.copytree(root, place, ignore=lambda folder, names: (at_top if Path(folder) == root else below)(folder, names))

    def passes(self, tests: Sequence[str], is_compiled: bool, timeout_s: float | None = None) -> bool:
        """Runs tests in the copy; out of time or memory is not passed. `log` has what they printed."""
        settings = {
            "PYTHONPATH": str(self.place),
            "PYTHONDONTWRITEBYTECODE": "1",  # a change within a second and of equal length would run the old code
            "NUMBA_DISABLE_JIT": "1" if is_compiled else "0",
            "NUMBA_CACHE_DIR": str(self.place.with_name(f"{self.place.name}-compiled")),
            "DAYBREAK_SHARED": str(FOLDER),
        }
        process: Any = _SERVER.Process(target=_run, args=(self.place, self.log, settings, tests))
        process.start()
        try:
            _wait(process, np.inf if timeout_s is None else timeout_s)
            return bool(process.exitcode == 0)
        finally:
            if process.exitcode is None:
                os.killpg(process.pid, 9)
            process.join()

    def judge(self, mutant: Mutant, usual_s: float) -> Verdict:
        """Puts a mutant in, runs its tests, and takes it out again."""
        path = self.place / mutant.file
        before, started = path.read_bytes(), time.monotonic()
        path.write_text(mutant.source, encoding="utf-8")
        try:
            survives = self.passes(mutant.tests, mutant.is_compiled, max(LEAST_S, PATIENCE * usual_s))
        finally:
            path.write_bytes(before)
        return Verdict(mutant, not survives, time.monotonic() - started)


def _wait(process: Any, timeout_s: float) -> None:
    """Waits until a process has ended, or has taken too long or too much."""
    started = time.monotonic()
    while process.exitcode is None and time.monotonic() - started < timeout_s:
        process.join(0.1)
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(process.pid).memory_info().rss > MOST_BYTES:
                return


def _end_with_parent() -> None:
    """Ends this process, and whatever it has started, when the run of mutants has been killed."""
    parent: Any = multiprocessing.parent_process()
    parent.join()
    os.killpg(0, 9)


def _run(place: Path, log: Path, settings: Mapping[str, str], tests: Sequence[str]) -> None:
    """The process of one run: pytest, as if it had been started in the copy."""
    os.setpgid(0, 0)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with log.open("w", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.chdir(place)
    os.environ.update(settings)
    numba.config.reload_config()  # type: ignore[attr-defined]
    ours = {path.stem for path in place.iterdir()}
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        del sys.modules[name]
    sys.dont_write_bytecode = True
    sys.path[:] = [str(place), *(folder for folder in sys.path if folder and not (Path(folder) / "tests/mutants").exists())]
    sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]))


def usual_times(copy: Copy, mutants: Sequence[Mutant]) -> Times:
    """Returns how long each set of tests takes without a mutant; the first that is compiled compiles, and is run twice.

    Modules have most of their tests in common: those are run once, and then only the doctests of each.

    Raises:
        ValueError: some tests fail, or there are none, without any mutant.
    """
    found: Times = {}
    shared: Times = {}
    for tests, is_compiled in tqdm(dict.fromkeys((one.tests, one.is_compiled) for one in mutants), unit="set"):
        most, own = tests[:-1], tests[-1]
        known_s = shared.get((most, is_compiled), 0.0) if most and own.endswith(".py") else 0.0
        if known_s and ">>>" not in (copy.place / own).read_text(encoding="utf-8"):
            found[tests, is_compiled] = known_s
            continue
        run = (own,) if known_s else tests
        for _ in range(1 if is_compiled or any(not before for _, before in found) else 2):
            started = time.monotonic()
            if not copy.passes(run, is_compiled):
                said = copy.log.read_text(encoding="utf-8")[-2000:]
                raise ValueError(f"these tests fail without any mutant: {' '.join(run)}\n{said}")
            found[tests, is_compiled] = known_s + time.monotonic() - started
        shared.setdefault((most, is_compiled), found[tests, is_compiled])
    return found


def judged(copies: Sequence[Copy], mutants: Sequence[Mutant], usual_s: Times) -> Iterator[Verdict]:
    """Yields a verdict for each mutant as it comes, one at a time in each copy."""
    free: queue.Queue[Copy] = queue.Queue()
    for copy in copies:
        free.put(copy)

    def judge(mutant: Mutant) -> Verdict:
        copy = free.get()
        try:
            return copy.judge(mutant, usual_s[mutant.tests, mutant.is_compiled])
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as threads:
        for done in as_completed([threads.submit(judge, mutant) for mutant in mutants]):
            yield done.result()
