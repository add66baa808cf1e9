"""The one place that holds the compiler's options. With NUMBA_DISABLE_JIT=1 the same source runs as plain Python."""

import contextlib
import hashlib
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numba as nb
import numpy as np
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

_ROOT = Path(__file__).parents[1]
_WITH_COMPILED_CODE = ("sim", "replicas", "routers")


def _cache_folder(root: Path = _ROOT) -> Path | None:
    """Returns where compiled code is kept: a folder for this state of the sources; None where nothing can be written.

    Numba looks only at the file of the function it compiles, not at the files of the verbs that are inlined into it, so
    with its default folder a change to a verb could go on running the old code.
    """
    digest = hashlib.sha256(nb.__version__.encode())  # two environments may run the same checkout
    for package in _WITH_COMPILED_CODE:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    for place in (root / "__pycache__" / "compiled", *_own_caches()):
        folder = place / digest.hexdigest()[:16]
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return None


def _own_caches() -> Iterator[Path]:
    """Yields where a user keeps what can be made again, for sources in a folder that nobody may write."""
    with contextlib.suppress(RuntimeError):  # in a container, a user may have no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "daybreak"
    shared = Path(tempfile.gettempdir()) / f"daybreak-{os.getuid()}"
    with contextlib.suppress(OSError):
        shared.mkdir(mode=0o700, exist_ok=True)
        if shared.stat().st_uid == os.getuid():  # code is run from there: it must not be somebody else's
            yield shared


CACHE = Path(os.environ["NUMBA_CACHE_DIR"]) if os.environ.get("NUMBA_CACHE_DIR") else _cache_folder()
"""Where compiled code is kept between processes."""


def is_compiled_already(module: str) -> bool:
    """Tells whether a module's functions need no compiling here: they are in the cache, or run as plain Python."""
    return bool(nb.config.DISABLE_JIT) or (CACHE is not None and any(CACHE.glob(f"*/{module}.*.nbi")))  # type: ignore[attr-defined]


if CACHE is not None:
    nb.config.CACHE_DIR = str(CACHE)  # type: ignore[attr-defined]

if nb.config.DISABLE_JIT:  # type: ignore[attr-defined]
    np.seterr(over="ignore")  # compiled integers wrap around in silence, and hashes want that

F = TypeVar("F", bound=Callable[..., Any])

# Reference counting is off (`_nrt`, private to numba, hence the pinned range in pyproject.toml): compiled code
# allocates nothing, and the small functions below cost nothing to call. Without it they are eight times slower.
_OPTIONS: dict[str, Any] = {"cache": CACHE is not None, "error_model": "numpy", "_nrt": False}
# A part of a loop: what only compiled code calls needs no door to Python.
_OPTIONS_OF_PARTS: dict[str, Any] = _OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "cache": False}


class _PartLibrary(JITCodeLibrary):
    """The code of a part, a verb or what is rare. It never runs by itself: loops link it in, and optimise it there."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _PartCompiler(Compiler):
    """Compiles such a part up to its LLVM code; to make machine code of each would take a third of all compile time."""

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        """Returns numba's result for the function; where its address would be, a builtin that does not take its arguments."""
        context = self.state.targetctx
        self.state.library = _PartLibrary(context.codegen(), function.__qualname__)
        self.state.flags.no_compile = True
        no_door = dict[str, str]().__getitem__  # another one each time: the verb is known by it
        result = super().compile_extra(function)._replace(entry_point=no_door)
        context.insert_user_function(no_door, result.fndesc, [result.library])
        return result


def _compiled_once(dispatcher: Any) -> Any:
    """Has a function compiled for one width of integers: a caller that passes a narrower one widens it.

    Else it would be compiled again for ids that come out of a record, which are narrow: a fifth of all compile time.
    """
    if hasattr(dispatcher, "get_call_template"):  # else it is not compiled
        template_for = dispatcher.get_call_template
        dispatcher.get_call_template = lambda args, kws: template_for(
            tuple(map(_widened, args)), {name: _widened(kind) for name, kind in kws.items()}
        )
    return dispatcher


def _widened(kind: Any) -> Any:
    return nb.types.int64 if isinstance(kind, nb.types.Integer) and kind != nb.types.uint64 else kind


def _options(function: Callable[..., Any]) -> dict[str, Any]:
    """The compiler's options; in a router of the user's own, indices are checked, so that a wrong one is an error."""
    is_own = function.__module__.partition(".")[0] not in _WITH_COMPILED_CODE
    return _OPTIONS | {"boundscheck": True} if is_own else _OPTIONS


def _takes_fleet(function: Callable[..., Any]) -> bool:
    return next(iter(inspect.signature(function).parameters), "") == "fleet"


def verb(function: F) -> F:
    """Marks a small function over records; it is inlined into the loop that calls it.

    Python must not call one that takes a fleet: it has no door.
    """
    if not _takes_fleet(function):
        return _compiled_once(nb.njit(forceinline=True, **_options(function))(function))
    return _compiled_once(nb.njit(forceinline=True, pipeline_class=_PartCompiler, **_OPTIONS_OF_PARTS)(function))


def rare(function: F) -> F:
    """Marks a function over a fleet that compiled code calls, but not in every step; out of line, it compiles faster."""
    return _compiled_once(nb.njit(pipeline_class=_PartCompiler, **_OPTIONS_OF_PARTS)(function))


def loop(*signature: Any) -> Callable[[F], F]:
    """Marks a function that Python calls. With a signature it compiles once, and its cache serves every process."""

    def decorate(function: F) -> F:
        only_routers = {"no_cfunc_wrapper": _takes_fleet(function)}  # only they are passed on as an address
        return nb.njit(*signature, **(_options(function) | only_routers))(function)

    return decorate


def entry_point(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what runs behind a compiled loop, for callers that always pass the types of its one signature.

    Working out the type of a router's address takes longer than a short run of the loop.
    """
    overloads = getattr(function, "overloads", None)
    return next(iter(overloads.values())).entry_point if overloads else function


def raising(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls compiled code, and raises what a function raised that it calls by its address.

    Such an error is otherwise only printed, and the caller goes on with whatever stands where the answer should.
    """
    raised: list[BaseException] = []
    usual = sys.unraisablehook

    def note(error: Any) -> None:
        if error.exc_value is None or "numba" not in str(error.object):
            usual(error)
        elif not raised:
            raised.append(error.exc_value.with_traceback(error.exc_traceback))

    sys.unraisablehook = note
    try:
        result = function(*arguments)
    finally:
        sys.unraisablehook = usual
    if raised:
        raise raised[0]
    return result


class Pointer(nb.types.WrapperAddressProtocol):
    """A compiled function as an address, looked up once rather than at every call that passes it on."""

    def __init__(self, function: Any, own: Any, signature: Any) -> None:
        """Takes a function, its own signature, for which it is compiled if need be, and the one as which it is passed on.

        The function must live as long as its address is used.
        """
        if own.args not in function.overloads:
            function.compile(own)
        compiled = function.overloads[own.args]
        self.function, self._signature = function, signature
        self._address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)

    def __wrapper_address__(self) -> int:
        return self._address

    def signature(self) -> Any:
        """Returns the signature that the address is good for."""
        return self._signature
