"""Reads kernel tables in aiconfigurator's form: which share of a GPU's peaks its kernels reach, one by one."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from replicas.catalog import Gpu
from replicas.memory import BF16_BYTES

WEIGHTS = (4096, 16384)
"""Rows and columns of the matrices that count: those of models of 7B and more, on one GPU or a few."""

FEW, MANY = (1, 64), (512, 4096)
"""Tokens of steps that only decode, where reading the weights is all, and of prefills, where arithmetic is."""

DECODES = (8, 64)
"""Requests of a batch that decodes, and their contexts below: what chat serves."""

CONTEXTS = (512, 4096)

HEADS, HEAD_DIM = (32, 8), 128
"""Attention that is looked at: that of 8B models, query and key-value heads."""


Floats = NDArray[np.float64]


class KernelEfficiencies(NamedTuple):
    """Medians over the kernels of a table, without what is between them."""

    flops_efficiency: float
    bandwidth_efficiency: float  # of the weights
    kv_bandwidth_efficiency: float


class KernelError(ValueError):
    """A table is missing or wrong; the message names it."""


def read_efficiencies(folder: str | Path, gpu: Gpu) -> KernelEfficiencies:
    """Reads the newest tables of one system: `gemm/vllm/VERSION/` and `attention/vllm/VERSION/`, latencies in ms.

    Kernels that read more than the peak bandwidth allows, because what they read was in the L2 cache, do not count.

    Args:
        folder: that of a system, such as `data/h100_sxm`.
        gpu: its peaks.

    Raises:
        KernelError: a table is missing, has no bf16 kernels of these shapes, or lacks a column.
    """
    gemm = newest(Path(folder), "gemm", "gemm_perf.parquet", ("gemm_dtype", "m", "n", "k", "latency"))
    gemm = gemm[(gemm["gemm_dtype"] == "bfloat16") & gemm["n"].between(*WEIGHTS) & gemm["k"].between(*WEIGHTS)]
    seconds = gemm["latency"].to_numpy(np.float64) / 1e3
    products = gemm["n"].to_numpy(np.float64) * gemm["k"].to_numpy(np.float64)
    reading, computing = gemm["m"].between(*FEW).to_numpy(), gemm["m"].between(*MANY).to_numpy()
    flops = 2 * gemm["m"].to_numpy(np.float64) * products / seconds / gpu.bf16_flops_per_s
    weights = BF16_BYTES * products / seconds / gpu.bytes_per_s
    return KernelEfficiencies(
        flops_efficiency=_median(flops[computing], f"{folder}: GEMM"),
        bandwidth_efficiency=_median(weights[reading], f"{folder}: GEMM"),
        kv_bandwidth_efficiency=_median(_kv(Path(folder), gpu), f"{folder}: attention of decodes"),
    )


def _kv(folder: Path, gpu: Gpu) -> Floats:
    """Shares of the peak bandwidth at which decodes read their KV."""
    columns = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "step", "latency")
    table = newest(folder, "attention", "generation_attention_perf.parquet", columns)
    if "window_size" in table:
        table = table[table["window_size"] == 0]
    context = table["step"] + 1
    is_8b = (table["num_heads"] == HEADS[0]) & (table["num_key_value_heads"] == HEADS[1]) & (table["head_dim"] == HEAD_DIM)
    is_chat = table["batch_size"].between(*DECODES) & context.between(*CONTEXTS)
    table = table[is_8b & is_chat & (table["kv_cache_dtype"] == "bfloat16")]
    element_bytes = 2 * table["num_key_value_heads"] * table["head_dim"] * BF16_BYTES
    read = (table["batch_size"] * (table["step"] + 1) * element_bytes).to_numpy(np.float64)
    return np.asarray(read / (table["latency"].to_numpy(np.float64) / 1e3) / gpu.bytes_per_s)


def newest(folder: Path, kind: str, name: str, columns: tuple[str, ...]) -> pd.DataFrame:
    """Returns the table of the engine's newest version.

    Raises:
        KernelError: there is none, or it lacks one of `columns`.
    """
    path = newest_path(folder, kind, name)
    table = pd.read_parquet(path)
    missing = [column for column in columns if column not in table]
    if missing:
        raise KernelError(f"{path}: no column {missing[0]}; needed are {', '.join(columns)}")
    return table


def newest_path(folder: Path, kind: str, name: str) -> Path:
    """Returns where it lies.

    Raises:
        KernelError: there is none.
    """
    found = sorted((folder / kind / "vllm").glob(f"*/{name}"), key=lambda path: _version(path.parent.name))
    if not found:
        raise KernelError(f"{folder}: no {kind}/vllm/VERSION/{name}")
    return found[-1]


def _version(text: str) -> tuple[int, ...]:
    """Numbers to sort versions by.

    >>> sorted(["0.14.0", "0.9.1", "0.24.0"], key=_version)
    ['0.9.1', '0.14.0', '0.24.0']
    """
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _median(shares: Floats, what: str) -> float:
    possible = shares[shares < 1]
    if not possible.size:
        raise KernelError(f"{what}: no bf16 kernel of the shapes that count")
    return float(np.median(possible))
