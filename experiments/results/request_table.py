"""requests.parquet: one row for every request that arrived, in order of arrival, written in row groups as the run goes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from experiments.results import arrow
from experiments.results.tables import Column, schema, without_nan
from sim.records import CLIENT_TIMEOUT, REASON_NAMES, STATUS_NAMES

_NAME = pa.dictionary(pa.int16(), pa.string())  # as many as there are classes, see sim.limits
COLUMNS = (
    Column("id", pa.int64(), "number of the request, in order of arrival", False),
    Column("class", _NAME, "traffic class", False),
    Column("pool", _NAME, "pool that got it; null when no pool did"),
    Column("replica", pa.int32(), "id of its last replica in replicas.parquet"),
    Column("arrived_at_s", pa.float64(), "instant it arrived at the gateway", False),
    Column("routed_at_s", pa.float64(), "instant a router sent it to its last replica"),
    Column("scheduled_at_s", pa.float64(), "instant an engine first scheduled it"),
    Column("first_token_at_s", pa.float64(), "instant of its first token"),
    Column("finished_at_s", pa.float64(), "instant it left the system, however it ended"),
    Column("ttft_s", pa.float64(), "first token - arrival"),
    Column("tpot_s", pa.float64(), "(E2E - TTFT) / (output tokens - 1); null for one-token outputs"),
    Column("e2e_s", pa.float64(), "last token - arrival; null unless finished"),
    Column("queue_s", pa.float64(), "first scheduled - arrival"),
    Column("num_prompt_tokens", pa.int32(), "prompt tokens", False),
    Column("num_output_tokens", pa.int32(), "output tokens delivered", False),
    Column("num_cached_tokens", pa.int32(), "prompt tokens taken from the prefix cache", False),
    Column("num_preemptions", pa.int32(), "times it lost its KV blocks", False),
    Column("status", _NAME, "finished, or how else it ended; in_flight = the run ended first", False),
    Column("reason", _NAME, "why it was rejected or failed; null otherwise"),
)
_NAMES = [column.name for column in COLUMNS if column.type == _NAME]
_WHOLE = [column.name for column in COLUMNS if column.type in (pa.int32(), pa.int64())]
_ASKED = ["num_asked_tokens", "segment_tokens.list.element"]
_REPEATED = "segment_ids.list.element"


class RequestTable:
    """Appends blocks of requests to requests.parquet, each a row group, and reads columns of it again."""

    def __init__(self, path: Path, classes: Sequence[str], pools: Sequence[str], asked: Sequence[Column] = ()) -> None:
        """Opens the file.

        Args:
            path: of the file.
            classes: their names, in the order of their indices.
            pools: the same of the pools.
            asked: columns besides COLUMNS, see experiments.results.asked.
        """
        self._path = path
        self._columns = (*COLUMNS, *asked)
        self._schema = schema(__doc__ or "", self._columns)
        self._words = {
            "class": arrow.words(classes),
            "pool": arrow.words(pools),
            "status": arrow.words(STATUS_NAMES),
            "reason": arrow.words(REASON_NAMES),
        }
        # Random mantissas do not compress: packing the whole numbers saves a fifth, and costs less than writing it would;
        # statistics on every column would double the time.
        self._writer = pq.ParquetWriter(
            path,
            self._schema,
            compression="none",
            use_dictionary=[*_NAMES, _REPEATED],
            column_encoding=dict.fromkeys([*_WHOLE, *_ASKED], "DELTA_BINARY_PACKED"),
            write_statistics=["id", "arrived_at_s"],
        )

    def append(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Writes one row group.

        Args:
            columns: every name of the file's columns -> (n,) values; NaN is null. Names are given as indices, and -1 is null;
                lists as Arrow has them.
        """
        arrays = [self._array(column, columns[column.name]) for column in self._columns]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def close(self, facts: Mapping[str, Any]) -> None:
        """Ends the file with what is known of the whole, as JSON under `traffic` of its metadata."""
        self._writer.add_key_value_metadata({"traffic": json.dumps(without_nan(facts))})
        self._writer.close()

    def read(self, names: Sequence[str]) -> Iterator[dict[str, NDArray[Any]]]:
        """Yields the row groups of a closed file again, as `append` took them."""
        with pq.ParquetFile(self._path, pre_buffer=False) as file:
            for i in range(file.num_row_groups):
                group = file.read_row_group(i, columns=list(names), use_threads=False)
                yield {name: self._values(name, group.column(name)) for name in names}

    def _array(self, column: Column, values: Any) -> pa.Array:
        """Returns a column as Arrow has it; where nobody timed out, its words are those from before clients could give up."""
        if isinstance(values, pa.Array):
            return values
        is_missing = None
        if column.is_optional:
            is_missing = np.isnan(values) if column.type == pa.float64() else values < 0
        if column.type != _NAME:
            return arrow.numbers(column.type, values, is_missing)
        words = self._words[column.name]
        if column.name == "reason":
            words = words[: max(CLIENT_TIMEOUT, int(values.max(initial=0)) + 1)]
        return pa.DictionaryArray.from_arrays(arrow.numbers(pa.int16(), values, is_missing), words)

    def _values(self, name: str, column: pa.ChunkedArray) -> NDArray[Any]:
        array = column.combine_chunks()
        if name in self._words:
            places = {word: place for place, word in enumerate(self._words[name].to_pylist())}
            place = np.array([places[word] for word in array.dictionary.to_pylist()] or [0], dtype=np.int64)
            indices = np.nan_to_num(arrow.values_of(array.indices), nan=-1).astype(np.int64)
            return np.where(indices < 0, -1, place[indices])
        return arrow.values_of(array)
