"""What every kind of traffic offers: a seeded stream of arrivals, and what is known of it before it runs."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sim.errors import TraceError
from sim.limits import MAX_CLASSES, MAX_REQUESTS, MAX_RUN_S, MAX_TOKENS
from sim.params import Params
from sim.records import ARRIVAL
from traces.segments import Segments

Arrivals = NDArray[Any]
"""Rows of `sim.records.ARRIVAL`, sorted by `arrived_at_s`."""

CHUNK_ROWS = 131_072
"""Arrivals made at a time: large enough for NumPy, small enough for a core's cache. No result depends on it."""

SAMPLE_ROWS = 1 << 16
"""Most requests of a sample: means over it are known to about half a per cent."""


ALL_PREFIX = "prompts_all_prefix"
"""Counts requests whose prompt is nothing but a prefix that others have too."""


def remarks(counts: Counter[str]) -> list[str]:
    """Returns what one pass over traffic left out, changed or found odd, a line each.

    >>> remarks(Counter(read=9, kept=7, dropped_zero_tokens=2, prompts_all_prefix=7))
    ['2 rows dropped zero tokens', '7 prompts are all prefix: nothing is left that a cache could miss but their last token']
    """
    changed = {name: num for name, num in counts.items() if num and name.startswith(("dropped", "clipped"))}
    lines = [f"{num:,} rows {name.replace('_', ' ')}" for name, num in changed.items()]
    if counts[ALL_PREFIX]:
        why = "nothing is left that a cache could miss but their last token"
        lines.append(f"{counts[ALL_PREFIX]:,} prompts are all prefix: {why}")
    return lines


def count(counts: Counter[str], reason: str, num_rows: int) -> None:
    """Adds to a reason's count, which appears once there is something to count."""
    if num_rows:
        counts[reason] += num_rows


_ALLOWED = {
    "arrived_at_s": (0.0, MAX_RUN_S),
    "num_prompt_tokens": (1, MAX_TOKENS),
    "num_output_tokens": (1, MAX_TOKENS),
    "class_id": (0, MAX_CLASSES - 1),
    "delay_s": (0.0, MAX_RUN_S),
    "session": (0, MAX_REQUESTS),
}


def check_rows(rows: Arrivals, num_before: int, last_s: float, num_classes: int, max_follows: int = 0) -> None:
    """Refuses arrivals that a run cannot hold: the last door, for kinds whose own have let them pass.

    Args:
        rows: (n,) what the kind yields.
        num_before: rows it has yielded before.
        last_s: when the last of these arrives.
        num_classes: that it has names for.
        max_follows: most rows from a request to one that follows it, as the kind declares.

    Raises:
        TraceError: which request, what it has, and what is allowed.
    """
    if getattr(rows, "dtype", None) != ARRIVAL:
        given = f"{type(rows).__name__} of {getattr(rows, 'dtype', 'no dtype')}"
        raise TraceError(f"traffic: arrivals must be rows of sim.records.ARRIVAL, given {given}")
    if num_before + len(rows) > MAX_REQUESTS:
        raise TraceError(f"traffic: more than {MAX_REQUESTS:,} requests; `limit` stops before")
    for name, (least, most) in _ALLOWED.items():
        values = rows[name]
        if not (values.min() >= least and values.max() <= most):  # NaN is neither
            i = int(np.argmin((values >= least) & (values <= most)))
            raise TraceError(f"traffic: request {num_before + i}: {name} is {values[i]:,}; allowed: {least:,} to {most:,}")
    if rows["class_id"].max() >= num_classes:
        i = int(np.argmax(rows["class_id"] >= num_classes))
        raise TraceError(
            f"traffic: request {num_before + i}: class_id is {rows['class_id'][i]}; allowed: 0 to {num_classes - 1}, as "
            "class_names has names"
        )
    furthest = np.minimum(max_follows, np.arange(num_before, num_before + len(rows)))
    is_wrong = (rows["follows"] < 0) | (rows["follows"] > furthest)
    if is_wrong.any():
        i = int(np.argmax(is_wrong))
        raise TraceError(
            f"traffic: request {num_before + i}: follows is {rows['follows'][i]:,}; allowed: 0 to {furthest[i]:,}, the number "
            "of requests before it and no more than max_follows"
        )
    at_s = rows["arrived_at_s"]
    if at_s[0] < last_s or (at_s[1:] < at_s[:-1]).any():
        i = int(np.argmax(np.diff(at_s, prepend=last_s) < 0))
        raise TraceError(f"traffic: request {num_before + i}: arrived_at_s is {at_s[i]:,.9g}, before an earlier request's")


@dataclass(frozen=True)
class TrafficStream:
    """One pass over the arrivals of one seed.

    `counts` fills up as the chunks are taken. When they are used up,
    `read + copied = kept + every dropped_<reason>`; a `clipped_<reason>` counts rows that were changed and kept.
    """

    arrivals: Iterator[Arrivals]
    counts: Counter[str]
    segments: Segments = field(default_factory=Segments)

    def chunks(self) -> Iterator[Arrivals]:
        """Yields ARRIVAL rows, sorted, at most a chunk at a time; can be taken once."""
        return self.arrivals

    def segments_of(self, rows: Arrivals) -> NDArray[Any]:
        """Returns the segments of `rows`, all or some of the chunk last taken: one row's after the other.

        Rows that share no token with anybody have none, nor has traffic that knows nothing of its tokens.

        Returns:
            (s,) SEGMENT records, where s is the sum of `num_segments` over the rows.

        Raises:
            LookupError: the rows are of an earlier chunk, and their segments are forgotten.
        """
        return self.segments.of(rows)


