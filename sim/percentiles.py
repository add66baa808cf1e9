"""Exact percentiles of more values than memory holds, by reading them a few times.

A non-negative float orders as its bits do. The first reading counts values by the high bits (`Tally`); each further one
counts, inside the few bins that hold a wanted rank, by the next bits, until what is in them can be collected and sorted,
or the bins are single floats (`OrderStatistics`). Memory depends on the number of bins and ranks, not of values.

Values belong to cells (a class in a pool, say), and results are wanted for scopes, which are sets of cells.
"""

from collections.abc import Sequence
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from sim.compiled import loop, verb

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SHIFTS = (44, 29, 14, 0)
"""Bits below a bin at each reading: 8 mantissa bits stay at first, then 15, 15 and 14 more."""
_LOWEST = int(np.float64(2.0**-40).view(np.int64))
_NUM_BINS = 80 << 8
_FEW = 1 << 20
"""Values that are collected and sorted (8 MB) rather than counted again."""
_VALUES, _CELLS = (nb.types.Array(element, 1, "C", readonly=True) for element in (nb.float64, nb.int64))


@verb
def _key(value: float) -> Any:
    """Bits of a value in 2**-40 s to 2**40 s; what is under that picosecond counts as 0."""
    return max(np.float64(value).view(np.int64), _LOWEST)


@verb
def _first_range(scope: Any, key: Any, first: Any) -> Any:
    return first[scope, min((key - _LOWEST) >> _SHIFTS[0], _NUM_BINS - 1)] if scope >= 0 else -1


@loop(nb.void(_VALUES, _CELLS, nb.int64[:, ::1], nb.float64[:, ::1]))
def _tally(values: Any, cells: Any, counts: Any, moments: Any) -> None:
    for i in range(values.size):
        value, cell = values[i], cells[i]
        if cell >= 0 and value == value:  # not NaN
            counts[cell, min((_key(value) - _LOWEST) >> _SHIFTS[0], _NUM_BINS - 1)] += 1
            moments[cell, 0] += 1
            off = value - moments[cell, 1]
            moments[cell, 1] += off / moments[cell, 0]
            moments[cell, 2] += off * (value - moments[cell, 1])


_PLAN = (_VALUES, _CELLS, nb.int64[:, ::1], nb.int32[:, ::1], nb.int64[:, ::1])


@loop(nb.void(*_PLAN, nb.int64, nb.int64[:, ::1]))
def _recount(values: Any, cells: Any, scopes: Any, first: Any, ranges: Any, shift: Any, counts: Any) -> None:
    """Counts each value in those of the `ranges` (low, width, next with the same scope and bin) that hold it."""
    for i in range(values.size):
        value, cell = values[i], cells[i]
        if cell >= 0 and value == value:
            key = _key(value)
            for k in range(scopes.shape[1]):
                r = _first_range(scopes[cell, k], key, first)
                while r >= 0:
                    if 0 <= key - ranges[r, 0] < ranges[r, 1]:
                        counts[r, (key - ranges[r, 0]) >> shift] += 1
                    r = ranges[r, 2]


@loop(nb.void(*_PLAN, nb.int64[::1], nb.int64[::1]))
def _collect(values: Any, cells: Any, scopes: Any, first: Any, ranges: Any, ends: Any, keys: Any) -> None:
    """Appends each value to those of the `ranges` that hold it: range r's are `keys` up to `ends[r]`."""
    for i in range(values.size):
        value, cell = values[i], cells[i]
        if cell >= 0 and value == value:
            key = _key(value)
            for k in range(scopes.shape[1]):
                r = _first_range(scopes[cell, k], key, first)
                while r >= 0:
                    if 0 <= key - ranges[r, 0] < ranges[r, 1]:
                        keys[ends[r]] = key
                        ends[r] += 1
                    r = ranges[r, 2]


class Tally:
    """The first reading: n, mean and standard deviation of each cell, and where its values lie."""

    def __init__(self, num_cells: int) -> None:
        self.counts = np.zeros((num_cells, _NUM_BINS), dtype=np.int64)
        self._moments = np.zeros((num_cells, 3))  # n, mean, sum of squared deviations (Welford)

    def add(self, values: Floats, cells: Ints) -> None:
        """Counts `values`, non-negative or NaN (absent), each in its cell; cell -1 is left out."""
        _tally(values, cells, self.counts, self._moments)

    def moments(self, scope: NDArray[np.bool_]) -> tuple[int, float, float]:
        """n, mean and standard deviation (divided by n) over a set of cells, (num_cells,) bool; NaN when n is 0."""
        n, mean, squares = self._moments[scope].T
        total = int(n.sum())
        if total == 0:
            return 0, np.nan, np.nan
        grand = float(np.sum(n * mean) / total)
        return total, grand, float(np.sqrt(np.sum(squares + n * (mean - grand) ** 2) / total))


