"""Cells of a file that name something: 64-bit ids, and lists of them."""

import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traces.arrays import Integers, Mask
from traces.cells import MISSING
from traces.segments import hash_64


def ids(column: Any) -> tuple[Integers, Mask]:
    """Returns the cells as 64-bit ids, and where there is one; empty cells have none.

    A whole number is its own id, whether the file has it as a number or as text (from 2**63 on its sign bit is set); any
    other text is hashed.
    """
    if pa.types.is_integer(column.type):
        return _bits(pc.fill_null(column, 0)), _bools(pc.is_valid(column))
    text = as_text(column)
    is_present = _bools(pc.fill_null(pc.not_equal(text, ""), False))
    numbers = _plain_numbers(text)
    if numbers is not None:
        return _bits(pc.fill_null(numbers, 0)), is_present
    encoded = pc.dictionary_encode(pc.fill_null(text, ""))
    of_each = np.array([_id(one) for one in encoded.dictionary.to_pylist()], np.int64)
    return of_each[encoded.indices.to_numpy()], is_present


def as_text(column: Any) -> Any:
    """Returns the cells as text, whatever they are; an empty cell stays empty."""
    try:
        return pc.cast(column, pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # bytes, lists, mappings
        return pa.array([None if cell is None else str(cell) for cell in column.to_pylist()], pa.string())


def _plain_numbers(text: Any) -> Any:
    """The cells as integers if all are, without leading zeros or spaces; else None. A short cut: `_id` does the same."""
    try:
        numbers = pc.cast(text, pa.int64())
    except pa.ArrowInvalid:
        return None
    return numbers if pc.all(pc.equal(pc.cast(numbers, pa.string()), text)).as_py() is not False else None


_WHOLE = re.compile(r"0|-?[1-9]\d{0,19}")


def _id(text: str) -> int:
    """The id of one text.

    >>> _id("17"), _id("017") == 17, _id("18446744073709551615")
    (17, False, -1)
    """
    number = int(text) if _WHOLE.fullmatch(text) else None
    return hash_64(text) if number is None or not -(2**63) <= number < 2**64 else _signed(number)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def id_lists(column: Any) -> tuple[Integers, Integers]:
    """Returns the ids of all cells, one cell's after the other, and how many each has; MISSING for a cell that is no list.

    A cell is a list of 64-bit whole numbers or texts (see `ids`), or that as text.
    """
    if (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)) and column.null_count == 0:
        inner = pc.list_flatten(column)
        if (pa.types.is_integer(inner.type) or pa.types.is_string(inner.type)) and inner.null_count == 0:
            return ids(inner)[0], _bits(pc.list_value_length(column))
    lists = [_id_list(cell) for cell in column.to_pylist()]
    num_ids = np.array([MISSING if one is None else len(one) for one in lists], np.int64)
    return np.array([number for one in lists for number in one or ()], np.int64), num_ids


def _id_list(cell: Any) -> list[int] | None:
    """One cell's ids.

    >>> _id_list("[1, 4294967297]"), _id_list([18446744073709551615]), _id_list("1"), _id_list([True]), _id_list([None])
    ([1, 4294967297], [-1], None, None, None)
    >>> _id_list(["17", 17]), _id_list(["0a"]) == [hash_64("0a")]
    ([17, 17], True)
    """
    if isinstance(cell, str):
        try:
            cell = json.loads(cell)
        except ValueError:
            return None
    if not isinstance(cell, list) or not all(map(_is_id, cell)):
        return None
    return [_id(one) if isinstance(one, str) else _signed(one) for one in cell]


def _is_id(one: Any) -> bool:
    return isinstance(one, str) or (type(one) is int and -(2**63) <= one < 2**64)


def _bits(column: Any) -> Integers:
    """Whole numbers without a null, 64 bits each; the largest unsigned ones become negative and stay distinct."""
    width = pa.uint64() if pa.types.is_uint64(column.type) else pa.int64()
    return np.asarray(pc.cast(column, width).to_numpy(zero_copy_only=False)).view(np.int64)


def _bools(column: Any) -> Mask:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.bool_)
