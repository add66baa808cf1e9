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


def entry_point(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what runs behind a compiled loop, for callers that always pass the types of its one signature.

    Looking at the types of twenty arrays takes longer than a short run of the loop.
    """
    overloads = getattr(function, "overloads", None)
    return next(iter(overloads.values())).entry_point if overloads else function


class Pointer(nb.types.WrapperAddressProtocol):
    """A compiled function as an address, looked up once rather than at every call that passes it on."""

    def __init__(self, function: Any, signature: Any) -> None:
        compiled = function.get_compile_result(signature)
        self.function, self._signature = function, signature  # the function must live as long as its address is used
        self._address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)

    def __wrapper_address__(self) -> int:
        return self._address

    def signature(self) -> Any:
        """Returns the signature that the address is good for."""
        return self._signature
