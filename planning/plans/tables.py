"""The tables of a plan's result folder: every column with its unit and meaning."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from experiments.results.tables import Column, write_rows

_TEXT, _WHOLE, _REAL = pa.string(), pa.int64(), pa.float64()

COLUMNS: dict[str, tuple[str, tuple[Column, ...]]] = {
    "layouts": (
        "one row for each way to split the model over each GPU",
        (
            Column("gpu", _TEXT, "the GPU", False),
            Column("tensor_parallel_size", _WHOLE, "GPUs that share every layer", False),
            Column("num_stages", _WHOLE, "stages of a pipeline", False),
            Column("expert_parallel_size", _WHOLE, "GPUs of a group that shares experts; 1 = no group", False),
            Column("num_gpus", _WHOLE, "GPUs of an instance", False),
            Column("problem", _TEXT, "why it cannot run; empty if it can", False),
            Column("memory_batch", _WHOLE, "requests that the KV cache holds", False),
            Column("tpot_batch", _WHOLE, "requests within the TPOT target", False),
            Column("batch", _WHOLE, "requests of a full step", False),
            Column("binding", _TEXT, "what keeps the batch from being larger", False),
            Column("step_s", _REAL, "seconds of a full step"),
            Column("tokens_per_s", _REAL, "output tokens/s of an instance"),
            Column("tokens_per_s_per_gpu", _REAL, "output tokens/s of each GPU"),
            Column("tokens_per_s_per_user", _REAL, "output tokens/s of each user at a full batch"),
            Column("alone_s", _REAL, "seconds of a step with one request"),
        ),
    ),
    "pools": (
        "one row for each pool of each GPU and arrangement",
        (
            Column("gpu", _TEXT, "the GPU", False),
            Column("arrangement", _TEXT, "separate or shared pools", False),
            Column("is_chosen", pa.bool_(), "whether it is part of the plan", False),
            Column("sized_by", _TEXT, "closed form, or the simulation that says how many there must be", False),
            Column("role", _TEXT, "prefill, decode or shared", False),
            Column("layout", _TEXT, "the instance's parallelism", False),
            Column("num_instances", _WHOLE, "instances, spares included", False),
            Column("num_spare", _WHOLE, "of those, spares", False),
            Column("num_gpus", _WHOLE, "GPUs of the pool", False),
            Column("unit", _TEXT, "unit of load and capacity", False),
            Column("load", _REAL, "asked of the pool at the peak", False),
            Column("capacity", _REAL, "of one instance", False),
            Column("binding", _TEXT, "what binds an instance", False),
            Column("utilization", _REAL, "share of the pool's capacity at the peak", False),
            Column("utilization_less_one", _REAL, "the same with one instance lost; null = nothing is left"),
            Column("dollars_per_hour", _REAL, "price of the pool", False),
        ),
    ),
    "day": (
        "one row for each hour",
        (
            Column("hour", _WHOLE, "hour of the traffic", False),
            Column("demand_per_s", _REAL, "mean requests/s", False),
            Column("peak_per_s", _REAL, "highest requests/s of an interval", False),
            Column("fixed_gpus", _REAL, "GPUs billed, sized for the peak", False),
            Column("reactive_gpus", _REAL, "GPUs billed, mean, following the load", False),
            Column("forecast_gpus", _REAL, "GPUs billed, mean, one cold start ahead of the load", False),
        ),
    ),
    "policies": (
        "one row for each autoscaling policy over the day",
        (
            Column("policy", _TEXT, "fixed, reactive or forecast", False),
            Column("gpu_hours_per_day", _REAL, "GPU-hours billed in 24 h", False),
            Column("dollars_per_day", _REAL, "their price", False),
            Column("per_million", _REAL, "dollars per million tokens, prompt and output", False),
            Column("utilization", _REAL, "mean share of the capacity that is paid for", False),
            Column("short_s_per_day", _REAL, "seconds a day with more demand than ready capacity", False),
            Column("tight_s_per_day", _REAL, "seconds a day with less headroom than planned", False),
        ),
    ),
    "sensitivity": (
        "one row for each thing that could be different",
        (
            Column("change", _TEXT, "what is different", False),
            Column("instances", _TEXT, "instances of each pool", False),
            Column("num_gpus", _WHOLE, "GPUs"),
            Column("difference", _WHOLE, "GPUs more than the plan"),
        ),
    ),
    "verification": (
        "one row for each number that closed form and simulation both give",
        (
            Column("quantity", _TEXT, "what", False),
            Column("closed_form", _REAL, "as planned"),
            Column("simulated", _REAL, "mean over the seeds"),
            Column("half_width", _REAL, "half width of its confidence interval"),
            Column("gap", _REAL, "simulated over closed form, less 1"),
            Column("verdict", _TEXT, "which bound was wrong, if one was", False),
        ),
    ),
    "search": (
        "one row for each number of replicas that was tried",
        (
            Column("gpu", _TEXT, "the GPU", False),
            Column("layout", _TEXT, "the replica's parallelism", False),
            Column("num_replicas", _WHOLE, "replicas at work, without spares", False),
            Column("num_gpus", _WHOLE, "their GPUs", False),
            Column("is_enough", pa.bool_(), "whether all targets were met with the stated confidence", False),
            Column("why", _TEXT, "the target that decided", False),
            Column("num_seeds", _WHOLE, "seeds that it took to decide", False),
        ),
    ),
}


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Writes one table of the folder; a key that is no column is a mistake of ours."""
    title, columns = COLUMNS[name]
    names = [column.name for column in columns]
    unknown = {key for row in rows for key in row} - set(names)
    assert not unknown, unknown
    write_rows(folder / f"{name}.parquet", f"{name}.parquet: {title}", columns, rows)
