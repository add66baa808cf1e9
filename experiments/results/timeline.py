"""timeline.parquet: one row per interval and pool, and one for all pools together."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from experiments.results.tables import Column, write_rows
from sim.metrics import percentiles

ALL = "all"
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
    Column("start_s", pa.float64(), "start of the interval", False),
    Column("end_s", pa.float64(), "end of the interval; gauges are read here", False),
    Column("pool", pa.string(), "pool, or 'all'", False),
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
    Column("kv_cache_usage", pa.float64(), "share of KV blocks in use, mean over ready replicas"),
    *_LATENCIES,
    Column("attainment", pa.float64(), "share of the arrivals that met every target of their class"),
    Column("gpu_hours", pa.float64(), "GPU-hours billed in the interval"),
    Column("dollars", pa.float64(), "their price; null without one"),
)
_SUMMED = ("num_ready", "num_starting", "num_draining", "desired", "capacity_per_s", "num_waiting", "num_running")
_Part = tuple[NDArray[Any], ...]


class Timeline:
    """Gathers requests, in order of arrival, and gauges into intervals; holds the requests of one open interval."""

    def __init__(self, interval_s: float, pools: Sequence[str]) -> None:
        self._interval_s = interval_s
        self._pools = list(pools)
        self._open = -1
        self._parts: list[_Part] = []
        self._stats: dict[tuple[int, str], dict[str, Any]] = {}
        self._gauges: dict[tuple[int, str], dict[str, Any]] = {}
        self._completions = np.zeros((0, len(self._pools) + 1), dtype=np.int64)

    def add_requests(
        self,
        arrived_at_s: NDArray[np.float64],
        finished_at_s: NDArray[np.float64],
        ttft_s: NDArray[np.float64],
        tpot_s: NDArray[np.float64],
        is_good: NDArray[np.bool_],
        pool: NDArray[np.int64],
    ) -> None:
        """Adds requests, (n,) each; `finished_at_s` is NaN for those that did not finish, `pool` -1 for none."""
        self._complete(finished_at_s, pool)
        interval = (arrived_at_s // self._interval_s).astype(np.int64)
        bounds = [0, *(np.flatnonzero(np.diff(interval)) + 1).tolist(), interval.size]
        for start, stop in itertools.pairwise(bounds):
            if stop > start:
                if interval[start] != self._open:
                    self._close()
                    self._open = int(interval[start])
                self._parts.append(tuple(values[start:stop] for values in (ttft_s, tpot_s, is_good, pool)))

    def add_gauges(self, rows: Sequence[dict[str, Any]]) -> None:
        """Adds the gauges of one interval, one row a pool, as they stand at its end."""
        for row in rows:
            self._gauges[round(row["start_s"] / self._interval_s), row["pool"]] = row
        interval = round(rows[0]["start_s"] / self._interval_s)
        self._gauges[interval, ALL] = _together(rows)

    def write(self, path: Path) -> None:
        """Writes the table, ordered by interval and pool."""
        self._close()
        rows = [self._row(k, pool) for k in self._intervals() for pool in (ALL, *self._pools)]
        write_rows(path, __doc__ or "", COLUMNS, rows)

    def _intervals(self) -> range:
        keys = [k for k, _ in self._stats] + [k for k, _ in self._gauges]
        return range(max([*keys, self._completions.shape[0] - 1], default=-1) + 1)

    def _row(self, k: int, pool: str) -> dict[str, Any]:
        row: dict[str, Any] = {"start_s": k * self._interval_s, "end_s": (k + 1) * self._interval_s, "pool": pool}
        row |= {"arrivals": 0, "ttft_n": 0, "tpot_n": 0, "completions": 0}
        row |= self._stats.get((k, pool), {}) | self._gauges.get((k, pool), {}) | {"pool": pool}
        if k < self._completions.shape[0]:
            counts = self._completions[k]
            row["completions"] = int(counts.sum() if pool == ALL else counts[self._pools.index(pool)])
        row["demand_per_s"] = row["arrivals"] / (row["end_s"] - row["start_s"])
        return row

    def _complete(self, finished_at_s: NDArray[np.float64], pool: NDArray[np.int64]) -> None:
        is_finished = ~np.isnan(finished_at_s)
        if not is_finished.any():
            return
        interval = (finished_at_s[is_finished] // self._interval_s).astype(np.int64)
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
        ttft_s, tpot_s, is_good, pool = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        for i, name in enumerate(self._pools):
            mine = pool == i
            self._stats[self._open, name] = _statistics(ttft_s[mine], tpot_s[mine], is_good[mine])
        is_alone = len(self._pools) == 1 and (pool == 0).all()
        everything = self._stats[self._open, self._pools[0]] if is_alone else _statistics(ttft_s, tpot_s, is_good)
        self._stats[self._open, ALL] = everything
        self._parts = []


def _statistics(ttft_s: NDArray[np.float64], tpot_s: NDArray[np.float64], is_good: NDArray[np.bool_]) -> dict[str, Any]:
    row: dict[str, Any] = {"arrivals": is_good.size, "attainment": is_good.mean() if is_good.size else None}
    for metric, values in (("ttft", ttft_s), ("tpot", tpot_s)):
        row[f"{metric}_n"], found = percentiles(values, _PERCENTS)
        row |= {f"{metric}_p{p}_s": value for p, value in zip(_PERCENTS, found, strict=True)}
    return row


def _together(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The gauges of all pools as one: sums, and KV use weighted by ready replicas."""
    whole: dict[str, Any] = {"start_s": rows[0]["start_s"], "end_s": rows[0]["end_s"]}
    for name in (*_SUMMED, "gpu_hours", "dollars"):
        values = [row.get(name) for row in rows]
        whole[name] = None if None in values else sum(value for value in values if value is not None)
    num_ready = whole["num_ready"] or 0
    whole["kv_cache_usage"] = sum(row["kv_cache_usage"] * row["num_ready"] for row in rows) / max(num_ready, 1)
    return whole
