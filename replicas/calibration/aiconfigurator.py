"""Reads kernel tables in aiconfigurator's form: which share of a GPU's peaks its kernels reach, one by one."""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

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


LeftOut = Counter[str]
"""Rows of tables that are left out, by the table and why."""


def kept(table: pd.DataFrame, is_kept: Any, why: str, left_out: LeftOut) -> pd.DataFrame:
    """Returns the rows of a table that are kept, and counts the others in `left_out`."""
    num_left_out = len(table) - int(np.sum(is_kept))
    if num_left_out:
        left_out[why] += num_left_out
    return table[is_kept]


def read_efficiencies(folder: str | Path, gpu: Gpu, left_out: LeftOut | None = None) -> KernelEfficiencies:
    """Reads the newest tables of one system: `gemm/vllm/VERSION/` and `attention/vllm/VERSION/`, latencies in ms.

    Kernels that read more than the peak bandwidth allows, because what they read was in the L2 cache, do not count.

    Args:
        folder: that of a system, such as `data/h100_sxm`.
        gpu: its peaks.
        left_out: to count in it the rows that are not used, by table and why.

    Raises:
        KernelError: a table is missing, has no bf16 kernels of these shapes, or lacks a column.
    """
    gemm = newest(Path(folder), "gemm", "gemm_perf.parquet", ("gemm_dtype", "m", "n", "k", "latency"))
    left_out = LeftOut() if left_out is None else left_out
    gemm = kept(gemm, gemm["gemm_dtype"] == "bfloat16", "GEMM: not in bfloat16", left_out)
    gemm = kept(gemm, gemm["n"].between(*WEIGHTS) & gemm["k"].between(*WEIGHTS), "GEMM: matrices of other sizes", left_out)
    gemm = kept(gemm, gemm["m"].between(*FEW) | gemm["m"].between(*MANY), "GEMM: other numbers of tokens", left_out)
    seconds = gemm["latency"].to_numpy(np.float64) / 1e3
    products = gemm["n"].to_numpy(np.float64) * gemm["k"].to_numpy(np.float64)
    reading, computing = gemm["m"].between(*FEW).to_numpy(), gemm["m"].between(*MANY).to_numpy()
    flops = 2 * gemm["m"].to_numpy(np.float64) * products / seconds / gpu.bf16_flops_per_s
    weights = BF16_BYTES * products / seconds / gpu.bytes_per_s
    return KernelEfficiencies(
        flops_efficiency=_median(flops[computing], f"{folder}: GEMM", left_out),
        bandwidth_efficiency=_median(weights[reading], f"{folder}: GEMM", left_out),
        kv_bandwidth_efficiency=_median(_kv(Path(folder), gpu, left_out), f"{folder}: attention of decodes", left_out),
    )


def _kv(folder: Path, gpu: Gpu, left_out: LeftOut) -> Floats:
    """Shares of the peak bandwidth at which decodes read their KV."""
    columns = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "step", "latency")
    table = newest(folder, "attention", "generation_attention_perf.parquet", columns)
    if "window_size" in table:
        table = kept(table, table["window_size"] == 0, "decodes: with a window", left_out)
    table = kept(table, table["kv_cache_dtype"] == "bfloat16", "decodes: KV not in bfloat16", left_out)
    is_8b = (table["num_heads"] == HEADS[0]) & (table["num_key_value_heads"] == HEADS[1]) & (table["head_dim"] == HEAD_DIM)
    table = kept(table, is_8b, "decodes: other heads", left_out)
    is_chat = table["batch_size"].between(*DECODES) & (table["step"] + 1).between(*CONTEXTS)
    table = kept(table, is_chat, "decodes: other batches or contexts", left_out)
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


def _median(shares: Floats, what: str, left_out: LeftOut) -> float:
    possible = shares[shares < 1]
    if len(possible) < len(shares):
        left_out["faster than the peak: what they read was in a cache"] += len(shares) - len(possible)
    if not possible.size:
        raise KernelError(f"{what}: no bf16 kernel of the shapes that count")
    return float(np.median(possible))