class Traffic(Params):
    """Who arrives when, with how many prompt and output tokens; a new kind fills in the abstract members.

    Times count from 0. The same seed gives the same arrivals in any process, whatever the size of the chunks. Arrivals are when
    requests are there to be sent; how long `max_concurrency` holds them back is known only while the fleet runs. So is when a
    request arrives that follows another (`sim.records.ARRIVAL`), as the next turn of a conversation does.
    """

    limit: int | None = Field(default=None, ge=1, le=MAX_REQUESTS, description="Stop after this many requests; null takes all.")
    max_concurrency: int | None = Field(
        default=None,
        ge=1,
        le=MAX_REQUESTS,
        description="Requests that the client has in flight at most, as load generators limit them: one that is due while so "
        "many are is held back, and sent when one ends, those held longest first. It arrives when it is sent, and its TTFT "
        "counts from there. null = no limit.",
    )

    @abstractmethod
    def arrivals(self, seed: int, counts: Counter[str], segments: Segments, chunk_rows: int) -> Iterator[Arrivals]:
        """Yields sorted arrivals in chunks of any size, and counts what it reads and drops. `stream` cuts at the limit.

        What it knows of their tokens goes into `segments` before the rows that point to it.
        """

    @abstractmethod
    def mean_rate_per_s(self, start_s: float, end_s: float) -> float:
        """Returns the expected mean arrival rate over [start_s, end_s), in requests/s, `limit` aside.

        Generated traffic knows it exactly, before any noise is drawn; recorded traffic counts its file. Only a policy
        that declares itself an oracle may be shown it.
        """

    @property
    @abstractmethod
    def ends_at_s(self) -> float:
        """The instant after which nothing arrives; `limit` can end it earlier."""

    @property
    @abstractmethod
    def mean_prompt_tokens(self) -> float:
        """Expected prompt tokens of a request, caps included."""

    @property
    @abstractmethod
    def mean_output_tokens(self) -> float:
        """Expected output tokens of a request, caps included."""

    def sample(self) -> Arrivals:
        """Returns up to SAMPLE_ROWS rows, always the same, whose classes and lengths stand for those of all requests.

        What an engine serves of them, and at which lengths, is what its capacity is counted for. Unless a kind knows better,
        these are the first requests of seed 0.
        """
        rows = next(self.stream(seed=0, chunk_rows=SAMPLE_ROWS).chunks(), None)
        if rows is None:
            raise TraceError("traffic: it has no request")
        return rows

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the request classes; a row's `class_id` is an index into it."""
        return ("default",)

    @property
    def shares_tokens(self) -> bool:
        """Whether requests say which tokens they share, so that a prefix cache has something to find."""
        return False

    @property
    def max_follows(self) -> int:
        """Most rows from a request to one that follows it, for which the fleet remembers its end; 0 = none follows another."""
        return 0

    def stream(self, seed: int, chunk_rows: int = CHUNK_ROWS) -> TrafficStream:
        """Returns one pass over the arrivals of this seed."""
        counts: Counter[str] = Counter(read=0, kept=0)
        segments = Segments()
        arrivals = self.arrivals(seed, counts, segments, chunk_rows)
        return TrafficStream(self._cut(arrivals, counts, segments, chunk_rows), counts, segments)

    def _cut(self, chunks: Iterator[Arrivals], counts: Counter[str], segments: Segments, chunk_rows: int) -> Iterator[Arrivals]:
        last_s = 0.0
        for rows in chunks:
            room = len(rows) if self.limit is None else self.limit - counts["kept"]
            if len(rows) > room:
                count(counts, "dropped_over_limit", len(rows) - room)
                rows = rows[:room]
            for first in range(0, len(rows), chunk_rows):
                piece = rows[first : first + chunk_rows]
                check_rows(piece, counts["kept"], last_s, len(self.class_names), self.max_follows)
                last_s = float(piece["arrived_at_s"][-1])
                counts["kept"] += len(piece)
                segments.forget_before(int(piece["first_segment"][0]))
                yield piece
            if counts["kept"] == self.limit:
                return

    @property
    def notes(self) -> list[str]:
        """What was guessed of the traffic, and what is odd about it, in sentences for a person."""
        return []

    def describe(self) -> str:
        """Returns one line for a person: how many requests are expected, over how long, and how large.

        >>> from traces import KINDS
        >>> lengths = {"prompt": {"kind": "fixed", "tokens": 2000}, "output": {"kind": "fixed", "tokens": 400}}
        >>> KINDS["poisson"](rate_per_s=50, duration_s=3600, lengths=lengths).describe()
        '180,000 requests expected over 3,600 s (50 requests/s), of 2,000 prompt and 400 output tokens on average'
        """
        rate_per_s = self.mean_rate_per_s(0.0, self.ends_at_s) if self.ends_at_s > 0 else 0.0
        num_requests = round(rate_per_s * self.ends_at_s)
        limit = "" if self.limit is None else f", cut after {self.limit:,}"
        return (
            f"{num_requests:,} requests expected over {self.ends_at_s:,.6g} s ({rate_per_s:.4g} requests/s){limit}"
            f"{self._in_flight}, of {self._size}"
        )

    @property
    def _in_flight(self) -> str:
        return "" if self.max_concurrency is None else f", at most {self.max_concurrency:,} in flight"

    @property
    def _size(self) -> str:
        return f"{self.mean_prompt_tokens:,.0f} prompt and {self.mean_output_tokens:,.0f} output tokens on average"
