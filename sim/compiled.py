"""The one place that holds the compiler's options. With NUMBA_DISABLE_JIT=1 the same source runs as plain Python."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba as nb

F = TypeVar("F", bound=Callable[..., Any])

# Reference counting is off (`_nrt`, private to numba, hence the pinned range in pyproject.toml): compiled code
# allocates nothing, and the small functions below cost nothing to call. Without it they are eight times slower.
_OPTIONS: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": False}


def verb(function: F) -> F:
    """Marks a small function over records; it is inlined into the loop that calls it."""
    return nb.njit(forceinline=True, **_OPTIONS)(function)


def loop(*signature: Any) -> Callable[[F], F]:
    """Marks a function that Python calls. With a signature it compiles once, and its cache serves every process."""

    def decorate(function: F) -> F:
        return nb.njit(*signature, **_OPTIONS)(function)

    return decorate
