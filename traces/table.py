"""Any table of requests."""

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from sim.params import Params
from sim.records import SEGMENT
from traces.cells import MISSING, Integers, Mask, whole_numbers
from traces.ids import ids
from traces.recorded import Columns, Recorded
from traces.segments import Content, named
from traces.shown import shown


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
    """Replays any CSV, Parquet or JSON-lines file that has a row for each request; a run's own requests.parquet is one."""

    columns: ColumnMap = Field(default_factory=ColumnMap, description="Which column holds what.")
    time_unit: Literal["s", "ms", "us", "ns", "iso8601"] = Field(
        description="Unit of the arrival instants; iso8601 for dates such as 2024-05-10 00:00:00.25+00:00 (without a "
        "zone: UTC). Only differences count: instants may start anywhere."
    )

    @property
    def layout(self) -> Columns:
        """The columns as configured."""
        columns = self.columns
        content = (columns.prefix_id, columns.num_prefix_tokens, columns.session_id)
        return Columns(
            columns.arrived_at,
            columns.num_prompt_tokens,
            columns.num_output_tokens,
            columns.class_name,
            self.time_unit,
            tuple(name for name in content if name is not None),
        )

    def content(self, batch: Any, rows: NDArray[Any]) -> Content | None:
        """Returns the rows' prefixes and conversations, if the file has columns of them."""
        if not self.layout.content:
            return None
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
