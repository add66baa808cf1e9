"""What to do with rows that cannot be a request: stop and name the row, drop and count, or clip and count."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.errors import TraceError
from sim.limits import MAX_TOKENS
from traces.arrays import Mask
from traces.cells import MISSING
from traces.segments import Content
from traces.shown import shown
from traces.traffic import count

RECORDED = np.dtype(
    [
        ("at_ns", "i8"),
        ("at_s", "f8"),  # the same, to the last bit, where the file counts seconds from the start of a run
        ("num_prompt_tokens", "i8"),
        ("num_output_tokens", "i8"),
        ("class_id", "i8"),
        ("first_segment", "i8"),
        ("num_segments", "i8"),
    ],
    align=True,
)
"""A row as the file has it; MISSING where a cell is empty or cannot be read."""

FIELDS = ("at_ns", "num_prompt_tokens", "num_output_tokens")

Policy = Literal["error", "drop", "clip"]

LARGEST_GAP_NS = 366 * 86_400 * 1_000_000_000
"""Assumption: no trace rests for over a year. A larger gap means epoch stamps and relative ones in one file."""


class _BadRows(NamedTuple):
    """Masks over a batch's rows, shape (n,)."""

    unreadable: Mask
    zero_tokens: Mask
    too_many_tokens: Mask
    inconsistent: Mask
    unsorted: Mask
    any: Mask
    latest_ns: NDArray[np.int64]  # (n + 1,): the latest instant before each row, and after the last


