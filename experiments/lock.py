"""One command at a time writes an experiment's folder: a lock that the system takes back however its holder ends."""

import contextlib
import errno
import fcntl
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from sim.errors import ConfigError
from sim.texts import bounded

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What a file system says that has no locks; then a command finds out at its end whether another wrote there too."""


@contextlib.contextmanager
def held(folders: Iterable[Path]) -> Iterator[None]:
    """Holds these folders against other commands as long as the block runs.

    Raises:
        ConfigError: another command holds one; the line says which, and since when.
        OSError: the lock's file, which lies beside the folder, cannot be written.
    """
    with contextlib.ExitStack() as stack:
        for folder in dict.fromkeys(folders):
            stack.enter_context(_held(folder))
        yield


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    path = folder.with_name(f".{folder.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # as in /proc
        raise ConfigError(f"{path.parent}: no folder can be made there; choose another --out") from error
    descriptor = _taken(path, folder)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # first: who opens it now makes a new one, who has it open sees that it is gone
        os.close(descriptor)


def _taken(path: Path, folder: Path) -> int:
    """Returns the descriptor that holds the lock. A file without a holder, as a killed command leaves it, is taken over."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = bounded(os.pread(descriptor, 1000, 0).decode(errors="replace").strip() or "another command")
            os.close(descriptor)
            raise ConfigError(f"{folder}: {holder} is writing there; wait until it is done, or choose another --out") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(descriptor)
                raise
        if _is_still_there(path, descriptor):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{_ourselves()}\n".encode(), 0)
            return descriptor
        os.close(descriptor)  # its holder has just ended and removed it


def _is_still_there(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _ourselves() -> str:
    command = bounded(shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]), 80)
    return f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')} ({command}),"
