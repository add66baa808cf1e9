"""Whose fault an error is: the user's config, the user's own code, the machine's, or ours."""

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path

from sim.errors import ConfigError, EngineError, InvariantError, TraceError
from sim.outside import fault

IN_WORDS = (ConfigError, TraceError, EngineError, InvariantError)
"""Errors that say all there is to say; of any other, where it came from has to be told."""

_REMEDIES = {
    errno.ENOSPC: "free some space, or choose another --out",
    errno.EDQUOT: "free some space, or choose another --out",
    errno.EFBIG: "choose another --out",
    errno.EACCES: "it takes the right to do that, or another --out",
    errno.EPERM: "it takes the right to do that, or another --out",
    errno.EROFS: "choose another --out",
    errno.ENOTDIR: "a file is in the way; move it, or choose another --out",
    errno.EEXIST: "a file is in the way; move it, or choose another --out",
    errno.EISDIR: "a folder is in the way; move it, or name another file",
    errno.ENAMETOOLONG: "choose shorter names",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the limit on open files",
    errno.EIO: "the disk fails",
    errno.ENOMEM: "fewer --jobs need less memory at once",
}
"""What a machine refuses, and what helps."""


def seen(error: BaseException, names: Iterable[str] = (), folder: Path | None = None) -> BaseException:
    """Returns an error as its owner should see it: a ConfigError where it is the user's or the machine's, else as it is.

    Args:
        error: as it was caught.
        names: the `package.module:name`s of the user's own code in the config.
        folder: where results go, for an error that does not say which file it is about.
    """
    if isinstance(error, IN_WORDS):
        return error
    theirs = fault(error, names)
    if theirs is not None:
        return ConfigError(theirs)
    refused = of_machine(error, folder)
    return error if refused is None else ConfigError(refused)


def of_machine(error: BaseException, folder: Path | None = None) -> str | None:
    """Returns in a line what the machine refused: room, a right, memory; None where it is not the machine."""
    if isinstance(error, MemoryError):
        return f"this machine has not enough memory{f' ({error})' if str(error) else ''}; fewer --jobs need less at once"
    if not isinstance(error, OSError):
        return None
    written = re.search(r"\[errno (\d+)\]", str(error), re.IGNORECASE)  # where a library keeps the number to itself
    number = error.errno or (int(written[1]) if written else None)
    if number not in _REMEDIES:
        return None
    return f"{error.filename or folder or 'output'}: {os.strerror(number)}; {_REMEDIES[number]}"