@dataclass
class RowCheck:
    """Checks a file's rows, batch after batch.

    A row is bad for the first of these reasons that holds: `malformed` (too few or many fields, no JSON object),
    `unreadable` (a cell is empty or no number or date), `too_many_tokens` (more than any request has, see `sim.limits`),
    `zero_tokens` (fewer than one prompt or output token),
    `inconsistent` (what it says of its prompt does not fit the prompt's length), `unsorted` (earlier than a row before it).
    Under `clip`, too few tokens become 1, of its content what fits stays, and too early an instant becomes that of the row
    before; the first three cannot be mended and are dropped. `counts` gets `read`, `dropped_<reason>` and `clipped_<reason>`.
    """

    path: str
    columns: tuple[str, str, str]  # of instant, prompt tokens and output tokens, for messages
    policy: Policy
    counts: Counter[str]
    check_order: bool = True
    latest_ns: int = MISSING

    def malformed(self, row: int | None, why: str) -> None:
        """Takes note of a row without columns."""
        self.counts["read"] += 1
        if self.policy == "error":
            self._refuse(row, why)
        count(self.counts, "dropped_malformed", 1)

    def accept(self, rows: NDArray[Any], batch: Any, content: Content | None = None) -> NDArray[Any]:
        """Returns the rows that can be requests; changes `rows` in place where it clips.

        Args:
            rows: RECORDED rows, shape (n,).
            batch: the Arrow batch they were read from, for the text of the cell to blame.
            content: what they say of their tokens, if anything.
        """
        first_row = self.counts["read"] + 1
        self.counts["read"] += len(rows)
        bad = self._find(rows, content)
        if self.policy == "error" and bad.any.any():
            i = int(np.argmax(bad.any))
            self._refuse(first_row + i, self._explain(i, rows[i], batch.slice(i, 1), content, bad))
        kept = self._clip(rows, bad) if self.policy == "clip" else self._drop(rows, bad)
        if self.check_order:
            self.check_gaps(kept["at_ns"], self.latest_ns)
            self.latest_ns = int(bad.latest_ns[-1])
        return kept

    def _find(self, rows: NDArray[Any], content: Content | None) -> _BadRows:
        at_ns, prompt, output = rows["at_ns"], rows["num_prompt_tokens"], rows["num_output_tokens"]
        none = np.zeros(len(rows), np.bool_)
        unreadable = (at_ns == MISSING) | (prompt == MISSING) | (output == MISSING)
        unreadable = unreadable | (none if content is None else content.is_unreadable)
        too_many_tokens = ~unreadable & ((prompt > MAX_TOKENS) | (output > MAX_TOKENS))
        zero_tokens = ~unreadable & ~too_many_tokens & ((prompt < 1) | (output < 1))
        latest_ns = np.maximum.accumulate(np.concatenate([[self.latest_ns], at_ns]))
        inconsistent = none if content is None else ~unreadable & ~too_many_tokens & ~zero_tokens & content.is_inconsistent
        unsorted = ~unreadable & ~too_many_tokens & (at_ns < latest_ns[:-1]) & self.check_order
        bad = unreadable | too_many_tokens | zero_tokens | inconsistent | unsorted
        return _BadRows(unreadable, zero_tokens, too_many_tokens, inconsistent, unsorted, bad, latest_ns)

    def _drop(self, rows: NDArray[Any], bad: _BadRows) -> NDArray[Any]:
        count(self.counts, "dropped_unreadable", int(bad.unreadable.sum()))
        count(self.counts, "dropped_too_many_tokens", int(bad.too_many_tokens.sum()))
        count(self.counts, "dropped_zero_tokens", int(bad.zero_tokens.sum()))
        count(self.counts, "dropped_inconsistent", int(bad.inconsistent.sum()))
        count(self.counts, "dropped_unsorted", int((bad.unsorted & ~bad.zero_tokens & ~bad.inconsistent).sum()))
        return rows[~bad.any] if bad.any.any() else rows

    def _clip(self, rows: NDArray[Any], bad: _BadRows) -> NDArray[Any]:
        count(self.counts, "dropped_unreadable", int(bad.unreadable.sum()))
        count(self.counts, "dropped_too_many_tokens", int(bad.too_many_tokens.sum()))
        count(self.counts, "clipped_zero_tokens", int(bad.zero_tokens.sum()))
        count(self.counts, "clipped_inconsistent", int(bad.inconsistent.sum()))
        count(self.counts, "clipped_unsorted", int(bad.unsorted.sum()))
        for field in FIELDS[1:]:
            rows[field] = np.maximum(rows[field], 1)
        rows["at_ns"] = np.where(bad.unsorted, bad.latest_ns[1:], rows["at_ns"])
        rows["at_s"] = np.where(bad.unsorted, bad.latest_ns[1:] / 1e9, rows["at_s"])
        return rows[~bad.unreadable & ~bad.too_many_tokens]

    def check_gaps(self, at_ns: NDArray[np.int64], before_ns: int = MISSING) -> None:
        """Refuses sorted instants that seem to come from two clocks.

        Raises:
            TraceError: a gap of more than a year.
        """
        if len(at_ns) and before_ns != MISSING:
            at_ns = np.concatenate([[before_ns], at_ns])
        # Halves, because the difference of two instants can be larger than an integer holds.
        for i in np.flatnonzero(np.diff(at_ns // 2) > LARGEST_GAP_NS // 2)[:1]:
            raise TraceError(
                f"{self.path}: {self.columns[0]} leaps from {at_ns[i] / 1e9:.10g} s to {at_ns[i + 1] / 1e9:.10g} s; "
                "epoch and relative times in one file?"
            )

    def _explain(self, i: int, row: Any, cells: Any, content: Content | None, bad: _BadRows) -> str:
        for name, field in zip(self.columns, FIELDS, strict=True):
            if row[field] == MISSING:
                allowed = "an instant (is the time unit right?)" if field == "at_ns" else "a whole number"
                return f"{name} is {shown(cells.column(name)[0].as_py())}; allowed: {allowed}"
        if content is not None and content.is_unreadable[i]:
            return content.explain(i)
        for name, field in zip(self.columns[1:], FIELDS[1:], strict=True):
            if row[field] > MAX_TOKENS:
                return f"{name} is {row[field]:,}; allowed: at most {MAX_TOKENS:,}"
        for name, field in zip(self.columns[1:], FIELDS[1:], strict=True):
            if row[field] < 1:
                return f"{name} is {row[field]}; allowed: at least 1"
        if content is not None and content.is_inconsistent[i]:
            return content.explain(i)
        early_s = (int(bad.latest_ns[i]) - int(row["at_ns"])) / 1e9
        return f"{self.columns[0]} is {early_s:.6g} s before an earlier row's; sort_rows: true sorts the file"

    def _refuse(self, row: int | None, why: str) -> None:
        where = "a row" if row is None else f"row {row}"
        raise TraceError(f"{self.path}: {where}: {why}. bad_rows: error; drop or clip would go on and count it")
