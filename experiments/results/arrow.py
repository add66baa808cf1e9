"""Arrays to Arrow and back, by their buffers.

Arrow's own conversions import pandas before they look at what they are given, and that takes longer than a short run.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def numbers(kind: pa.DataType, values: Any, is_missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """Returns (n,) numbers or truth values as Arrow has them.

    Args:
        kind: their type.
        values: the numbers; what stands where one is missing does not matter.
        is_missing: (n,) which of them are null; None = none.
    """
    data = np.ascontiguousarray(values, kind.to_pandas_dtype())
    buffers = [_presence(is_missing), pa.py_buffer(_bits(data) if data.dtype == np.bool_ else data)]
    return pa.Array.from_buffers(kind, len(data), buffers)


def words(values: Sequence[str | None]) -> pa.Array:
    """Returns texts as Arrow has them; None is null."""
    encoded = [(value or "").encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    is_missing = np.array([value is None for value in values], np.bool_)
    buffers = [_presence(is_missing), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def column(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """Returns Python's numbers, truth values or texts as Arrow has them; None is null."""
    if kind == pa.string():
        return words(values)
    return numbers(
        kind, [0 if value is None else value for value in values], np.array([value is None for value in values], bool)
    )


def values_of(array: pa.Array) -> NDArray[Any]:
    """Returns (n,) numbers or truth values, not to be written to; as floats, NaN where one is null, if any is."""
    presence, data = array.buffers()
    here = slice(array.offset, array.offset + len(array))
    if not len(array):
        return np.empty(0, array.type.to_pandas_dtype())
    values = _unpacked(data) if array.type == pa.bool_() else np.frombuffer(data, array.type.to_pandas_dtype())
    return np.where(_unpacked(presence)[here], values[here], np.nan) if array.null_count else values[here]


def _presence(is_missing: NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if is_missing is None or not is_missing.any() else pa.py_buffer(_bits(~is_missing))


def _bits(values: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.packbits(values, bitorder="little")


def _unpacked(bits: pa.Buffer) -> NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little").view(np.bool_)
