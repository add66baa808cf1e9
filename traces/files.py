"""Columns of CSV, Parquet and JSON-lines files, a few megabytes at a time."""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sim.errors import TraceError
from sim.limits import MAX_TOKENS
from sim.texts import did_you_mean
from traces.cells import whole_numbers
from traces.shown import cut, shown

BLOCK_BYTES = 1 << 20
"""Read from a text file at a time; about 25,000 rows of an Azure trace. Arrow reads some 35 blocks of a CSV ahead."""
PARQUET_ROWS = 65_536
PARQUET_SUFFIXES = (".parquet", ".pq")
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")

Malformed = Callable[[int | None, str], None]
"""Told the number of a row that has no columns, and why: a CSV row of too few or too many fields, a line that is no JSON
object. It may raise."""


def read_columns(path: str, columns: Sequence[str], malformed: Malformed, hint: str = "") -> Iterator[Any]:
    """Yields record batches of the named columns, in file order; memory does not grow with the file.

    CSV cells come as text, because files disagree on types within a column; Parquet and JSON cells come as they are stored,
    those of a JSON column of several types as text. CSV and JSON may be compressed (.gz, .bz2, .zst).

    Args:
        path: the file; `~` is the home folder.
        columns: the columns to read; one named twice comes once.
        malformed: called for each row without columns, which is then left out.
        hint: added to the error when there is no such file.

    Raises:
        TraceError: no such file, no such column, or not a file of its kind.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        wrong = "is a folder; name a file in it" if file.is_dir() else "no such file"
        raise TraceError(f"{path}: {wrong}{'; ' if hint else ''}{hint}")
    suffixes = [suffix.lower() for suffix in file.suffixes[-2:]]
    read = _read_csv
    if suffixes and suffixes[-1] in PARQUET_SUFFIXES:
        read = _read_parquet
    elif any(suffix in JSON_SUFFIXES for suffix in suffixes):
        read = _read_json
    try:
        yield from read(file, list(dict.fromkeys(columns)), malformed)
    except (pa.ArrowInvalid, OSError) as error:
        raise TraceError(f"{path}: {cut(str(error).splitlines()[0])}") from error


def _read_parquet(file: Path, columns: list[str], malformed: Malformed) -> Iterator[Any]:
    with pq.ParquetFile(file) as parquet:
        _check_columns(file, columns, parquet.schema_arrow.names)
        yield from parquet.iter_batches(PARQUET_ROWS, columns=columns, use_threads=False)


def _read_csv(file: Path, columns: list[str], malformed: Malformed) -> Iterator[Any]:
    bad_rows: list[tuple[int | None, str]] = []

    def skip(row: Any) -> str:  # called while Arrow parses; what it raises would be lost, hence the list
        why = f"the number of fields differs from the header's: '{cut(row.text)}'"
        bad_rows.append((None if row.number is None else row.number - 1, why))
        return "skip"

    _check_columns(file, columns, _csv_header(file))
    options = pa_csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
    )
    with (
        pa.input_stream(str(file), compression="detect") as source,
        pa_csv.open_csv(
            source,
            read_options=pa_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
            parse_options=pa_csv.ParseOptions(invalid_row_handler=skip),
            convert_options=options,
        ) as reader,
    ):
        for batch in reader:
            while bad_rows:
                malformed(*bad_rows.pop(0))
            yield batch
        while bad_rows:
            malformed(*bad_rows.pop(0))


def _csv_header(file: Path) -> list[str]:
    with pa.input_stream(str(file), compression="detect") as source:
        names: list[str] = pa_csv.open_csv(source, parse_options=_LENIENT).schema.names
    return names


def _read_json(file: Path, columns: list[str], malformed: Malformed) -> Iterator[Any]:
    num_lines = 0
    with pa.input_stream(str(file), compression="detect") as source, io.BufferedReader(source) as text:
        while lines := text.readlines(BLOCK_BYTES):
            rows: list[dict[str, Any]] = []
            for number, line in enumerate(lines, num_lines + 1):
                row = _json_object(line)
                if row is not None:
                    rows.append(row)
                elif line.strip():
                    malformed(number, f"no JSON object: '{cut(line[:1000].decode(errors='replace').strip())}'")
            if rows:
                _check_columns(file, columns, list(dict.fromkeys(name for row in rows for name in row)))
            num_lines += len(lines)
            yield pa.record_batch({name: _json_column([row.get(name) for row in rows]) for name in columns})


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _json_column(cells: list[Any]) -> Any:
    try:
        column = pa.array(cells)
    except (pa.ArrowException, OverflowError):  # several types, or a number of more than 63 bits
        column = None
    if column is None or (pa.types.is_nested(column.type) and not _is_of_ids(column.type)):
        text = (cell if cell is None or isinstance(cell, str) else json.dumps(cell) for cell in cells)
        column = pa.array(text, pa.string())
    return column


def _is_of_ids(kind: Any) -> bool:
    if not pa.types.is_list(kind):
        return False
    return any(is_of(kind.value_type) for is_of in (pa.types.is_integer, pa.types.is_string, pa.types.is_null))


_LENIENT = pa_csv.ParseOptions(invalid_row_handler=lambda row: "skip")


def _check_columns(file: Path, wanted: Sequence[str], found: Sequence[str]) -> None:
    for name in wanted:
        if name not in found:
            raise TraceError(f"{file}: no column '{name}'{did_you_mean(name, found)}; found: {cut(', '.join(found))}")


def read_lengths(path: str, column: str) -> NDArray[np.int64]:
    """Returns a column of lengths in tokens, all of it.

    Raises:
        TraceError: as `read_columns`, and for a cell that is no whole number of at least 1.
    """

    def refuse(row: int | None, why: str) -> None:
        raise TraceError(f"{path}: row {row}: {why}")

    pieces: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    num_rows = 0
    for batch in read_columns(path, [column], refuse):
        lengths = whole_numbers(batch.column(0))
        bad = np.flatnonzero((lengths < 1) | (lengths > MAX_TOKENS))
        if len(bad):
            given = shown(batch.column(0)[int(bad[0])].as_py())
            allowed = f"a length is 1 to {MAX_TOKENS:,} tokens"
            raise TraceError(f"{path}: row {num_rows + bad[0] + 1}: {column} is {given}; {allowed}")
        pieces.append(lengths)
        num_rows += len(lengths)
    if num_rows == 0:
        raise TraceError(f"{path}: no rows")
    return np.concatenate(pieces)
