"""Any table of requests."""

from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from sim.params import Params
from sim.records import SEGMENT
from traces.arrays import Integers, Mask
from traces.cells import MISSING, whole_numbers
from traces.ids import ids
from traces.packing import unpacked
from traces.recorded import Columns, Recorded
from traces.replay import ASKED, SEGMENTS, Facts, facts_of, written_content
from traces.segments import Content, named
from traces.shown import shown
from traces.traffic import Arrivals

_OWN_CLASS = "class"
"""The column of classes of a run's own requests.parquet."""


class ColumnMap(Params):
    """The names that a file gives to what a request needs."""

    arrived_at: str = Field(default="arrived_at_s", description="Column of the arrival instants.")
    num_prompt_tokens: str = Field(default="num_prompt_tokens", description="Column of the prompt lengths, in tokens.")
    num_output_tokens: str = Field(default="num_output_tokens", description="Column of the output lengths, in tokens.")
    class_name: str | None = Field(default=None, description="Column of the request's class; null: one class.")
    prefix_id: str | None = Field(
        default=None,
        description="Column that names what the prompt begins with, such as a system prompt: a whole number of up to 64 bits "
        "or text. Prompts share it with all that name the same; an empty cell is a prompt without. null: no column.",
    )
    num_prefix_tokens: str | None = Field(
        default=None, description="Column of how long that is, in tokens, at most the prompt; needed with `prefix_id`."
    )
    session_id: str | None = Field(
        default=None,
        description="Column that names the conversation: a whole number of up to 64 bits or text. What follows the prefix is "
        "the conversation so far, so that a turn shares all of an earlier one, its answer included, as far as the shorter of "
        "the two goes. An empty cell is a request on its own. null: no column.",
    )

    @model_validator(mode="after")
    def _prefix_has_length(self) -> Self:
        if (self.prefix_id is None) != (self.num_prefix_tokens is None):
            raise ValueError("prefix_id and num_prefix_tokens go together")
        return self


