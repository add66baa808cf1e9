"""How far simulated runs are from real ones: every metric and percentile, signed, beside what real runs differ by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from experiments.results.tables import Column
from sim.metrics import percentiles

Floats = NDArray[np.float64]

LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s")
STATISTICS = ("mean", "p50", "p90", "p99")
RATES = ("requests_per_s", "output_tokens_per_s", "cached_token_share", "preemptions_per_request")
"""One number a run; where the real one is 0 there is no relative error, and no row."""

COLUMNS = (
    Column("recording", pa.string(), "the run", False),
    Column("band", pa.string(), "how busy the real engine was", False),
    Column("busy_share", pa.float64(), "share of its time in which the real engine's model ran"),
    Column("step_time_scale", pa.float64(), "the declared scalar for the machine's drift; 1 = none", False),
    Column("metric", pa.string(), "ttft_s, tpot_s, itl_s, e2e_s, queue_s in seconds, and rates", False),
    Column("statistic", pa.string(), "mean or percentile; of a rate, mean", False),
    Column("n", pa.int64(), "values in the real run", False),
    Column("real", pa.float64(), "in the real run"),
    Column("simulated", pa.float64(), "in the simulated run"),
    Column("error", pa.float64(), "simulated / real - 1"),
    Column(
        "followed_error",
        pa.float64(),
        "the same of a simulation that followed the machine's recorded speed; null = not asked for",
    ),
    Column("repeat_spread", pa.float64(), "relative difference of two real runs of one workload; null = not known"),
    Column(
        "per_step_time",
        pa.float64(),
        "of a served result: % by which the simulated value grows where every step takes 1 % longer; null = not asked for",
    ),
    Column(
        "draw_spread",
        pa.float64(),
        "standard deviation between draws of the arrivals, over their mean; null = one draw, or arrivals are not random",
    ),
    Column(
        "is_within",
        pa.bool_(),
        "whether the error is within the tolerance, or the repeat spread where that is larger; null = no simulated value",
    ),
)
"""The columns of errors.parquet."""


@dataclass(frozen=True)
class Measures:
    """What was measured of one run, real or simulated."""

    latencies: Mapping[str, Floats] = field(default_factory=dict)  # metric -> one value a request; of ITL, one a gap
    statistics: Mapping[tuple[str, str], float] = field(default_factory=dict)  # where only those are known
    rates: Mapping[str, float] = field(default_factory=dict)

    def value(self, metric: str, statistic: str) -> float:
        """Returns a statistic of a metric; NaN where it is not known."""
        if metric in self.rates:
            return self.rates[metric] if statistic == "mean" else float("nan")
        if (metric, statistic) in self.statistics:
            return self.statistics[metric, statistic]
        values = self.latencies.get(metric, np.empty(0))
        values = values[np.isfinite(values)]
        if not values.size:
            return float("nan")
        return float(values.mean()) if statistic == "mean" else float(percentiles(values, [float(statistic[1:])])[1][0])

    def count(self, metric: str) -> int:
        """Returns how many values a metric has."""
        return int(np.isfinite(self.latencies.get(metric, np.empty(0))).sum())


def errors(
    real: Measures, simulated: Measures, repeat_spread: Mapping[str, Mapping[str, float]], tolerance: float, **about: Any
) -> list[dict[str, Any]]:
    """Returns one row for each metric and statistic that the real run has, with the keys of `COLUMNS`.

    Args:
        real: the recorded run.
        simulated: the simulated one.
        repeat_spread: metric -> statistic -> relative difference of two real runs.
        tolerance: the error allowed where the spread is smaller or not known.
        **about: further columns, such as the recording's name.
    """
    rows = []
    for metric, statistic in [*((m, s) for m in LATENCIES for s in STATISTICS), *((rate, "mean") for rate in RATES)]:
        truth, ours = real.value(metric, statistic), simulated.value(metric, statistic)
        if not np.isfinite(truth) or truth == 0:
            continue
        error = ours / truth - 1
        spread = repeat_spread.get(metric, {}).get(statistic, float("nan"))
        rows.append(
            {
                **about,
                "metric": metric,
                "statistic": statistic,
                "n": real.count(metric) if metric in LATENCIES else 1,
                "real": truth,
                "simulated": ours,
                "error": error,
                "repeat_spread": spread,
                "per_step_time": float("nan"),
                "draw_spread": float("nan"),
                "is_within": bool(abs(error) <= np.nanmax([tolerance, spread])) if np.isfinite(error) else None,
            }
        )
    return rows


def band_of(busy_share: float) -> str:
    """Names how loaded an engine is.

    >>> [band_of(share) for share in (0.3, 0.7, 0.96, float("nan"))]
    ['under 60 % busy', '60 to 90 % busy', 'over 90 % busy', 'load not known']
    """
    if not np.isfinite(busy_share):
        return "load not known"
    return "under 60 % busy" if busy_share < 0.6 else "60 to 90 % busy" if busy_share < 0.9 else "over 90 % busy"


def spread_between(runs: Sequence[Measures]) -> dict[str, dict[str, float]]:
    """Returns metric -> statistic -> how much repeated real runs differ: (largest - smallest) / mean."""
    found: dict[str, dict[str, float]] = {}
    for metric in (*LATENCIES, *RATES):
        for statistic in STATISTICS:
            values = np.array([run.value(metric, statistic) for run in runs])
            if len(runs) > 1 and np.isfinite(values).all() and values.mean():
                found.setdefault(metric, {})[statistic] = float(np.ptp(values) / values.mean())
    return found
