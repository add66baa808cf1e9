"""Code of the user's own, named `package.module:name` in a config: importing it, and saying where it went wrong."""

import functools
import importlib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import ValidationError

from daybreak import PACKAGES
from sim.errors import ConfigError, EngineError, InvariantError, TraceError
from sim.texts import bounded, did_you_mean

EXTERNAL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""How a policy from outside is named: `package.module:name`."""

NAMED_BY = ("kind", "reader")
"""Keys of a config whose values may name code of the user's own."""

_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_SAID = (ConfigError, TraceError, EngineError, InvariantError)  # already in words


def load_external(name: str) -> Any:
    """Imports `package.module:name`; modules in the current folder are found too.

    Raises:
        ValueError: the module or the name in it is missing, or the module fails to import.
    """
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # stays, so that what the module imports later is found as well
    try:
        module = importlib.import_module(module_name)
        found = getattr(module, attribute, None)
    except ModuleNotFoundError as error:
        missing = "" if error.name == module_name else f" (it needs '{error.name}')"
        ours = f"; '{error.name}' would be in a package of Daybreak's, which has that name" if _is_ours(module_name) else ""
        raise ValueError(f"cannot import '{module_name}'{missing}; looked in {os.getcwd()} and on sys.path{ours}") from error
    except (Exception, SystemExit) as error:
        raise ValueError(f"importing '{module_name}' failed: {_in_words(error, module_name)}") from error
    if found is None:
        public = [word for word in vars(module) if not word.startswith("_")]
        raise ValueError(f"module '{module_name}' has no '{attribute}'{did_you_mean(attribute, public)}")
    return found


def names_in(document: Any) -> Iterator[str]:
    """Yields every `package.module:name` that a config gives as a kind or reader, sweeps included."""
    if isinstance(document, dict):
        for key, value in document.items():
            may_name = str(key).split(".")[-1] in NAMED_BY
            for one in value if isinstance(value, list) else [value]:
                if may_name and isinstance(one, str) and EXTERNAL.fullmatch(one):
                    yield one
            yield from names_in(value)
    elif isinstance(document, list):
        for one in document:
            yield from names_in(one)


def is_outside(thing: Any) -> bool:
    """Tells whether a class or function is the user's own."""
    return not _is_ours(getattr(thing, "py_func", thing).__module__)


def fault(error: BaseException, names: Iterable[str]) -> str | None:
    """Returns what went wrong in the user's own code, in a line; None where the error did not pass through it.

    Args:
        error: as it was caught.
        names: the `package.module:name`s that the config gives.
    """
    for name in names:
        if _their_frames(error, name.partition(":")[0]):
            return f"{name}: {_in_words(error, name.partition(':')[0])}"
    return None


@contextmanager
def own_code(thing: Any) -> Iterator[None]:
    """Says of what goes wrong inside that it is the mistake of `thing`, if that is the user's own class or function.

    Raises:
        ConfigError: in a line, with its module and name, the error and the user's line.
    """
    try:
        yield
    except (*_SAID, ValidationError):
        raise
    except (Exception, SystemExit) as error:
        if not is_outside(thing):
            raise
        plain = getattr(thing, "py_func", thing)
        raise ConfigError(f"{plain.__module__}:{plain.__qualname__}: {_in_words(error, plain.__module__)}") from error


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of the user's own, so that what it raises is said to be its mistake; ours as they are."""
    if not is_outside(function):
        return function

    @functools.wraps(function)
    def ask(*arguments: Any) -> Any:
        with own_code(function):
            return function(*arguments)

    return ask


def _is_ours(module_name: str) -> bool:
    return module_name.partition(".")[0] in PACKAGES


def _in_words(error: BaseException, module_name: str) -> str:
    """The error's type and text, and the innermost line of the user's that led to it."""
    said = f"{type(error).__name__}: {bounded(' '.join(str(error).split()))}".rstrip(": ")
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({_shown_path(error.filename)}, line {error.lineno})"
    frames = _their_frames(error, module_name)
    if not frames:
        return said
    frame, line = frames[-1]
    return f"{said} ({_shown_path(frame.f_code.co_filename)}, line {line})"


def _their_frames(error: BaseException | None, module_name: str) -> list[tuple[FrameType, int]]:
    """The frames that an error passed through from the first in the user's package on, ours and libraries' left out.

    SimPy raises a copy of an error, with the one that was raised as its cause.
    """
    package, file = module_name.partition(".")[0], getattr(sys.modules.get(module_name), "__file__", None)
    while error is not None:
        frames = list(traceback.walk_tb(error.__traceback__))
        inside = [
            str(frame.f_globals.get("__name__")).partition(".")[0] == package or frame.f_code.co_filename == file
            for frame, _ in frames  # one of compiled code has a file and no name
        ]
        if any(inside):
            first = inside.index(True)
            pairs = zip(frames[first:], inside[first:], strict=True)
            return [pair for pair, is_inside in pairs if is_inside or _is_theirs(pair[0])]
        error = error.__cause__ or error.__context__
    return []


def _is_theirs(frame: FrameType) -> bool:
    name, place = str(frame.f_globals.get("__name__")), frame.f_code.co_filename
    return not _is_ours(name) and not place.startswith((*_LIBRARIES, "<"))


def _shown_path(filename: str) -> str:
    path, here = Path(filename), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else filename
