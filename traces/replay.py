"""A run's own requests.parquet as traffic: what it knows beyond a table of requests."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sim.records import SEGMENT
from traces.arrays import Integers, Mask
from traces.cells import MISSING
from traces.files import PARQUET_SUFFIXES
from traces.ids import id_lists
from traces.segments import Content
from traces.shown import shown

ASKED = "num_asked_tokens"
SEGMENTS = ("segment_ids", "segment_tokens")


class Facts(NamedTuple):
    """What a run knew of the traffic that its requests.parquet came from."""

    has_segments: bool
    class_names: tuple[str, ...] = ()  # in the order of their numbers; those that nobody asked for too
    is_whole: bool = False  # the requests are still all there
    ends_at_s: float | None = None  # None: with its last request
    mean_prompt_tokens: float | None = None  # as expected before the run
    mean_output_tokens: float | None = None
    sample: str | None = None  # what stood for all requests, as `traces.packing` makes it


def facts_of(path: str) -> Facts | None:
    """Returns what is known of a run's requests.parquet; None for any other file, and for one that cannot be read."""
    file = Path(path).expanduser()
    if file.suffix.lower() not in PARQUET_SUFFIXES or not file.is_file():
        return None
    try:
        with pq.ParquetFile(file) as parquet:
            names, num_rows = set(parquet.schema_arrow.names), parquet.metadata.num_rows
            known = json.loads((parquet.metadata.metadata or {}).get(b"traffic", b"{}"))
    except (pa.ArrowException, OSError, ValueError):  # said when the rows are read
        return None
    if ASKED not in names:
        return None
    return Facts(
        has_segments=names.issuperset(SEGMENTS),
        class_names=tuple(known.get("class_names", ())),
        is_whole=known.get("num_requests") == num_rows,
        ends_at_s=known.get("ends_at_s"),
        mean_prompt_tokens=known.get("mean_prompt_tokens"),
        mean_output_tokens=known.get("mean_output_tokens"),
        sample=known.get("sample"),
    )


def written_content(batch: Any, num_tokens: Integers) -> Content:
    """Returns the segments of a batch's rows, as the run wrote them.

    Args:
        batch: the Arrow batch, with the columns of SEGMENTS.
        num_tokens: prompt and asked tokens of each row, (n,).
    """
    (contents, num_ids), (lengths, num_lengths) = (id_lists(batch.column(name)) for name in SEGMENTS)
    is_readable = (num_ids == num_lengths) & (num_ids != MISSING)
    counts = np.where(is_readable, num_ids, 0)
    segments = np.empty(int(counts.sum()), SEGMENT)
    segments["content"] = contents[_of_each(is_readable, num_ids)]
    segments["num_tokens"] = lengths[_of_each(is_readable, num_lengths)]
    row = np.repeat(np.arange(len(counts)), counts)
    is_wrong = np.bincount(row, segments["num_tokens"] < 1, len(counts)) > 0
    is_wrong |= np.bincount(row, segments["num_tokens"], len(counts)) > num_tokens

    def explain(i: int) -> str:
        given = [shown(batch.column(name)[i].as_py()) for name in SEGMENTS]
        return (
            f"{SEGMENTS[0]} is {given[0]} and {SEGMENTS[1]} {given[1]}; allowed: lists of equal length, of at least 1 token "
            f"each and {num_tokens[i]:,} (prompt and {ASKED}) together"
        )

    never = np.zeros(len(counts), np.bool_)
    return Content(segments, counts, np.ones(len(segments), np.bool_), ~is_readable | is_wrong, never, explain)


def _of_each(is_taken: Mask, lengths: Integers) -> Mask:
    return np.repeat(is_taken, np.maximum(lengths, 0))