class Table(Recorded):
    """Replays any CSV, Parquet or JSON-lines file that has a row for each request.

    A run's own requests.parquet is known as such, and asks again exactly what was asked of that run, at the instants at which
    it was sent: refused and cut requests in full, with their classes and the tokens that they share. `columns` and `time_unit`
    may be left out.
    """

    columns: ColumnMap = Field(default_factory=ColumnMap, description="Which column holds what.")
    time_unit: Literal["s", "ms", "us", "ns", "iso8601"] | None = Field(
        default=None,
        description="Unit of the arrival instants, needed but for a run's own requests.parquet; iso8601 for dates such as "
        "2024-05-10 00:00:00.25+00:00 (without a zone: UTC). Only differences count, except in a run's own requests.parquet: "
        "instants may start anywhere.",
    )

    @model_validator(mode="after")
    def _has_unit(self) -> Self:
        if self._facts is not None and self.time_unit not in (None, "s"):
            raise ValueError(f"time_unit is {self.time_unit}; a run's own requests.parquet counts in s")
        if self._facts is None and self.time_unit is None and Path(self.path).expanduser().is_file():
            raise ValueError("time_unit: missing; one of s, ms, us, ns, iso8601")
        return self

    @cached_property
    def _facts(self) -> Facts | None:
        """What is known of a run's own requests.parquet; None for another file, and where `columns` asks for other columns."""
        plain, given = ColumnMap(), self.columns
        asks_for_others = (plain.arrived_at, plain.num_prompt_tokens, plain.num_output_tokens) != (
            given.arrived_at,
            given.num_prompt_tokens,
            given.num_output_tokens,
        )
        return None if asks_for_others else facts_of(self.path)

    @property
    def keeps_time_zero(self) -> bool:
        """Whether the file's instants count from the start of a run, in seconds."""
        return self._facts is not None

    @property
    def known_classes(self) -> tuple[str, ...]:
        """Classes that are known before the file is read, by number."""
        return self._facts.class_names if self._facts is not None and self.layout.class_name == _OWN_CLASS else ()

    @property
    def _is_all(self) -> bool:
        """Whether a run's requests are all asked again."""
        is_cut = self.start_s > 0 or self.end_s is not None or self.limit is not None or self.rate_scale != 1
        return self._facts is not None and self._facts.is_whole and not is_cut

    @property
    def ends_at_s(self) -> float:
        """The instant after which nothing arrives: of all of a run's requests, the end of that run's traffic."""
        known_s = self._facts.ends_at_s if self._facts is not None and self._is_all else None
        return max(super().ends_at_s, (known_s or 0.0) * self.time_scale)

    @property
    def mean_prompt_tokens(self) -> float:
        """Mean prompt tokens of the file's requests; of all of a run's requests, what that run expected."""
        known = self._facts.mean_prompt_tokens if self._facts is not None and self._is_all else None
        return super().mean_prompt_tokens if known is None else known

    @property
    def mean_output_tokens(self) -> float:
        """Mean output tokens of the file's requests; of all of a run's requests, what that run expected."""
        known = self._facts.mean_output_tokens if self._facts is not None and self._is_all else None
        return super().mean_output_tokens if known is None else known

    def sample(self) -> Arrivals:
        """Returns requests of the file; of all of a run's requests, those that run counted its capacity by, if it kept them."""
        known = self._facts.sample if self._facts is not None and self._is_all else None
        return super().sample() if known is None else unpacked(known)

    @property
    def layout(self) -> Columns:
        """The columns as configured."""
        columns = self.columns
        own = (columns.prefix_id, columns.num_prefix_tokens, columns.session_id)
        content = tuple(name for name in own if name is not None)
        if self._facts is not None:
            content = content or (SEGMENTS if self._facts.has_segments else ())
            return Columns(columns.arrived_at, columns.num_prompt_tokens, ASKED, columns.class_name or _OWN_CLASS, "s", content)
        return Columns(
            columns.arrived_at,
            columns.num_prompt_tokens,
            columns.num_output_tokens,
            columns.class_name,
            self.time_unit or "s",
            content,
        )

    def content(self, batch: Any, rows: NDArray[Any]) -> Content | None:
        """Returns the rows' prefixes and conversations, if the file has columns of them."""
        if not self.layout.content:
            return None
        if self.layout.content == SEGMENTS:
            return written_content(batch, rows["num_prompt_tokens"] + rows["num_output_tokens"])
        prompt_tokens = np.maximum(rows["num_prompt_tokens"], 1)
        output_tokens = np.maximum(rows["num_output_tokens"], 1)
        prefix_ids, given, has_prefix = self._prefixes(batch, len(rows))
        session_ids, has_session = self._sessions(batch, len(rows))
        is_unreadable = has_prefix & (given == MISSING)
        prefix_tokens = np.where(has_prefix, np.clip(given, 0, prompt_tokens), 0)
        session_tokens = np.where(has_session, prompt_tokens + output_tokens - prefix_tokens, 0)
        segments = np.empty((len(rows), 2), SEGMENT)
        segments["content"] = np.stack([named("prefix", prefix_ids), named("session", session_ids)], axis=1)
        segments["num_tokens"] = np.stack([prefix_tokens, session_tokens], axis=1)
        is_there = segments["num_tokens"] > 0

        def explain(i: int) -> str:
            column = self.columns.num_prefix_tokens
            if is_unreadable[i]:
                return f"{column} is {shown(batch.column(column)[i].as_py())}; allowed: a whole number"
            return f"{column} is {given[i]}; allowed: 0 to {rows['num_prompt_tokens'][i]}, the prompt's tokens"

        return Content(
            segments[is_there],
            is_there.sum(axis=1),
            np.broadcast_to([False, True], is_there.shape)[is_there],  # a prefix is everybody's
            is_unreadable,
            has_prefix & (given != prefix_tokens),
            explain,
            int(np.count_nonzero(has_prefix & (given == rows["num_prompt_tokens"]))),
        )

    def _prefixes(self, batch: Any, num_rows: int) -> tuple[Integers, Integers, Mask]:
        """Ids and lengths as the file has them, and where there is one; each (num_rows,)."""
        if self.columns.prefix_id is None:
            return np.zeros(num_rows, np.int64), np.zeros(num_rows, np.int64), np.zeros(num_rows, np.bool_)
        prefix_ids, has_prefix = ids(batch.column(self.columns.prefix_id))
        return prefix_ids, whole_numbers(batch.column(self.columns.num_prefix_tokens)), has_prefix

    def _sessions(self, batch: Any, num_rows: int) -> tuple[Integers, Mask]:
        """Ids, and where there is one; each (num_rows,)."""
        if self.columns.session_id is None:
            return np.zeros(num_rows, np.int64), np.zeros(num_rows, np.bool_)
        return ids(batch.column(self.columns.session_id))
