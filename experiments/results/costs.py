"""GPU-hours and dollars: every machine from the request for it to its release, starting and draining included."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from experiments.results.tables import Column, write_rows

Machine = Mapping[str, Any]

COLUMNS = (
    Column("id", pa.int64(), "number of the machine; `replica` in requests.parquet", False),
    Column("pool", pa.string(), "its pool", False),
    Column("num_gpus", pa.int64(), "GPUs it holds", False),
    Column("price_per_gpu_hour", pa.float64(), "dollars per GPU and hour; null without a price"),
    Column("requested_at_s", pa.float64(), "instant the autoscaler asked for it; billing starts", False),
    Column("provisioned_at_s", pa.float64(), "instant the machine was there"),
    Column("image_pulled_at_s", pa.float64(), "instant its container image was there"),
    Column("weights_loaded_at_s", pa.float64(), "instant the model's weights were in GPU memory"),
    Column("started_at_s", pa.float64(), "instant the engine had started"),
    Column("ready_at_s", pa.float64(), "instant it began to take requests"),
    Column("draining_at_s", pa.float64(), "instant it stopped taking requests"),
    Column("released_at_s", pa.float64(), "instant it was given back; billing ends. Null = held to the end of the run"),
    Column("reason", pa.string(), "why it was given back"),
    Column("num_evicted", pa.int64(), "requests taken off it at the drain timeout"),
    Column("gpu_hours", pa.float64(), "GPU-hours billed over the run", False),
    Column("dollars", pa.float64(), "their price"),
)


class Cost(NamedTuple):
    """What some machines cost over a window."""

    gpu_hours: float
    dollars: float  # NaN when a machine that was paid for has no price, or none was paid for


def cost(machines: Iterable[Machine], start_s: float, end_s: float) -> Cost:
    """Adds up lifetime x GPUs x price of each machine, as far as its lifetime lies in [start_s, end_s).

    >>> machine = {"num_gpus": 4, "price_per_gpu_hour": 2.5, "requested_at_s": 0.0, "released_at_s": None}
    >>> cost([machine], 1800.0, 5400.0)
    Cost(gpu_hours=4.0, dollars=10.0)
    >>> cost([], 0.0, 3600.0)
    Cost(gpu_hours=0, dollars=nan)
    """
    parts = [(billed_hours(machine, start_s, end_s), machine["price_per_gpu_hour"]) for machine in machines]
    gpu_hours = math.fsum(hours for hours, _ in parts) if parts else 0
    if gpu_hours == 0 or any(price is None for hours, price in parts if hours):
        return Cost(gpu_hours, math.nan)
    return Cost(gpu_hours, math.fsum(hours * price for hours, price in parts if hours))


def billed_hours(machine: Machine, start_s: float, end_s: float) -> float:
    """GPU-hours of one machine within [start_s, end_s)."""
    released_at_s = machine["released_at_s"]
    until_s = end_s if released_at_s is None else min(released_at_s, end_s)
    return float(max(0.0, until_s - max(machine["requested_at_s"], start_s)) * machine["num_gpus"] / 3600)


def write_replicas(path: Path, machines: Sequence[Machine], duration_s: float) -> None:
    """Writes replicas.parquet: every machine with the instant of each stage it reached."""
    rows = []
    for machine in machines:
        whole = cost([machine], 0.0, duration_s)
        rows.append({**machine, "gpu_hours": whole.gpu_hours, "dollars": whole.dollars})
    write_rows(path, "replicas.parquet: one row for every machine that was asked for, with its stages", COLUMNS, rows)


def per_million(dollars: float, num_tokens: float) -> float:
    """Dollars per 1M tokens; NaN without tokens.

    >>> round(per_million(10.0, 1000 * 3600), 2)
    2.78
    """
    return dollars / num_tokens * 1e6 if num_tokens else math.nan
