"""The traces of Mooncake, the serving system behind Kimi, as published."""

from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sim.errors import TraceError
from sim.limits import MAX_TOKENS
from sim.records import SEGMENT
from traces.cells import MISSING, instants_ns
from traces.files import read_columns
from traces.ids import id_lists
from traces.recorded import Columns, Recorded
from traces.segments import Content, named
from traces.shown import shown


class Mooncake(Recorded):
    """Replays prompts of which a trace says what they share: a hash id for every block of tokens.

    JSON lines of `timestamp`, `input_length`, `output_length` and `hash_ids`. Equal ids are equal tokens; the last block
    of a prompt is as long as what is left of it. Output tokens are the request's own, because the trace does not say which
    prompt goes on from which answer. The published stamps come in steps of about 3 s, with many requests at each.

    Source: Qin et al. (2025), Mooncake, FAST '25. Licence Apache-2.0.
    """

    where_to_get: ClassVar[str] = (
        "set traffic.path to where it is; the traces are in https://github.com/kvcache-ai/Mooncake "
        "(folder FAST25-release/traces)"
    )

    time_unit: Literal["s", "ms", "us", "ns"] | None = Field(
        default=None,
        description="Unit of `timestamp`; null: s where the first of them have fractions, as in Alibaba's traces of the same "
        "form, else ms as in Mooncake's. Which it was is said.",
    )
    trace_block_tokens: int = Field(
        default=512,
        ge=1,
        le=MAX_TOKENS,
        description="Tokens that each of `hash_ids` stands for, in the trace. The engine's own block_size is another matter.",
    )

    @property
    def layout(self) -> Columns:
        """The published columns."""
        return Columns("timestamp", "input_length", "output_length", None, self.time_unit or self._guessed_unit, ("hash_ids",))

    @cached_property
    def _guessed_unit(self) -> str:
        try:
            batch = next(read_columns(self.path, ["timestamp"], lambda row, why: None), None)
        except TraceError:  # said when the rows are read
            return "ms"
        if batch is None:
            return "ms"
        at_ns = instants_ns(batch.column(0), "s")
        return "s" if (at_ns[at_ns != MISSING] % 10**9).any() else "ms"

    @property
    def notes(self) -> list[str]:
        """The unit of time, where it was guessed."""
        if self.time_unit is not None:
            return []
        why = "the first have fractions" if self._guessed_unit == "s" else "the first are whole, as in Mooncake's own"
        return [f"timestamps are read as {self._guessed_unit}, because {why}; time_unit states it"]

    def content(self, batch: Any, rows: NDArray[Any]) -> Content:
        """Returns a segment for each of the rows' hash ids, and what does not fit the prompts."""
        block_ids, given = id_lists(batch.column("hash_ids"))
        num_ids = np.maximum(given, 0)
        prompt_tokens = np.maximum(rows["num_prompt_tokens"], 1)
        expected = -(-prompt_tokens // self.trace_block_tokens)
        row = np.repeat(np.arange(len(rows)), num_ids)
        position = np.arange(len(block_ids)) - np.repeat(np.cumsum(num_ids) - num_ids, num_ids)
        is_within = position < expected[row]
        row, position = row[is_within], position[is_within]
        segments = np.empty(len(row), SEGMENT)
        segments["content"] = named("hash_id", block_ids[is_within])
        segments["num_tokens"] = np.minimum(self.trace_block_tokens, prompt_tokens[row] - position * self.trace_block_tokens)

        def explain(i: int) -> str:
            if given[i] == MISSING:
                given_ids = shown(batch.column("hash_ids")[i].as_py())
                return f"hash_ids is {given_ids}; allowed: a list of 64-bit whole numbers or texts"
            return (
                f"hash_ids holds {given[i]}; a prompt of {prompt_tokens[i]} tokens, {self.trace_block_tokens} to a block "
                f"(trace_block_tokens{_fitting(int(prompt_tokens[i]), int(given[i]))}), expects {expected[i]} "
                f"id{'' if expected[i] == 1 else 's'}"
            )

        return Content(
            segments,
            np.minimum(num_ids, expected),
            np.ones(len(segments), np.bool_),
            given == MISSING,
            given != expected,
            explain,
        )


def _fitting(num_tokens: int, num_ids: int) -> str:
    """Names a size of block at which a prompt has this many ids, if there is one.

    >>> _fitting(587, 37), _fitting(20, 2), _fitting(3, 5)
    ('; 16 would fit', '; 16 would fit', '')
    """
    if num_ids < 1:
        return ""
    low = -(-num_tokens // num_ids)
    power = 1 << (low - 1).bit_length()
    fits = [size for size in (power, low) if -(-num_tokens // size) == num_ids]
    return f"; {fits[0]} would fit" if fits else ""
