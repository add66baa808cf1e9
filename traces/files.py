"""Columns of CSV and Parquet files, a few megabytes at a time."""

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sim.errors import TraceError
from traces.cells import whole_numbers

BLOCK_BYTES = 1 << 20
"""Read from a CSV at a time; about 25,000 rows of an Azure trace. Arrow reads some 35 blocks ahead."""
PARQUET_ROWS = 65_536
PARQUET_SUFFIXES = (".parquet", ".pq")

Malformed = Callable[[int | None, str], None]
"""Told the number and text of a CSV row that has too few or too many fields; it may raise."""


def read_columns(path: str, columns: Sequence[str], malformed: Malformed, hint: str = "") -> Iterator[Any]:
    """Yields record batches of the named columns, in file order; memory does not grow with the file.

    CSV cells come as text, because files disagree on types within a column; Parquet cells come as they are stored.
    A CSV may be compressed (.gz, .bz2, .zst).

    Args:
        path: the file; `~` is the home folder.
        columns: the columns to read; one named twice comes once.
        malformed: called for each row of a CSV with a wrong number of fields, which is then left out.
        hint: added to the error when there is no such file.

    Raises:
        TraceError: no such file, no such column, or not a file of its kind.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise TraceError(f"{path}: no such file{'; ' if hint else ''}{hint}")
    read = _read_parquet if file.suffix.lower() in PARQUET_SUFFIXES else _read_csv
    try:
        yield from read(file, list(dict.fromkeys(columns)), malformed)
    except (pa.ArrowInvalid, OSError) as error:
        raise TraceError(f"{path}: {str(error).splitlines()[0]}") from error


def _read_parquet(file: Path, columns: list[str], malformed: Malformed) -> Iterator[Any]:
    with pq.ParquetFile(file) as parquet:
        _check_columns(file, columns, parquet.schema_arrow.names)
        yield from parquet.iter_batches(PARQUET_ROWS, columns=columns, use_threads=False)


def _read_csv(file: Path, columns: list[str], malformed: Malformed) -> Iterator[Any]:
    bad_rows: list[tuple[int | None, str]] = []

    def skip(row: Any) -> str:  # called while Arrow parses; what it raises would be lost, hence the list
        bad_rows.append((None if row.number is None else row.number - 1, row.text))
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


_LENIENT = pa_csv.ParseOptions(invalid_row_handler=lambda row: "skip")


def _check_columns(file: Path, wanted: Sequence[str], found: Sequence[str]) -> None:
    for name in wanted:
        if name not in found:
            near = get_close_matches(name, found, n=1)
            guess = f"; did you mean '{near[0]}'?" if near else ""
            raise TraceError(f"{file}: no column '{name}'{guess}; found: {', '.join(found)}")


def read_lengths(path: str, column: str) -> NDArray[np.int64]:
    """Returns a column of lengths in tokens, all of it.

    Raises:
        TraceError: as `read_columns`, and for a cell that is no whole number of at least 1.
    """

    def refuse(row: int | None, text: str) -> None:
        raise TraceError(f"{path}: row {row}: the number of fields differs from the header's: '{text}'")

    pieces: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    num_rows = 0
    for batch in read_columns(path, [column], refuse):
        lengths = whole_numbers(batch.column(0))
        bad = np.flatnonzero(lengths < 1)
        if len(bad):
            given = batch.column(0)[int(bad[0])].as_py()
            raise TraceError(f"{path}: row {num_rows + bad[0] + 1}: {column} is {given!r}; a length is at least 1 token")
        pieces.append(lengths)
        num_rows += len(lengths)
    if num_rows == 0:
        raise TraceError(f"{path}: no rows")
    return np.concatenate(pieces)
