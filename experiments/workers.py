"""Parallel processes: a worker does one task at a time, ends with its parent, and when it is lost takes only its task along."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from typing import Any, NamedTuple

from tqdm import tqdm

import daybreak
from sim.errors import ConfigError


class Lost(NamedTuple):
    """What comes back in place of a result."""

    reason: str
    exit_code: int | None = None  # of the worker, where it ended; minus the signal that ended it
    details: str = ""

    @property
    def is_from_outside(self) -> bool:
        """Whether somebody else ended the worker, such as a system that has no memory left."""
        return self.exit_code is not None and -self.exit_code in (signal.SIGKILL, signal.SIGTERM)


def in_processes(function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], num: int) -> Iterator[tuple[int, Any]]:
    """Calls `function(*task, line)` in `num` processes and yields the task's number and the result, or Lost, as they come.

    Args:
        function: of a module, so that other processes find it.
        tasks: arguments; `line`, which line of the terminal is the process's, comes behind them.
        num: processes.

    Raises:
        ConfigError: the processes do not even start.
    """
    context = multiprocessing.get_context("spawn")  # the same start on every platform; no inherited state
    terminal = context.RLock()  # the bars of all processes share it
    tqdm.set_lock(terminal)
    waiting = deque(enumerate(tasks))
    workers = [_Worker(context, terminal, 1 + line) for line in range(min(num, len(tasks)))]
    try:
        while waiting or any(worker.is_busy for worker in workers):
            for worker in workers:
                if waiting and not worker.is_busy:
                    worker.give(function, *waiting.popleft())
            for pipe in connection.wait([worker.pipe for worker in workers if worker.is_busy]):
                at = next(i for i, worker in enumerate(workers) if worker.pipe is pipe)
                number, result = workers[at].answer()
                if isinstance(result, Lost) and result.exit_code is not None:
                    workers[at] = _Worker(context, terminal, 1 + at)
                yield number, result
    finally:
        for worker in workers:
            worker.pipe.close()  # an idle one ends at that
        for worker in workers:
            worker.end()


class _Worker:
    """A process and what it is at."""

    def __init__(self, context: Any, terminal: Any, line: int) -> None:
        self.line, self.number, self.is_busy, self.has_begun = line, -1, False, False
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=daybreak.work, args=(theirs, terminal), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, function: Callable[..., Any], number: int, task: tuple[Any, ...]) -> None:
        """Sends it a task."""
        self.number, self.is_busy = number, True
        with contextlib.suppress(BrokenPipeError):  # it has ended; `answer` finds that out
            self.pipe.send_bytes(pickle.dumps((function, (*task, self.line))))

    def answer(self) -> tuple[int, Any]:
        """Returns what it sent, or how it ended."""
        try:
            if not self.has_begun:
                self.has_begun = bool(self.pipe.recv_bytes())
            self.is_busy, result = False, pickle.loads(self.pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode
            if not self.has_begun:
                raise ConfigError(
                    f"a worker process ended before it began, with exit code {code}; a script that calls run(..., jobs=2) must "
                    'do so under `if __name__ == "__main__":`'
                ) from None
            result = Lost(_how_it_ended(code), code)
        return self.number, result

    def end(self) -> None:
        """Ends it; one that is still busy is asked first, so that it cleans up."""
        self.process.join(0.5 if self.is_busy else 5.0)
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGINT)
            self.process.join(5.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name
    if -code in (signal.SIGKILL, signal.SIGTERM):
        return f"its process was killed from outside ({name}), as a system does that has no memory left; fewer --jobs need less"
    return f"its process crashed ({name})"


def work(pipe: Any, terminal: Any) -> None:
    """The life of a worker: a task comes in, its result goes out, until the parent has no more or is no more."""
    tqdm.set_lock(terminal)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
        pipe.send_bytes(b"begun")
        while True:
            pipe.send_bytes(_done(pipe.recv_bytes()))


def _done(task: bytes) -> bytes:
    try:
        function, arguments = pickle.loads(task)
        result = pickle.dumps(function(*arguments))
        pickle.loads(result)  # an exception's class may refuse to be made again
    except (Exception, SystemExit) as error:
        return pickle.dumps(Lost(f"{type(error).__name__}: {error}", details=traceback.format_exc()))
    return result


def _end_with_parent() -> None:
    """Ends this process when its parent has ended, be it killed: nobody is left who wants the result."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
