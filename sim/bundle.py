"""Arrays that travel together: Python sees an object with arrays, compiled code one address.

A compiled function that takes a tuple of twenty arrays takes a hundred and eighty numbers, and handing them on is most of what
there is to compile. A bundle is the address of a table of where its arrays are, and that never changes while the bundle lives.
"""

from dataclasses import dataclass, field, fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np


@dataclass(frozen=True, eq=False)
class Bundle:
    """Holds arrays that compiled code may write into but not replace; `dataclasses.replace` makes another bundle.

    A subclass, a frozen dataclass too, declares each as `name: Annotated[Any, dtype, number of dimensions]`; one of no
    dimensions is a single record. A dtype of None is whatever the array has, and compiled code is compiled for it.

    Raises:
        TypeError: an array is of another dtype or rank, or not contiguous: compiled code would read something else.
    """

    address: int = field(init=False)
    _table: np.ndarray[Any, Any] = field(init=False, repr=False)
    _whole: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        words: list[int] = []
        for name, (dtype, ndim) in declared(type(self)).items():
            array = getattr(self, name)
            if dtype not in (None, array.dtype) or array.ndim != ndim or not array.flags.c_contiguous:
                raise TypeError(f"{type(self).__name__}.{name} must be a contiguous array of {ndim} dimensions of {dtype}")
            words += [np.frombuffer(array, np.uint8).ctypes.data if array.nbytes else 0, *array.shape]
        table = np.array(words, np.int64)
        object.__setattr__(self, "_table", table)
        object.__setattr__(self, "_whole", {})
        object.__setattr__(self, "address", table.ctypes.data)

    def show_first(self, name: str, num: int) -> None:
        """Shows only the first `num` of an array, from now on and compiled too; those behind them stay where they are."""
        whole = self._whole.setdefault(name, getattr(self, name))
        object.__setattr__(self, name, whole[:num])
        arrays = declared(type(self))
        before = list(arrays)[: list(arrays).index(name)]
        self._table[sum(1 + arrays[one][1] for one in before) + 1] = num

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns what a copy is made of: its own arrays, and so another address."""
        return type(self), tuple(getattr(self, member.name) for member in fields(self) if member.init)


_DECLARED: dict[type, dict[str, tuple[np.dtype[Any] | None, int]]] = {}


def declared(bundle: type[Bundle]) -> dict[str, tuple[np.dtype[Any] | None, int]]:
    """Returns the dtype and the number of dimensions of each array of a bundle, in the order of the table."""
    if bundle not in _DECLARED:
        hints = get_type_hints(bundle, include_extras=True)
        arrays = {name: get_args(hint)[1:] for name, hint in hints.items() if get_origin(hint) is Annotated}
        found = {name: (None if dtype is None else np.dtype(dtype), ndim) for name, (dtype, ndim) in arrays.items()}
        _DECLARED[bundle] = found
    return _DECLARED[bundle]
