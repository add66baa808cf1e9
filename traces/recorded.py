"""Traffic replayed from a file: read in chunks, checked row by row, stretched, thickened or cut on request."""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from sim.errors import TraceError
from sim.limits import MAX_RUN_S
from sim.records import ARRIVAL
from traces.bad_rows import RECORDED, Policy, RowCheck
from traces.cells import floats, instants_ns, whole_numbers
from traces.files import read_columns
from traces.labels import Labels
from traces.repeat import repeat
from traces.segments import Content, Segments, for_copies
from traces.survey import Survey, survey
from traces.traffic import ALL_PREFIX, CHUNK_ROWS, Arrivals, Traffic, count


class Columns(NamedTuple):
    """Where a file keeps what."""

    arrived_at: str
    num_prompt_tokens: str
    num_output_tokens: str
    class_name: str | None
    time_unit: str
    content: tuple[str, ...] = ()  # what `Recorded.content` reads


class Recorded(Traffic):
    """The requests of a file, at their own times; time 0 is its first request (of a run's own requests.parquet the start of
    that run), or `start_s` after that.

    In this order: bad rows, the window, `time_scale`, `rate_scale`, `limit`; rows after the limit are not read. Memory
    does not grow with the file, except to sort it.
    """

    where_to_get: ClassVar[str] = ""

    path: str = Field(min_length=1, description="The file: CSV or JSON lines, also compressed (.gz, .bz2, .zst), or Parquet.")
    start_s: float = Field(default=0.0, ge=0, description="Skip this many seconds of the file; this becomes time 0.")
    end_s: float | None = Field(default=None, gt=0, description="Stop this many seconds into the file; null: its end.")
    time_scale: float = Field(
        default=1.0, gt=0, description="Multiplies times: 0.1 plays the file in a tenth of its time, at ten times the rate."
    )
    rate_scale: float = Field(
        default=1.0,
        gt=0,
        le=1e6,
        description="Multiplies the requests and leaves the times: 0.1 keeps one in ten, 2.5 repeats each "
        "two or three times, the copies spread up to the next request of the file. Thinning also takes from the caches "
        "what the others would have left there.",
    )
    copies: Literal["new", "same"] = Field(
        default="new",
        description="What the copies of `rate_scale` ask, if the file says which tokens are shared. new: the like of their "
        "originals, as other users would, sharing among themselves what the originals share, so that hit rates stay about "
        "those of the trace. same: the very same again, so that every copy finds its prompt in a cache.",
    )
    bad_rows: Policy = Field(
        default="error",
        description="Rows that cannot be a request, or go back in time: stop and name the row, drop and count, "
        "or clip (to 1 token, to what fits the prompt, to the time of the row before) and count.",
    )
    sort_rows: bool = Field(default=False, description="Sort the file by time first; holds all its rows in memory.")

    @model_validator(mode="after")
    def _window_is_open(self) -> Self:
        if self.end_s is not None and self.end_s <= self.start_s:
            raise ValueError(f"end_s {self.end_s:g} is not after start_s {self.start_s:g}")
        return self

    @property
    @abstractmethod
    def layout(self) -> Columns:
        """Which columns hold the instants, the lengths and the class."""

    @property
    def keeps_time_zero(self) -> bool:
        """Whether the file's instants count from the start of a run, in seconds."""
        return False

    @property
    def known_classes(self) -> tuple[str, ...]:
        """Classes that are known before the file is read, by number."""
        return ()

    def content(self, batch: Any, rows: NDArray[Any]) -> Content | None:
        """Returns what a batch of the file says of its rows' tokens; None: nothing.

        Args:
            batch: the Arrow batch, with the columns of `layout`.
            rows: RECORDED rows, shape (n,), not yet checked.
        """
        return None

    def arrivals(self, seed: int, counts: Counter[str], segments: Segments, chunk_rows: int) -> Iterator[Arrivals]:
        """Yields the arrivals of the file, with `time_scale` and `rate_scale` applied."""
        rows_of_file = self._window(counts, Labels(self.path, self.known_classes), segments)
        own = self._times_segments > 1
        for rows in repeat(rows_of_file, self.rate_scale, seed, counts, copies_have_segments=own):
            rows["arrived_at_s"] *= self.time_scale
            yield rows

    @property
    def _times_segments(self) -> int:
        """How often each request's segments are stored: once for it, and once for each copy that asks something new."""
        return math.ceil(self.rate_scale) if self.layout.content and self.copies == "new" else 1

    def _window(self, counts: Counter[str], labels: Labels, segments: Segments) -> Iterator[Arrivals]:
        """Yields the arrivals between `start_s` and `end_s`, in seconds of the file after `start_s`."""
        origin_ns: int | None = None
        num_kept, last_s = 0, 0.0
        for recorded in self._checked(counts, labels, segments):
            if len(recorded) == 0:
                continue
            if origin_ns is None:
                origin_ns = 0 if self.keeps_time_zero else int(recorded["at_ns"][0])
            self._check_span(origin_ns, int(recorded["at_ns"][-1]))
            # Whole nanoseconds are subtracted before they become floats: an epoch stamp would lose its last digits.
            at_s = recorded["at_s"] if self.keeps_time_zero else (recorded["at_ns"] - origin_ns) / 1e9
            last_s = float(at_s[-1])
            inside = slice(*np.searchsorted(at_s, [self.start_s, np.inf if self.end_s is None else self.end_s]))
            if num_kept == 0:
                segments.forget_before(int(recorded["first_segment"][min(inside.start, len(recorded) - 1)]))
            if inside.stop < len(recorded):
                segments.is_open = False
            rows = np.zeros(len(at_s[inside]), ARRIVAL)
            rows["arrived_at_s"] = at_s[inside] - self.start_s
            for field in ("num_prompt_tokens", "num_output_tokens", "class_id", "first_segment", "num_segments"):
                rows[field] = recorded[field][inside]
            count(counts, "dropped_outside_window", len(recorded) - len(rows))
            num_kept += len(rows)
            yield rows
        if num_kept == 0:
            raise TraceError(
                f"{self.path}: no request is left between start_s {self.start_s:g} and end_s {self.end_s}; "
                f"read {counts['read']:,} rows over {last_s:.6g} s"
            )

    def _check_span(self, first_ns: int, last_ns: int) -> None:
        span_s = (last_ns - first_ns) / 1e9
        if span_s > MAX_RUN_S:
            raise TraceError(
                f"{self.path}: {self.layout.arrived_at} goes over {span_s:,.6g} s; at most {MAX_RUN_S:,.6g} s (ten years) are "
                "replayed: is the time unit right?"
            )

    def _checked(self, counts: Counter[str], labels: Labels, segments: Segments) -> Iterator[NDArray[Any]]:
        """Yields RECORDED rows that can be requests, sorted by time."""
        layout = self.layout
        names = (layout.arrived_at, layout.num_prompt_tokens, layout.num_output_tokens)
        check = RowCheck(self.path, names, self.bad_rows, counts, check_order=not self.sort_rows)
        columns = [*names, *([layout.class_name] if layout.class_name else []), *layout.content]
        batches = read_columns(self.path, columns, check.malformed, self.where_to_get)
        pieces = _cut(batches, max(1, CHUNK_ROWS // self._times_segments))
        checked = (self._accepted(batch, labels, segments, check) for batch in pieces)
        if not self.sort_rows:
            yield from checked
            return
        segments.keep_all()
        rows = np.concatenate([np.empty(0, RECORDED), *checked])
        rows = rows[np.argsort(rows["at_ns"], kind="stable")]
        check.check_gaps(rows["at_ns"])
        for first in range(0, len(rows), CHUNK_ROWS):
            yield rows[first : first + CHUNK_ROWS]

    def _accepted(self, batch: Any, labels: Labels, segments: Segments, check: RowCheck) -> NDArray[Any]:
        rows = _recorded(batch, self.layout, labels)
        if self.keeps_time_zero:
            rows["at_s"] = floats(batch.column(self.layout.arrived_at))
        content = self.content(batch, rows)
        if content is not None and segments.is_open:
            times = self._times_segments
            stored = for_copies(content, times) if times > 1 else content.segments
            rows["num_segments"] = content.num_segments
            rows["first_segment"] = segments.add(stored, times * content.num_segments)
            count(check.counts, ALL_PREFIX, content.num_all_prefix)
        return check.accept(rows, batch, content)

    @cached_property
    def _surveyed(self) -> tuple[Survey, Labels]:
        labels = Labels(self.path, self.known_classes)
        # Each row yields at least one request unless the trace is thinned, so that the limit bounds the rows needed.
        enough = self.limit if self.limit is not None and self.rate_scale >= 1 else None
        return survey(_first(self._window(Counter(), labels, Segments(is_open=False)), enough)), labels

    def mean_rate_per_s(self, start_s: float, end_s: float) -> float:
        """Returns the mean rate over [start_s, end_s), counted from the file: exact at its whole seconds."""
        if end_s <= start_s:
            return 0.0
        held, _ = self._surveyed
        num_arrived = held.arrived_by(end_s / self.time_scale) - held.arrived_by(start_s / self.time_scale)
        return num_arrived * self.rate_scale / (end_s - start_s)

    @property
    def ends_at_s(self) -> float:
        """The instant after which nothing arrives: the last request of the file, or of the window."""
        return self._surveyed[0].last_at_s * self.time_scale

    @property
    def mean_prompt_tokens(self) -> float:
        """Mean prompt tokens of the file's requests."""
        return self._surveyed[0].mean_prompt_tokens

    @property
    def mean_output_tokens(self) -> float:
        """Mean output tokens of the file's requests."""
        return self._surveyed[0].mean_output_tokens

    def sample(self) -> Arrivals:
        """Returns the file's requests, or so many of them at even spacing; their instants are the file's."""
        return self._surveyed[0].sample

    @property
    def shares_tokens(self) -> bool:
        """Whether the file has columns that say so."""
        return bool(self.layout.content)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes of the file, in order of first appearance."""
        return ("default",) if self.layout.class_name is None else self._surveyed[1].names


def _recorded(batch: Any, layout: Columns, labels: Labels) -> NDArray[Any]:
    rows = np.zeros(batch.num_rows, RECORDED)
    rows["at_ns"] = instants_ns(batch.column(layout.arrived_at), layout.time_unit)
    rows["num_prompt_tokens"] = whole_numbers(batch.column(layout.num_prompt_tokens))
    rows["num_output_tokens"] = whole_numbers(batch.column(layout.num_output_tokens))
    if layout.class_name is not None:
        rows["class_id"] = labels.ids(batch.column(layout.class_name))
    return rows


def _cut(batches: Iterator[Any], num_rows: int) -> Iterator[Any]:
    for batch in batches:
        for first in range(0, batch.num_rows, num_rows):
            yield batch.slice(first, num_rows)


def _first(chunks: Iterator[Arrivals], num_rows: int | None) -> Iterator[Arrivals]:
    for rows in chunks:
        yield rows[:num_rows]
        if num_rows is not None:
            num_rows -= len(rows)
            if num_rows <= 0:
                return
