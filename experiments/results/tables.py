"""Parquet and JSON as results write them: a unit and a meaning on every column, null for what does not exist."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from experiments.results import arrow


class Column(NamedTuple):
    """One column of a result table; the unit is part of the name."""

    name: str
    type: pa.DataType
    meaning: str
    is_optional: bool = True  # null where it does not exist


def schema(title: str, columns: Iterable[Column]) -> pa.Schema:
    """Returns the Arrow schema, the title and each column's meaning in its metadata under `description`."""
    fields = [
        pa.field(column.name, column.type, nullable=column.is_optional, metadata={"description": column.meaning})
        for column in columns
    ]
    return pa.schema(fields, metadata={"description": title})


def write_rows(path: Path, title: str, columns: Iterable[Column], rows: list[dict[str, Any]]) -> None:
    """Writes a small table; a key that a row lacks, None and NaN become null."""
    columns, plain = list(columns), [without_nan(row) for row in rows]
    arrays = [arrow.column(column.type, [row.get(column.name) for row in plain]) for column in columns]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema(title, columns)), path)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Writes strict JSON (RFC 8259): NaN and infinities become null."""
    path.write_text(json.dumps(without_nan(data), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def without_nan(data: Any) -> Any:
    """Returns plain Python data with null in place of NaN and infinities.

    >>> without_nan({"p50": float("nan"), "counts": [1, 2.5]})
    {'p50': None, 'counts': [1, 2.5]}
    """
    if isinstance(data, Mapping):
        return {key: without_nan(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [without_nan(value) for value in data]
    if hasattr(data, "item"):  # a NumPy scalar
        data = data.item()
    return None if isinstance(data, float) and not math.isfinite(data) else data
