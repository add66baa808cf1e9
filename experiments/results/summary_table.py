"""summary.parquet: summary.json as one wide row per scope, so that many runs stack into one table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from experiments.results.tables import Column, write_rows
from experiments.results.targets import all_met
from sim.records import STATUS_NAMES

METRICS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "E2E", "queue_s": "queue time"}
"""Metrics of a summary, and how to write them."""

_STATISTICS = ("mean", "std", "p50", "p90", "p95", "p99", "p99.9", "max")
_RATES = {
    "arrivals_per_s": "requests that arrived / s",
    "requests_per_s": "requests that finished / s",
    "input_tokens_per_s": "their prompt tokens / s",
    "output_tokens_per_s": "their output tokens / s",
    "goodput_per_s": "requests that met every target of their class that applies to one request / s; null if judged is 0",
    "attainment": "their share of those judged; null if that is 0",
}
_COSTS = {
    "gpu_hours": "GPU-hours billed",
    "dollars": "dollars billed; null without a price",
    "dollars_per_hour": "dollars / hours of the window",
    "dollars_per_1m_input_tokens": "all dollars / prompt tokens of finished requests",
    "dollars_per_1m_output_tokens": "all dollars / output tokens of finished requests",
    "dollars_per_1m_total_tokens": "all dollars / both",
}


def _metric_columns(metric: str, label: str) -> list[Column]:
    stem = metric.removesuffix("_s")
    return [
        Column(f"{stem}_n", pa.int64(), f"values of {label}"),
        Column(f"{stem}_missing", pa.int64(), f"requests without {label} because they were not served"),
        *(Column(_column(metric, name), pa.float64(), f"{name} of {label}") for name in _STATISTICS),
    ]


def _column(metric: str, statistic: str) -> str:
    """Column of a statistic.

    >>> _column("ttft_s", "p99.9")
    'ttft_p99_9_s'
    """
    return f"{metric.removesuffix('_s')}_{statistic.replace('.', '_')}_s"


COLUMNS = (
    Column("scope", pa.string(), "all, class or pool", False),
    Column("name", pa.string(), "of the class or pool; 'all'", False),
    Column("window_start_s", pa.float64(), "start of the measured window", False),
    Column("window_end_s", pa.float64(), "end of the measured window", False),
    Column("arrived", pa.int64(), "requests that arrived in the window", False),
    *(Column(name, pa.int64(), f"those that ended so: {name}", False) for name in STATUS_NAMES),
    Column("never_sent", pa.int64(), "requests of the whole run that their client held back to its end; null for a pool"),
    *(column for metric, label in METRICS.items() for column in _metric_columns(metric, label)),
    Column("judged", pa.int64(), "requests to which a target of their class applies, served or not; on ITL none does", False),
    *(Column(name, pa.float64(), meaning) for name, meaning in _RATES.items()),
    Column("cached_token_share", pa.float64(), "prompt tokens of finished requests from the prefix cache; null without one"),
    Column("num_preemptions", pa.int64(), "preemptions of the requests that arrived", False),
    *(Column(name, pa.float64(), meaning) for name, meaning in _COSTS.items()),
    Column("targets_met", pa.bool_(), "whether every target was met; null without targets, or while one was not measurable"),
)


def summary_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns one flat row per scope of a summary: keys are the names in COLUMNS."""
    scopes = [("all", "all", summary["all"])]
    scopes += [(kind, name, part) for kind in ("class", "pool") for name, part in summary[_PLURAL[kind]].items()]
    return [_row(summary, *scope) for scope in scopes]


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Writes summary.parquet."""
    write_rows(path, __doc__ or "", COLUMNS, summary_rows(summary))


_PLURAL = {"class": "classes", "pool": "pools"}
_PLAIN = ("judged", "num_preemptions", "cached_token_share")


def _row(summary: Mapping[str, Any], scope: str, name: str, part: Mapping[str, Any]) -> dict[str, Any]:
    row = {"scope": scope, "name": name, **{key: part[key] for key in _PLAIN}}
    row |= {"window_start_s": summary["window"]["start_s"], "window_end_s": summary["window"]["end_s"]}
    row |= {key: part["requests"][key] for key in ("arrived", *STATUS_NAMES, "never_sent")}
    for metric in METRICS:
        stem = metric.removesuffix("_s")
        row |= {f"{stem}_n": part[metric]["n"], f"{stem}_missing": part[metric]["missing"]}
        row |= {_column(metric, statistic): part[metric][statistic] for statistic in _STATISTICS}
    row |= {key: part[key] for key in _RATES}
    row |= {key: (part["cost"] or {}).get(key) for key in _COSTS}
    met = [target["met"] for target in summary["targets"] if scope == "all" or target["scope"] == name]
    row["targets_met"] = all_met(met) if scope != "pool" else None
    return row
