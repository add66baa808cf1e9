"""Runs the tests meant for a mutant in a copy of the tree: the tree itself is never changed."""

import os
import queue
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.mutants.mutant import Mutant, Verdict
from tests.shared import FOLDER

LEFT_BEHIND = (".git", ".venv*", "__pycache__", "results", ".*_cache", ".hypothesis", "*.egg-info", "build")

PATIENCE = 5
"""A mutant may take this many times as long as its tests take without it; then it counts as noticed."""

LEAST_S = 30.0

Times = dict[tuple[tuple[str, ...], bool], float]
"""Seconds of a set of tests, compiled or as plain Python."""


class Copy:
    """A copy of the tree, to be changed one file at a time."""

    def __init__(self, root: Path, place: Path) -> None:
        self.place = place
        shutil.copytree(root, place, ignore=shutil.ignore_patterns(*LEFT_BEHIND))

    def passes(self, tests: Sequence[str], is_compiled: bool, timeout_s: float | None = None) -> bool:
        """Runs tests in the copy; out of time is not passed."""
        own = {
            "PYTHONPATH": str(self.place),
            "PYTHONDONTWRITEBYTECODE": "1",  # a change within a second and of equal length would run the old code
            "NUMBA_DISABLE_JIT": "1" if is_compiled else "0",
            "NUMBA_CACHE_DIR": str(self.place.with_name(f"{self.place.name}-compiled")),
            "DAYBREAK_SHARED": str(FOLDER),
        }
        call = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
        with subprocess.Popen(
            call, cwd=self.place, env=os.environ | own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
        ) as process:
            try:
                return process.wait(timeout_s) == 0
            except subprocess.TimeoutExpired:
                return False
            finally:
                _end(process)

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


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends the tests and whatever they started."""
    if process.poll() is None:
        os.killpg(process.pid, 9)


def usual_times(copy: Copy, mutants: Sequence[Mutant]) -> Times:
    """Returns how long each set of tests takes without a mutant, the first run, which compiles, left out.

    Raises:
        ValueError: some tests fail, or there are none, without any mutant.
    """
    found = {}
    for tests, is_compiled in dict.fromkeys((one.tests, one.is_compiled) for one in mutants):
        for _ in range(1 if is_compiled else 2):
            started = time.monotonic()
            if not copy.passes(tests, is_compiled):
                raise ValueError(f"these tests fail without any mutant: {' '.join(tests)}")
            found[tests, is_compiled] = time.monotonic() - started
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
