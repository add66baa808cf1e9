"""What is counted of a run while its requests are written: for every class and pool, in memory that does not grow."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.results.targets import request_limits_s, targets
from sim.metrics import REQUEST_METRICS, has_metric, judged, meets
from sim.percentiles import Tally
from sim.records import FINISHED, REASON_NAMES, STATUS_NAMES

Columns = Mapping[str, NDArray[Any]]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class Scope(NamedTuple):
    """A part of the run that gets its own numbers."""

    kind: str  # "all", "class" or "pool"
    name: str
    cells: Bools  # (num_cells,)
    pools: Bools  # (num_pools,) whose machines and gaps are its own; none for a class, as classes share them

    @property
    def key(self) -> str:
        """A name that no class shares with a pool."""
        return self.name if self.kind == "all" else f"{self.kind}.{self.name}"


class Counts:
    """Counts and tallies of every (class, pool) cell; memory does not grow with the run."""

    def __init__(
        self, classes: Sequence[str], pools: Sequence[str], slo: Mapping[str, Any], start_s: float, end_s: float
    ) -> None:
        self.classes, self.pools, self._start_s, self._end_s = list(classes), list(pools), start_s, end_s
        self._width = len(pools) + 1  # the last column: requests that no pool got
        num_cells = len(classes) * self._width
        self.tallies = {metric: Tally(num_cells) for metric in REQUEST_METRICS}
        self.statuses = np.zeros((num_cells, len(STATUS_NAMES)), dtype=np.int64)
        self.reasons = np.zeros((num_cells, len(REASON_NAMES)), dtype=np.int64)
        self.missing = {metric: np.zeros(num_cells, dtype=np.int64) for metric in REQUEST_METRICS}
        self.judged, self.good = np.zeros((2, num_cells), dtype=np.int64)
        self.preemptions = np.zeros(num_cells, dtype=np.int64)
        self.finished = np.zeros((num_cells, 4), dtype=np.int64)  # in the window: requests; prompt, output, cached tokens
        self._limits_s = [request_limits_s(targets(slo, name)) for name in classes]

    def verdicts(self, columns: Columns) -> tuple[Bools, Bools]:
        """Which requests a target of their class applies to, and which of these meet every one."""
        is_judged, is_good = np.zeros((2, columns["status"].size), dtype=np.bool_)
        for class_id, limits_s in enumerate(self._limits_s):
            mine = columns["class"] == class_id
            is_judged |= mine & judged(columns["num_answer_tokens"], limits_s)
            is_good |= mine & meets(columns, columns["status"], limits_s)
        return is_judged, is_good

    def add(self, columns: Columns, is_judged: Bools, is_good: Bools) -> None:
        """Counts a block of requests, as it goes into requests.parquet, with `num_answer_tokens` beside."""
        cells = self._cells(columns)
        measured = np.where(self._is_measured(columns), cells, -1)
        for metric, tally in self.tallies.items():
            tally.add(columns[metric], measured)
        inside = measured >= 0
        cell = measured[inside]
        self.statuses += _crosstab(cell, columns["status"][inside], self.statuses)
        self.reasons += _crosstab(cell, np.maximum(columns["reason"][inside], 0), self.reasons)
        for metric, missing in self.missing.items():
            lacks = np.isnan(columns[metric]) & has_metric(metric, columns["num_answer_tokens"])
            missing += self._in_cells(measured[lacks & inside])
        self.judged += self._in_cells(measured[is_judged & inside])
        self.good += self._in_cells(measured[is_good & inside])
        preempted = np.flatnonzero(columns["num_preemptions"])
        np.add.at(self.preemptions, cells[preempted], columns["num_preemptions"][preempted] * inside[preempted])
        self._add_finished(columns, cells)

    def measured_cells(self, columns: Columns) -> Ints:
        """(n,) the cell of each request, or -1 outside the window; needs class, pool and arrived_at_s."""
        return np.where(self._is_measured(columns), self._cells(columns), -1)

    def scopes(self) -> list[Scope]:
        """The whole, and each class and each pool where there are several."""
        shape = (len(self.classes), self._width)
        grid = np.arange(shape[0] * shape[1])
        found = [Scope("all", "all", grid >= 0, np.ones(len(self.pools), dtype=np.bool_))]
        if len(self.classes) > 1:
            none = np.zeros(len(self.pools), dtype=np.bool_)
            found += [Scope("class", name, grid // shape[1] == i, none) for i, name in enumerate(self.classes)]
        if len(self.pools) > 1:
            ours = np.eye(len(self.pools), dtype=np.bool_)
            found += [Scope("pool", name, grid % shape[1] == i, ours[i]) for i, name in enumerate(self.pools)]
        return found

    def _is_measured(self, columns: Columns) -> Bools:
        arrived_at_s = columns["arrived_at_s"]
        return np.asarray((arrived_at_s >= self._start_s) & (arrived_at_s < self._end_s))

    def _cells(self, columns: Columns) -> Ints:
        pool = columns["pool"]
        return np.asarray(columns["class"] * self._width + np.where(pool < 0, self._width - 1, pool))

    def _in_cells(self, cell: Ints) -> Ints:
        return np.bincount(cell, minlength=self.good.size)

    def _add_finished(self, columns: Columns, cells: Ints) -> None:
        ended_at_s = columns["finished_at_s"]
        inside = (columns["status"] == FINISHED) & (ended_at_s >= self._start_s) & (ended_at_s < self._end_s)
        cell = cells[inside]
        for i, weights in enumerate((None, *(columns[f"num_{kind}_tokens"] for kind in ("prompt", "output", "cached")))):
            share = None if weights is None else weights[inside]
            self.finished[:, i] += np.bincount(cell, share, minlength=self.good.size).astype(np.int64)


def _crosstab(cell: Ints, value: Ints, like: Ints) -> Ints:
    return np.bincount(cell * like.shape[1] + value, minlength=like.size).reshape(like.shape)
