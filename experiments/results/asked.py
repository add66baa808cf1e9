"""What requests ask for, kept from when they are let in until they are written: it makes requests.parquet traffic again."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from experiments.results import arrow
from experiments.results.tables import Column
from traces.packing import packed
from traces.traffic import Arrivals, Traffic, TrafficStream

TOKENS = Column("num_asked_tokens", pa.int32(), "output tokens it would get if nothing refused or cut it", False)
SEGMENTS = (
    Column("segment_ids", pa.list_(pa.int64()), "streams of tokens that its prompt and then its answer are made of", False),
    Column("segment_tokens", pa.list_(pa.int32()), "tokens of each; what is beyond them is its own", False),
)


class Asked:
    """The requests on their way through the fleet, first come, first written; memory holds those alone.

    Where requests follow others, nothing is kept: they come in another order, and at instants that the fleet made. Replayed,
    they would be another client's.
    """

    def __init__(self, traffic: Traffic) -> None:
        self.columns = (TOKENS, *(SEGMENTS if traffic.shares_tokens else ())) if traffic.max_follows == 0 else ()
        self.keeps_sample = False
        """Whether the file shall hold the traffic's sample: a replay counts the same capacity only by the same requests."""
        self._traffic = traffic
        self._queues: list[_Queue] = [_Queue() for _ in range(4)]  # asked tokens; segments, their contents and lengths

    def noting(self, stream: TrafficStream) -> Iterator[Arrivals]:
        """Yields the stream's chunks, and keeps what they ask for."""
        for rows in stream.chunks():
            if not self.columns:
                yield rows
                continue
            kept = [rows["num_output_tokens"].astype(np.int32)]
            if len(self.columns) > 1:
                segments = stream.segments_of(rows)
                kept += [rows["num_segments"].copy(), segments["content"].copy(), segments["num_tokens"].astype(np.int32)]
            for queue, values in zip(self._queues, kept, strict=False):
                queue.put(values)
            yield rows

    def take(self, num_requests: int) -> dict[str, Any]:
        """Returns the columns of the next requests, in the order in which they came; none where nothing is kept."""
        if not self.columns:
            return {}
        tokens, counts, *flat = self._queues
        taken: dict[str, Any] = {TOKENS.name: tokens.take(num_requests)}
        if len(self.columns) > 1:
            ends = np.cumsum(np.concatenate([[0], counts.take(num_requests)]))
            for column, queue in zip(SEGMENTS, flat, strict=True):
                values = arrow.numbers(column.type.value_type, queue.take(int(ends[-1])))
                taken[column.name] = pa.ListArray.from_arrays(arrow.numbers(pa.int32(), ends), values, type=column.type)
        return taken

    def facts(self) -> Mapping[str, Any]:
        """Returns what is known of the traffic beyond its requests, as plain data."""
        traffic = self._traffic
        return {
            "class_names": list(traffic.class_names),
            "ends_at_s": traffic.ends_at_s if traffic.limit is None else None,  # else it ends with its last request
            "mean_prompt_tokens": traffic.mean_prompt_tokens,
            "mean_output_tokens": traffic.mean_output_tokens,
            **({"sample": packed(traffic.sample())} if self.keeps_sample else {}),
        }


class _Queue:
    """Values in arrays of any length, first in, first out."""

    def __init__(self) -> None:
        self._pieces: deque[NDArray[Any]] = deque()

    def put(self, values: NDArray[Any]) -> None:
        if len(values):
            self._pieces.append(values)

    def take(self, num: int) -> NDArray[Any]:
        taken = []
        while num > 0:
            piece = self._pieces.popleft()
            if len(piece) > num:
                self._pieces.appendleft(piece[num:])
                piece = piece[:num]
            taken.append(piece)
            num -= len(piece)
        return np.concatenate(taken) if taken else np.empty(0, np.int64)
