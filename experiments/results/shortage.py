"""How long a fleet was short, and how bad its worst hour was, from its timeline."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.results.timeline import ALL

HOUR_S = 3600.0


class Shortage(NamedTuple):
    """What the measured part of a timeline shows; NaN where there is nothing to tell it by."""

    over_capacity_s: float  # demand was above what the ready replicas sustain
    out_of_target_s: float  # those who arrived missed a target; on ITL, which no interval knows, none is missed here
    worst_hour: float  # attainment of the worst hour


def fleet_rows(timeline: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the whole fleet."""
    return timeline[timeline["scope"] == ALL]


def measured(timeline: pd.DataFrame, window: Mapping[str, float]) -> pd.DataFrame:
    """Returns the intervals that lie in a summary's window; where it is shorter than any, those that it touches."""
    inside = (timeline["start_s"] >= window["start_s"]) & (timeline["end_s"] <= window["end_s"])
    touched = (timeline["start_s"] < window["end_s"]) & (timeline["end_s"] > window["start_s"])
    return timeline[inside if inside.any() else touched]


def shortage(rows: pd.DataFrame) -> Shortage:
    """Returns how short a fleet was over intervals of its timeline that follow each other."""
    lengths_s = (rows["end_s"] - rows["start_s"]).to_numpy(float)
    demand_per_s, capacity_per_s = rows["demand_per_s"].to_numpy(float), _floats(rows, "capacity_per_s")
    met = rows["targets_met"].to_numpy(dtype=object)
    return Shortage(
        over_capacity_s=_sum(lengths_s, demand_per_s > capacity_per_s, is_known=~np.isnan(capacity_per_s)),
        out_of_target_s=_sum(lengths_s, met == False, is_known=~pd.isna(met)),  # noqa: E712
        worst_hour=_worst_hour(rows, lengths_s),
    )


def _floats(rows: pd.DataFrame, name: str) -> Any:
    return rows[name].to_numpy(dtype=float, na_value=np.nan)


def _sum(lengths_s: Any, is_short: Any, is_known: Any) -> float:
    return float(lengths_s[is_short].sum()) if is_known.any() else np.nan


def _worst_hour(rows: pd.DataFrame, lengths_s: Any) -> float:
    """The lowest share of good requests over any intervals that make an hour; NaN where there is no hour in it."""
    width = round(HOUR_S / lengths_s[0]) if len(rows) else 0
    if width == 0:
        return np.nan
    num_judged = rows["judged"].to_numpy(float)
    num_good = np.rint(np.nan_to_num(_floats(rows, "attainment")) * num_judged)
    sums = np.cumsum(np.vstack([np.zeros((1, 2)), np.column_stack([num_judged, num_good])]), axis=0)
    judged, good = (sums[width:] - sums[:-width]).T
    shares = good[judged > 0] / judged[judged > 0]
    return float(shares.min()) if shares.size else np.nan
