"""A closed loop: so many requests in flight, and the next is sent when one ends."""

from collections import Counter
from collections.abc import Iterator
from typing import Self

import numpy as np
from pydantic import model_validator

from sim.records import ARRIVAL
from traces.drawn import Drawn
from traces.segments import Segments
from traces.traffic import Arrivals


class Concurrent(Drawn):
    """All requests are there from the start, and `max_concurrency` of them are in flight: a closed loop without think time.

    What load generators send at an infinite rate. `limit` says how many there are; without `max_concurrency` all are sent at
    once. It has no rate of its own: how fast it goes is up to the fleet.
    """

    @model_validator(mode="after")
    def _has_a_number(self) -> Self:
        if self.limit is None:
            raise ValueError("give `limit`, the number of requests")
        return self

    @property
    def num_requests(self) -> int:
        """How many there are."""
        assert self.limit is not None, "the validator has seen to it"
        return self.limit

    def arrivals(self, seed: int, counts: Counter[str], segments: Segments, chunk_rows: int) -> Iterator[Arrivals]:
        """Yields the requests of this seed in chunks, all at 0."""
        draw = self.drawing(seed, segments, counts)
        while counts["read"] < self.num_requests:
            rows = np.zeros(min(chunk_rows, self.num_requests - counts["read"]), ARRIVAL)
            draw(rows)
            counts["read"] += len(rows)
            yield rows

    def mean_rate_per_s(self, start_s: float, end_s: float) -> float:
        """Returns the mean rate at which requests are there to be sent over [start_s, end_s): all of them are at 0."""
        return self.num_requests / (end_s - start_s) if start_s <= 0 < end_s else 0.0

    @property
    def ends_at_s(self) -> float:
        """0: after that none comes that was not there."""
        return 0.0

    def describe(self) -> str:
        """Returns one line for a person: how many requests, how many at a time, and how large.

        >>> lengths = {"prompt": {"kind": "fixed", "tokens": 2000}, "output": {"kind": "fixed", "tokens": 400}}
        >>> Concurrent(limit=1000, max_concurrency=64, lengths=lengths).describe()
        '1,000 requests, at most 64 in flight, of 2,000 prompt and 400 output tokens on average'
        """
        return f"{self.num_requests:,} requests{self._in_flight}, of {self._size}"
