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

    A subclass, a frozen dataclass too, declares each as `name: Annotated[Any, dtype, number of dimensions]`.

    Raises:
        TypeError: an array is of another dtype or rank, or not contiguous: compiled code would read something else.
    """

    address: int = field(init=False)
    _table: np.ndarray[Any, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        words: list[int] = []
        for name, (dtype, ndim) in declared(type(self)).items():
            array = getattr(self, name)
            if array.dtype != dtype or array.ndim != ndim or not array.flags.c_contiguous:
                raise TypeError(f"{type(self).__name__}.{name} must be a contiguous array of {ndim} dimensions of {dtype}")
            words += [array.ctypes.data, *array.shape]
        table = np.array(words, np.int64)
        object.__setattr__(self, "_table", table)
        object.__setattr__(self, "address", table.ctypes.data)

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns what a copy is made of: its own arrays, and so another address."""
        return type(self), tuple(getattr(self, member.name) for member in fields(self) if member.init)


def declared(bundle: type[Bundle]) -> dict[str, tuple[np.dtype[Any], int]]:
    """Returns the dtype and the number of dimensions of each array of a bundle, in the order of the table."""
    hints = get_type_hints(bundle, include_extras=True)
    arrays = {name: get_args(hint)[1:] for name, hint in hints.items() if get_origin(hint) is Annotated}
    return {name: (np.dtype(dtype), ndim) for name, (dtype, ndim) in arrays.items()}
