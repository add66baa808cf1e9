"""One run: done and told how it went, in this process or in a worker."""

import pickle
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from experiments.faults import IN_WORDS, seen
from experiments.settings.loading import RunConfig
from experiments.settings.tasks import runner_of
from experiments.workers import Lost
from sim.errors import ConfigError
from sim.outside import names_in


class Attempt(NamedTuple):
    """How a run went, as a worker process sends it."""

    seconds: float
    error: BaseException | None = None
    details: str = ""


def attempt(run: RunConfig, folder: Path, progress: bool | None, line: int = 0) -> Attempt:
    """Does one run; its result is in `folder`, or the error says why not. `line` of the terminal is for its bar."""
    started = time.perf_counter()
    try:
        runner_of(run.experiment.kind)(run, folder, progress, line)
    except (Exception, SystemExit) as error:  # a user's own module may call sys.exit
        whose = seen(error, names_in(run.document), folder)
        return Attempt(time.perf_counter() - started, whose, traceback.format_exc())
    return Attempt(time.perf_counter() - started)


def attempt_in_worker(run: bytes, names: list[str], folder: Path, progress: bool | None, line: int) -> Attempt:
    """The same for a pickled run, with an error that another process can read."""
    try:
        found = attempt(pickle.loads(run), folder, progress, line)
    except (Exception, SystemExit) as error:  # the user's module fails here, where it did not in the parent
        found = Attempt(0.0, seen(error, names, folder), traceback.format_exc())
    if found.error is None or type(found.error) in IN_WORDS:
        return found
    return found._replace(error=RuntimeError(f"{type(found.error).__name__}: {found.error}"))


def without_worker(run: RunConfig, lost: Lost) -> Attempt:
    """How a run went whose process ended under it."""
    own = ", ".join(dict.fromkeys(names_in(run.document)))
    if lost.is_from_outside:
        return Attempt(0.0, ConfigError(lost.reason))
    if own and lost.exit_code is not None:
        hint = "compiled code is not checked; with NUMBA_DISABLE_JIT=1 it runs as plain Python, which says where"
        return Attempt(0.0, ConfigError(f"{lost.reason}, with code of your own in it ({own}): {hint}"))
    return Attempt(0.0, RuntimeError(lost.reason), lost.details or lost.reason)
