"""timeline.parquet: for every interval a row of scope `all`, the whole fleet, and one of scope `pool` for each pool.

The pools' rows add up to that of the whole: take one scope before summing anything.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from experiments.results.tables import Column, write_rows
from experiments.results.targets import Target, all_met, targets_by_class
from sim.metrics import REQUEST_METRICS, has_metric, percentile_of_all, percentiles
from sim.records import FINISHED

ALL, POOL = "all", "pool"
_PERCENTS = (50, 90, 99)
_LATENCIES = [
    Column(f"{metric}_{value}", pa.int64() if value == "n" else pa.float64(), meaning)
    for metric, label in (("ttft", "TTFT"), ("tpot", "TPOT"))
    for value, meaning in [
        ("n", f"requests that arrived in the interval and have a {label}"),
        *((f"p{p}_s", f"{p}th percentile of their {label}") for p in _PERCENTS),
    ]
]
COLUMNS = (
    Column("scope", pa.string(), "all = the whole fleet, pool = one of its pools; a sum over both counts double", False),
    Column("start_s", pa.float64(), "start of the interval", False),
    Column("end_s", pa.float64(), "end of the interval; gauges are read here", False),
    Column("pool", pa.string(), "the pool; 'all' for the whole fleet", False),
    Column("demand_per_s", pa.float64(), "arrivals / length of the interval", False),
    Column("arrivals", pa.int64(), "requests that arrived in the interval", False),
    Column("completions", pa.int64(), "requests that finished in the interval", False),
    Column("num_ready", pa.int64(), "replicas that take requests"),
    Column("num_starting", pa.int64(), "replicas paid for and not yet ready"),
    Column("num_draining", pa.int64(), "replicas that only finish what they have"),
    Column("desired", pa.int64(), "replicas that the autoscaler asked for"),
    Column("capacity_per_s", pa.float64(), "requests/s that the ready replicas sustain within the targets"),
    Column("num_waiting", pa.int64(), "requests waiting"),
    Column("num_running", pa.int64(), "requests running"),
    Column("kv_cache_usage", pa.float64(), "share of KV blocks in use, mean over ready replicas; null with none"),
    *_LATENCIES,
    Column("judged", pa.int64(), "arrivals to which a target of their class applies"),
    Column("attainment", pa.float64(), "share of those judged that met every such target; null if there are none"),
    Column(
        "targets_met",
        pa.bool_(),
        "of the whole fleet: whether every target, those on ITL aside, held for the arrivals; null if one was not measurable",
    ),
    Column("gpu_hours", pa.float64(), "GPU-hours billed in the interval"),
    Column("dollars", pa.float64(), "their price; null without one"),
)
_SUMMED = ("num_ready", "num_starting", "num_draining", "desired", "capacity_per_s", "num_waiting", "num_running")
_WHOLE = -1
"""Number of the whole fleet among the pools."""
_Columns = Mapping[str, NDArray[Any]]


class Timeline:
    """Gathers requests, in order of arrival, and gauges into intervals; holds the requests of one open interval."""

    def __init__(self, interval_s: float, classes: Sequence[str], pools: Sequence[str], slo: Mapping[str, Any]) -> None:
        self._interval_s = interval_s
        self._pools = list(pools)
        self._targets: list[tuple[int, Target]] = [
            (-1 if name is None else list(classes).index(name), target)
            for name, target in targets_by_class(slo, classes)
            if target.metric in REQUEST_METRICS
        ]
        wanted = {"ttft_s", "tpot_s"} | {target.metric for _, target in self._targets}
        self._names = ("class", "pool", "num_answer_tokens", *(metric for metric in REQUEST_METRICS if metric in wanted))
        self._open = -1
        self._parts: list[_Columns] = []
        self._stats: dict[tuple[int, int], dict[str, Any]] = {}
        self._gauges: dict[tuple[int, int], dict[str, Any]] = {}
        self._completions = np.zeros((0, len(self._pools) + 1), dtype=np.int64)

    def add_requests(self, columns: _Columns, is_judged: NDArray[np.bool_], is_good: NDArray[np.bool_]) -> None:
        """Adds requests, (n,) each.

        Args:
            columns: those of requests.parquet, `pool` -1 for none, and `num_answer_tokens`.
            is_judged: whether a target applies to a request.
            is_good: whether it met every one that does.
        """
        self._complete(columns)
        interval = (columns["arrived_at_s"] // self._interval_s).astype(np.int64)
        kept = {name: columns[name] for name in self._names} | {"is_judged": is_judged, "is_good": is_good}
        bounds = [0, *(np.flatnonzero(np.diff(interval)) + 1).tolist(), interval.size]
        for start, stop in itertools.pairwise(bounds):
            if stop > start:
                if interval[start] != self._open:
                    self._close()
                    self._open = int(interval[start])
                self._parts.append({name: values[start:stop] for name, values in kept.items()})

    def add_gauges(self, rows: Sequence[dict[str, Any]]) -> None:
        """Adds the gauges of one interval, one row a pool, as they stand at its end."""
        interval = round(rows[0]["start_s"] / self._interval_s)
        for row in rows:
            usage = row["kv_cache_usage"] if row["num_ready"] else None  # of no replica there is none
            self._gauges[interval, self._pools.index(row["pool"])] = row | {"kv_cache_usage": usage}
        self._gauges[interval, _WHOLE] = _together(rows)

    def write(self, path: Path) -> None:
        """Writes the table, ordered by interval and pool, the whole fleet first."""
        self._close()
        rows = [self._row(k, pool) for k in self._intervals() for pool in (_WHOLE, *range(len(self._pools)))]
        write_rows(path, __doc__ or "", COLUMNS, rows)

    def _intervals(self) -> range:
        keys = [k for k, _ in self._stats] + [k for k, _ in self._gauges]
        return range(max([*keys, self._completions.shape[0] - 1], default=-1) + 1)

    def _row(self, k: int, pool: int) -> dict[str, Any]:
        row: dict[str, Any] = {"start_s": k * self._interval_s, "end_s": (k + 1) * self._interval_s}
        row |= {"arrivals": 0, "ttft_n": 0, "tpot_n": 0, "judged": 0, "completions": 0}
        row |= self._stats.get((k, pool), {}) | self._gauges.get((k, pool), {})
        row |= {"scope": ALL, "pool": ALL} if pool == _WHOLE else {"scope": POOL, "pool": self._pools[pool]}
        if k < self._completions.shape[0]:
            counts = self._completions[k]
            row["completions"] = int(counts.sum() if pool == _WHOLE else counts[pool])
        row["demand_per_s"] = row["arrivals"] / (row["end_s"] - row["start_s"])
        return row

    def _complete(self, columns: _Columns) -> None:
        is_finished, pool = columns["status"] == FINISHED, columns["pool"]
        if not is_finished.any():
            return
        interval = (columns["finished_at_s"][is_finished] // self._interval_s).astype(np.int64)
        width = self._completions.shape[1]
        longer = int(interval.max()) + 1 - self._completions.shape[0]
        if longer > 0:
            self._completions = np.pad(self._completions, ((0, longer), (0, 0)))
        cells = interval * width + pool[is_finished] % width  # -1, no pool, is the last column
        self._completions += np.bincount(cells, minlength=self._completions.size).reshape(-1, width)

    def _close(self) -> None:
        """Turns the requests of the open interval into its statistics."""
        if not self._parts:
            return
        rows = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        self._parts = []
        for i in range(len(self._pools)):
            self._stats[self._open, i] = _statistics({name: values[rows["pool"] == i] for name, values in rows.items()})
        is_alone = len(self._pools) == 1 and (rows["pool"] == 0).all()
        whole = self._stats[self._open, 0] if is_alone else _statistics(rows)
        self._stats[self._open, _WHOLE] = whole | {"targets_met": all_met(_is_met(rows, *one) for one in self._targets)}


def _is_met(rows: _Columns, class_id: int, target: Target) -> bool | None:
    """Whether a target held for the requests of one interval, as `experiments.results.targets.verdict` has it."""
    values = rows[target.metric]
    concerned = has_metric(target.metric, rows["num_answer_tokens"]) & ((rows["class"] == class_id) | (class_id < 0))
    value_s = percentile_of_all(values[concerned], int(np.isnan(values[concerned]).sum()), target.percent)
    return None if np.isnan(value_s) else value_s <= target.limit_s


def _statistics(rows: _Columns) -> dict[str, Any]:
    num_judged = int(rows["is_judged"].sum())
    attainment = rows["is_good"].sum() / num_judged if num_judged else None
    row: dict[str, Any] = {"arrivals": rows["is_good"].size, "judged": num_judged, "attainment": attainment}
    for metric in ("ttft", "tpot"):
        row[f"{metric}_n"], found = percentiles(rows[f"{metric}_s"], _PERCENTS)
        row |= {f"{metric}_p{p}_s": value for p, value in zip(_PERCENTS, found, strict=True)}
    return row


def _together(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The gauges of all pools as one: sums, and KV use weighted by ready replicas, of which there may be none."""
    whole: dict[str, Any] = {"start_s": rows[0]["start_s"], "end_s": rows[0]["end_s"]}
    for name in (*_SUMMED, "gpu_hours", "dollars"):
        values = [row.get(name) for row in rows]
        whole[name] = None if None in values else sum(value for value in values if value is not None)
    if whole["num_ready"]:
        whole["kv_cache_usage"] = sum(row["kv_cache_usage"] * row["num_ready"] for row in rows) / whole["num_ready"]
    return whole
