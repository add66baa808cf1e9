"""Cells of a file, as text or typed, turned into instants and whole numbers."""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from traces.arrays import Integers

MISSING = int(np.iinfo(np.int64).min)
"""Stands for a cell that is empty or cannot be read."""

NS_PER_UNIT = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def whole_numbers(column: Any) -> Integers:
    """Returns the cells as integers: `374`, `374.0` and ` 374` are, `374.5`, `x` and empty cells are MISSING."""
    return _scaled(column, 1)


def instants_ns(column: Any, time_unit: str) -> Integers:
    """Returns the cells as nanoseconds since their own zero (1970 for dates); MISSING where they cannot be.

    Args:
        column: numbers, text, or Arrow timestamps.
        time_unit: s, ms, us, ns; or iso8601, for text like `2023-11-16 18:15:46.6805900` or `2024-05-10 00:00:00+00:00`
            with up to nine fraction digits, where a date without a zone is taken as UTC. Arrow timestamps carry their
            own unit and need none.
    """
    if pa.types.is_timestamp(column.type):
        try:
            return _integers(pc.cast(column, pa.timestamp("ns", column.type.tz)).cast(pa.int64()))
        except pa.ArrowInvalid:  # before 1677 or after 2262
            return np.full(len(column), MISSING)
    if pa.types.is_nested(column.type):
        return np.full(len(column), MISSING)
    if time_unit != "iso8601":
        return _scaled(column, NS_PER_UNIT[time_unit], is_whole=False)
    text = pc.cast(column, pa.string())
    # A file usually has one form throughout, which Arrow parses quickly; the rest is read one by one.
    for form in (pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        try:
            return _integers(pc.cast(text, form).cast(pa.int64()))
        except pa.ArrowInvalid:
            continue
    return _each(text, _iso_ns)


def _integers(column: Any) -> Integers:
    return np.asarray(pc.fill_null(column, MISSING).to_numpy(zero_copy_only=False), np.int64)


def _scaled(column: Any, factor: int, is_whole: bool = True) -> Integers:
    """Cells times a whole factor, exact for whole numbers; MISSING when the result does not fit, and for true and false."""
    if pa.types.is_boolean(column.type):
        return np.full(len(column), MISSING)
    largest = (2**63 - 1) // factor
    if not pa.types.is_floating(column.type):
        try:
            whole = _integers(pc.cast(column, pa.int64()))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
        else:
            fits = (whole >= -largest) & (whole <= largest)  # MISSING does not
            return np.where(fits, np.where(fits, whole, 0) * factor, MISSING)
    numbers = floats(column)
    fits = np.abs(numbers) < largest
    if is_whole:
        fits &= numbers == np.rint(numbers)
    scaled = np.rint(np.where(fits, numbers, 0.0) * factor).astype(np.int64)
    return np.where(fits, scaled, MISSING)


def floats(column: Any) -> NDArray[np.float64]:
    """Returns the cells as floats; NaN where they are none."""
    try:
        numbers = pc.cast(column, pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return np.array([_number(cell) for cell in column.to_pylist()], np.float64)
    return np.asarray(pc.fill_null(numbers, math.nan).to_numpy(zero_copy_only=False), np.float64)


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


def _each(column: Any, read: Callable[[str], int]) -> Integers:
    return np.array([MISSING if cell is None else read(cell) for cell in column.to_pylist()], np.int64)


_ISO = re.compile(r"\s*(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s*(Z|UTC|[+-]\d\d:?\d\d)?\s*")


def _iso_ns(text: str) -> int:
    """One date as nanoseconds since 1970, or MISSING.

    >>> _iso_ns("1970-01-01 00:00:01.5 UTC"), _iso_ns("1970-01-01T01:00:00+01:00"), _iso_ns("noon") == MISSING
    (1500000000, 0, True)
    """
    match = _ISO.fullmatch(text)
    if match is None:
        return MISSING
    date, fraction, zone = match.groups()
    try:
        instant = datetime.fromisoformat(date + ("+00:00" if zone in (None, "Z", "UTC") else zone))
    except ValueError:  # the 31st of February
        return MISSING
    seconds = round((instant - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    at_ns = seconds * 1_000_000_000 + int((fraction or "0").ljust(9, "0"))
    return at_ns if abs(at_ns) < 2**63 else MISSING  # it is before 1677 or after 2262
