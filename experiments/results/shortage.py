"""How long a fleet was short, and how bad its worst hour was, from its timeline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from experiments.results import arrow
from experiments.results.timeline import ALL, COLUMNS

Rows = NDArray[Any]
"""(n,) records of a timeline's columns that are numbers; NaN where a value does not exist."""

ROW = np.dtype([(column.name, "f8") for column in COLUMNS if column.name not in ("scope", "pool")])

HOUR_S = 3600.0


class Shortage(NamedTuple):
    """What the measured part of a timeline shows; NaN where there is nothing to tell it by."""

    over_capacity_s: float  # demand was above what the ready replicas sustain
    out_of_target_s: float  # those who arrived missed a target; on ITL, which no interval knows, none is missed here
    worst_hour: float  # attainment of the worst hour


def fleet_rows(folder: Path) -> Rows:
    """Reads the rows of the whole fleet from a result folder's timeline.parquet."""
    with pq.ParquetFile(folder / "timeline.parquet") as file:
        table = file.read()
    rows = np.empty(table.num_rows, ROW)
    for name in ROW.names or ():
        rows[name] = arrow.values_of(table[name].combine_chunks())
    return rows[[scope == ALL for scope in table["scope"].to_pylist()]]


def measured(timeline: Rows, window: Mapping[str, float]) -> Rows:
    """Returns the intervals that lie in a summary's window; where it is shorter than any, those that it touches."""
    inside = (timeline["start_s"] >= window["start_s"]) & (timeline["end_s"] <= window["end_s"])
    touched = (timeline["start_s"] < window["end_s"]) & (timeline["end_s"] > window["start_s"])
    return timeline[inside if inside.any() else touched]


def shortage(rows: Rows) -> Shortage:
    """Returns how short a fleet was over intervals of its timeline that follow each other."""
    lengths_s = rows["end_s"] - rows["start_s"]
    demand_per_s, capacity_per_s, met = rows["demand_per_s"], rows["capacity_per_s"], rows["targets_met"]
    return Shortage(
        over_capacity_s=_sum(lengths_s, demand_per_s > capacity_per_s, is_known=~np.isnan(capacity_per_s)),
        out_of_target_s=_sum(lengths_s, met == 0, is_known=~np.isnan(met)),
        worst_hour=_worst_hour(rows, lengths_s),
    )


def _sum(lengths_s: Any, is_short: Any, is_known: Any) -> float:
    return float(lengths_s[is_short].sum()) if is_known.any() else np.nan


def _worst_hour(rows: Rows, lengths_s: Any) -> float:
    """The lowest share of good requests over any intervals that make an hour; NaN where there is no hour in it."""
    width = round(HOUR_S / lengths_s[0]) if len(rows) else 0
    if width == 0:
        return np.nan
    num_judged = rows["judged"]
    num_good = np.rint(np.nan_to_num(rows["attainment"]) * num_judged)
    sums = np.cumsum(np.vstack([np.zeros((1, 2)), np.column_stack([num_judged, num_good])]), axis=0)
    judged, good = (sums[width:] - sums[:-width]).T
    shares = good[judged > 0] / judged[judged > 0]
    return float(shares.min()) if shares.size else np.nan