class OrderStatistics:
    """The k-th smallest values of several scopes, in one to three more readings of the values.

    Until `is_done`, call `observe` with all values once, then `narrow`; then `values` holds the answers.
    """

    def __init__(self, tally: Tally, scopes: NDArray[np.bool_], ranks: Sequence[Ints]) -> None:
        """Starts from a `tally`.

        Args:
            tally: of the same values that will be observed.
            scopes: (num_scopes, num_cells) which cells each scope joins.
            ranks: for each scope, the 0-based ranks wanted, each below that scope's n.
        """
        self._scope = np.repeat(np.arange(len(ranks)), [len(r) for r in ranks])
        self._rank = np.concatenate([*ranks, np.empty(0, dtype=np.int64)]).astype(np.int64)
        self._splits = np.cumsum([len(r) for r in ranks])[:-1]
        self._scopes_of_cell = _members(scopes)
        self._low = np.full(self._rank.size, _LOWEST)
        self._population = np.zeros(self._rank.size, dtype=np.int64)  # of the range that a rank is known to lie in
        self._reading = 0
        self.is_done = self._rank.size == 0
        self._narrow(np.stack([tally.counts[scope].sum(axis=0) for scope in scopes]), self._scope)

    def observe(self, values: Floats, cells: Ints) -> None:
        """Looks at values that lie where a wanted rank may be."""
        plan = values, cells, self._scopes_of_cell, self._first, self._ranges
        if self._collects:
            _collect(*plan, self._ends, self._keys)
        else:
            _recount(*plan, _SHIFTS[self._reading], self._counts)

    def narrow(self) -> None:
        """Ends a reading: every wanted rank is found, or lies in a bin 2**14 or 2**15 times narrower."""
        if self._collects:
            for r, part in enumerate(np.split(self._keys, self._ends[:-1])):
                part.sort()
                mine = self._range_of_rank == r
                self._low[mine] = part[self._rank[mine]]
            self.is_done = True
        else:
            self._narrow(self._counts, self._range_of_rank)

    @property
    def values(self) -> list[Floats]:
        """For each scope, the values at its ranks."""
        found = np.where(self._low == _LOWEST, 0.0, self._low.view(np.float64))
        return np.split(found, self._splits)

    def _narrow(self, counts: Ints, row: Ints) -> None:
        for i in range(self._rank.size):
            cumulated = np.cumsum(counts[row[i]])
            b = int(np.searchsorted(cumulated, self._rank[i], side="right"))
            self._population[i] = counts[row[i], b]
            self._rank[i] -= cumulated[b] - self._population[i]
            self._low[i] += b << _SHIFTS[self._reading]
        self._reading += 1
        self.is_done = self.is_done or self._reading == len(_SHIFTS)
        self._plan()

    def _plan(self) -> None:
        """Lays out the ranges to look into: one for every scope and bin that holds a wanted rank."""
        pairs = np.stack([self._scope, self._low], axis=1)
        pairs, one_rank, self._range_of_rank = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        self._first = np.full((self._scopes_of_cell.max(initial=0) + 1, _NUM_BINS), -1, dtype=np.int32)
        self._ranges = np.empty((len(pairs), 3), dtype=np.int64)
        for r, (scope, low) in enumerate(pairs):
            b = min((low - _LOWEST) >> _SHIFTS[0], _NUM_BINS - 1)
            self._ranges[r] = low, 1 << _SHIFTS[self._reading - 1], self._first[scope, b]
            self._first[scope, b] = r
        populations = self._population[one_rank]
        self._collects = int(populations.sum()) <= _FEW
        if self._collects:
            self._ends = np.cumsum(populations) - populations
            self._keys = np.empty(int(populations.sum()), dtype=np.int64)
        elif not self.is_done:
            num_bins = 1 << (_SHIFTS[self._reading - 1] - _SHIFTS[self._reading])
            self._counts = np.zeros((len(pairs), num_bins), dtype=np.int64)


def _members(scopes: NDArray[np.bool_]) -> Ints:
    """(num_cells, most scopes of a cell) the scopes of each cell, filled up with -1."""
    width = max(1, int(scopes.sum(axis=0).max(initial=0)))
    members = np.full((scopes.shape[1], width), -1, dtype=np.int64)
    for cell in range(scopes.shape[1]):
        found = np.flatnonzero(scopes[:, cell])
        members[cell, : found.size] = found
    return members
