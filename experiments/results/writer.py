"""Writes a run's results as it goes, in memory that does not grow with it: requests, timeline, replicas, summary."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.results.asked import Asked
from experiments.results.costs import write_replicas
from experiments.results.counts import Counts
from experiments.results.request_table import RequestTable
from experiments.results.summary import Run, summarise
from experiments.results.summary_table import write_summary
from experiments.results.tables import without_nan, write_json
from experiments.results.timeline import Timeline
from sim.metrics import REQUEST_METRICS
from sim.records import FINISHED

ROW_GROUP = 1 << 17
"""Requests to a row group of requests.parquet: 10 MB, held once while it fills."""

_STRETCH = 1 << 12
"""Requests copied at a time: their records fit in the cache while one field after the other is read."""
_INSTANTS = ("arrived_at_s", "routed_at_s", "scheduled_at_s", "first_token_at_s", "finished_at_s")
_COUNTS = ("num_prompt_tokens", "num_output_tokens", "num_generated_tokens", "num_cached_tokens", "num_preemptions")
_INDICES = ("machine", "class_id", "status", "reason")
_COPIED: dict[str, type] = dict.fromkeys(_INSTANTS, np.float64) | dict.fromkeys((*_COUNTS, *_INDICES), np.int64)


class PoolInfo(NamedTuple):
    """What results have to know of a pool."""

    name: str


class RunWriter:
    """Takes what a run produces, in order, and leaves the four tables of one result folder."""

    def __init__(
        self,
        folder: Path,
        *,
        pools: Sequence[PoolInfo],
        classes: Sequence[str] = ("default",),
        slo: Mapping[str, Any],
        timeline_interval_s: float,
        measure_start_s: float = 0.0,
        measure_end_s: float | None = None,
        asked: Asked | None = None,
    ) -> None:
        """Opens requests.parquet in `folder`, which exists.

        Args:
            folder: where the files go.
            pools: in the order of their indices.
            classes: names of the traffic classes, in the order of `class_id`.
            slo: metric -> percentile -> limit in seconds, and `classes` -> class -> the same (see experiments.results.targets).
            timeline_interval_s: length of the timeline's intervals.
            measure_start_s: start of the window that the summary is about.
            measure_end_s: its end; None for the end of the run.
            asked: what the requests ask for, in columns of their own; None: not to be written.
        """
        self._folder = folder
        self._pools = [pool.name for pool in pools]
        self._slo = slo
        self._window_s = (measure_start_s, np.inf if measure_end_s is None else measure_end_s)
        self._asked = asked
        self._table = RequestTable(folder / "requests.parquet", classes, self._pools, asked.columns if asked else ())
        self._timeline = Timeline(timeline_interval_s, classes, self._pools, slo)
        self._counts = Counts(classes, self._pools, slo, *self._window_s)
        self._pool_of_machine = np.full(1, -1, dtype=np.int64)  # the last place answers for machine -1
        self._pending: dict[str, NDArray[Any]] = {name: np.empty(ROW_GROUP, dtype) for name, dtype in _COPIED.items()}
        self._num_pending = 0
        self._first_pending = 0

    def add_machine(self, machine: int, pool: int) -> None:
        """Tells which pool a machine id belongs to, before the first request that it served is written."""
        if machine >= self._pool_of_machine.size - 1:
            longer = np.full(max(64, 2 * machine + 2), -1, dtype=np.int64)
            longer[: self._pool_of_machine.size] = self._pool_of_machine
            self._pool_of_machine = longer
        self._pool_of_machine[machine] = pool

    def write_requests(self, first_id: int, rows: Any) -> None:
        """Takes requests of consecutive ids in order of arrival, that have ended, or are in flight at the end of the run.

        Args:
            first_id: id of the first row, the one after the last row of the call before.
            rows: (n,) REQUEST records; copied.
        """
        if not self._num_pending:
            self._first_pending = first_id
        rows, start = np.asarray(rows).view(np.ndarray), 0  # a recarray's fields are slow to get at
        while start < len(rows):
            stop = min(start + _STRETCH, len(rows), start + ROW_GROUP - self._num_pending)
            place = slice(self._num_pending, self._num_pending + stop - start)
            for name, values in self._pending.items():
                values[place] = rows[name][start:stop]
            self._num_pending, start = place.stop, stop
            if self._num_pending == ROW_GROUP:
                self._flush()

    def write_interval(self, rows: Sequence[dict[str, Any]]) -> None:
        """Takes the gauges of one interval of the timeline, one row a pool (see experiments.results.timeline.COLUMNS)."""
        self._timeline.add_gauges(rows)

    def finish(self, machines: Sequence[Mapping[str, Any]], totals: Mapping[str, Any]) -> dict[str, Any]:
        """Completes all tables and returns the summary as plain data, null where a value does not exist.

        Args:
            machines: one mapping for each machine (see experiments.results.costs.COLUMNS), instants None where not reached.
            totals: `duration_s`, the instant the run ended; `itl_counts` (num_pools, NUM_ITL_BINS) and `itl_sums`
                (num_pools, 3: sum, sum of squares, maximum), as in sim.records.Fleet; `warnings`, optional lines;
                `never_sent` (num_classes,) requests, `has_prefix_cache`, `ideal_cached_share` and `step_times`, optional.
        """
        self._flush()
        self._table.close({"num_requests": self._first_pending, **(self._asked.facts() if self._asked else {})})
        self._timeline.write(self._folder / "timeline.parquet")
        write_replicas(self._folder / "replicas.parquet", machines, totals["duration_s"])
        run = Run(
            counts=self._counts,
            slo=self._slo,
            start_s=self._window_s[0],
            end_s=max(self._window_s[0], min(self._window_s[1], totals["duration_s"])),
            ended_at_s=totals["duration_s"],
            machines=machines,
            itl_counts=np.asarray(totals["itl_counts"]),
            itl_sums=np.asarray(totals["itl_sums"]),
            warnings=totals.get("warnings", ()),
            never_sent=totals.get("never_sent", ()),
            has_prefix_cache=totals.get("has_prefix_cache", False),
            ideal_cached_share=totals.get("ideal_cached_share", np.nan),
            step_times=totals.get("step_times", {}),
        )
        summary: dict[str, Any] = without_nan(summarise(run, self._table))
        write_json(self._folder / "summary.json", summary)
        write_summary(self._folder / "summary.parquet", summary)
        return summary

    def _flush(self) -> None:
        """Writes what is pending as one row group."""
        if not self._num_pending:
            return
        columns = self._columns()
        is_judged, is_good = self._counts.verdicts(columns)
        self._counts.add(columns, is_judged, is_good)
        self._timeline.add_requests(columns, is_judged, is_good)
        self._table.append(columns | self._asked.take(self._num_pending) if self._asked else columns)
        self._first_pending += self._num_pending
        self._num_pending = 0

    def _columns(self) -> dict[str, NDArray[Any]]:
        """The columns of requests.parquet, from what is pending."""
        columns: dict[str, NDArray[Any]] = {name: values[: self._num_pending] for name, values in self._pending.items()}
        columns |= {metric: values_of(columns) for metric, values_of in REQUEST_METRICS.items()}
        columns["id"] = np.arange(self._first_pending, self._first_pending + self._num_pending)
        columns["class"] = columns.pop("class_id")
        columns["replica"] = columns.pop("machine")
        columns["pool"] = self._pool_of(columns["replica"])
        num_asked_tokens, num_generated_tokens = columns["num_output_tokens"], columns.pop("num_generated_tokens")
        columns["num_output_tokens"] = num_generated_tokens
        columns["num_answer_tokens"] = np.where(columns["status"] == FINISHED, num_generated_tokens, num_asked_tokens)
        columns["reason"] = np.where(columns["reason"] == 0, -1, columns["reason"])
        return columns

    def _pool_of(self, machines: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(self._pools) == 1:  # then refused requests are this pool's too
            return np.zeros(machines.size, dtype=np.int64)
        return self._pool_of_machine[machines]
