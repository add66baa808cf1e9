"""Reads what single kernels of a GPU take from tables in aiconfigurator's form."""

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from replicas.calibration.aiconfigurator import HEAD_DIM, KernelError, LeftOut, kept, newest, newest_path
from replicas.calibration.kernel_times import AllReduceTimes, AttentionTimes, GemmTimes, KernelTimes
from replicas.memory import BF16_BYTES

LAYER_WEIGHTS = (4e6, 1e9)
"""Rows times columns of the matrices of which a law of GEMMs is made, and the least of either: those of the layers of models of
7B to 400B, on one GPU or eight."""

LEAST_SIDE = 1024

MOST_ROWS = 5000
"""Up to there GEMMs were measured at whole tiles and one row more, beyond at powers of two only: at their best."""

CLOSE = 0.02
"""A number of rows is left out where a line between its neighbours is as close, and relative errors count fully up to there."""

BATCHES, LENGTHS, QUERIES_PER_KV = (4, 64), (500, 8200), (4, 8)
"""Attention of which a law is made: requests and contexts of decodes (prompts: of one to eight requests), and heads."""

Floats = NDArray[np.float64]


DTYPES = ("bfloat16", "fp8")
"""Of matrices and of KV, of which laws are made."""


def read_kernel_times(
    folder: str | Path, all_reduces: str | Path | None = None, left_out: LeftOut | None = None
) -> KernelTimes:
    """Reads what kernels of one system take, in the few numbers of `KernelTimes`.

    GEMMs: for each number of rows a line over rows times columns of the matrix, fitted to relative errors, robustly. Beyond
    MOST_ROWS they take time in proportion, from the mean of a whole tile and of one row more. Attention: lines over the KV that
    decodes read, and over the arithmetic of prompts, of heads 128 wide without a window.

    Args:
        folder: that of a system, such as `data/h100_sxm`; its newest `gemm/vllm/` and `attention/vllm/` are read.
        all_reduces: folder of one `custom_allreduce_perf.parquet`, in CUDA graphs where it has both.
        left_out: to count in it the rows that are not used, by table and why.

    Raises:
        KernelError: a table is missing, lacks a column, or has no kernels of these shapes.
    """
    folder = Path(folder)
    gemm = newest(folder, "gemm", "gemm_perf.parquet", ("gemm_dtype", "m", "n", "k", "latency"))
    heads = ("num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "batch_size", "latency")
    decodes = newest(folder, "attention", "generation_attention_perf.parquet", (*heads, "step"))
    prompts = newest(folder, "attention", "context_attention_perf.parquet", (*heads, "isl"))
    left_out = LeftOut() if left_out is None else left_out
    gemm = kept(gemm, gemm["gemm_dtype"].isin(DTYPES), f"GEMM: neither in {' nor in '.join(DTYPES)}", left_out)
    decodes, prompts = (_usual(table, what, left_out) for table, what in ((decodes, "decodes"), (prompts, "prompts")))
    dtypes = [dtype for dtype in DTYPES if (gemm["gemm_dtype"] == dtype).any()]
    caches = [dtype for dtype in DTYPES if (decodes["kv_cache_dtype"] == dtype).any()]
    return KernelTimes(
        source=f"aiconfigurator, {' and '.join(sorted({*_versions(folder), *_name(all_reduces)}))}",
        gemm={
            dtype: _gemm_times(gemm[gemm["gemm_dtype"] == dtype], f"{folder}: GEMM in {dtype}", left_out) for dtype in dtypes
        },
        attention={dtype: _attention_times(decodes, prompts, dtype, str(folder), left_out) for dtype in caches},
        all_reduce=None if all_reduces is None else read_all_reduces(Path(all_reduces), left_out),
    )


def _gemm_times(table: pd.DataFrame, what: str, left_out: LeftOut) -> GemmTimes:
    is_of_a_layer = (table["n"] * table["k"]).between(*LAYER_WEIGHTS) & (table[["n", "k"]].min(axis=1) >= LEAST_SIDE)
    table = kept(table, is_of_a_layer, "GEMM: matrices of other sizes", left_out)
    table = kept(table, table["m"] <= MOST_ROWS, f"GEMM: more than {MOST_ROWS:,} rows", left_out)
    if table["m"].nunique() < 3:
        raise KernelError(f"{what}: no kernels of the shapes that count")
    laws = np.array(
        [(m, *_line((one["n"] * one["k"]).to_numpy(np.float64), one["latency"])) for m, one in table.groupby("m", sort=True)]
    )
    last = laws[-2:].mean(axis=0) if laws[-1, 0] == laws[-2, 0] + 1 else laws[-1]
    laws = np.vstack([laws[: -2 if laws[-1, 0] == laws[-2, 0] + 1 else -1], last, 2 * last])
    rows, s, s_per_weight = laws[_knots(laws)].T
    return GemmTimes(rows=rows.tolist(), s=np.maximum(s, 0).tolist(), s_per_weight=s_per_weight.tolist())


def _knots(laws: Floats) -> list[int]:
    """Which rows are kept: from each the furthest that leaves all between them CLOSE to a line, by a large matrix's time."""
    rows, seconds = laws[:, 0], laws[:, 1] + laws[:, 2] * 1e8
    kept = [0]
    while kept[-1] < len(rows) - 1:
        first = kept[-1]
        reach = [
            last
            for last in range(first + 1, len(rows))
            if np.allclose(
                np.interp(rows[first : last + 1], rows[[first, last]], seconds[[first, last]]),
                seconds[first : last + 1],
                rtol=CLOSE,
                atol=0,
            )
        ]
        kept.append(max(reach))
    return kept


def _attention_times(decodes: pd.DataFrame, prompts: pd.DataFrame, dtype: str, what: str, left_out: LeftOut) -> AttentionTimes:
    element_bytes = 1 if dtype == "fp8" else BF16_BYTES
    decodes, prompts = (table[table["kv_cache_dtype"] == dtype] for table in (decodes, prompts))
    is_chat = decodes["batch_size"].between(*BATCHES) & decodes["step"].between(*LENGTHS)
    decodes = kept(decodes, is_chat, "decodes: other batches or contexts", left_out)
    is_chat = (prompts["batch_size"] <= 8) & prompts["isl"].between(*LENGTHS)
    prompts = kept(prompts, is_chat, "prompts: other batches or lengths", left_out)
    if len(decodes) < 3 or len(prompts) < 3:
        raise KernelError(f"{what}: no attention with KV in {dtype} of the shapes that count")
    kv = decodes["batch_size"] * (decodes["step"] + 1) * 2 * decodes["num_key_value_heads"] * HEAD_DIM * element_bytes
    flops = 4 * prompts["num_heads"] * HEAD_DIM * prompts["batch_size"] * prompts["isl"].astype(float) ** 2 / 2
    decode_s, s_per_byte = _line(kv.to_numpy(np.float64), decodes["latency"])
    prompt_s, s_per_flop = _line(flops.to_numpy(np.float64), prompts["latency"])
    rates = {"kv_bytes_per_s": float(f"{1 / s_per_byte:.5g}"), "flops_per_s": float(f"{1 / s_per_flop:.5g}")}
    return AttentionTimes(decode_s=decode_s, prompt_s=prompt_s, **rates)


def _usual(table: pd.DataFrame, what: str, left_out: LeftOut) -> pd.DataFrame:
    if "window_size" in table:
        table = kept(table, table["window_size"] == 0, f"{what}: with a window", left_out)
    table = kept(table, table["kv_cache_dtype"].isin(DTYPES), f"{what}: KV neither in {' nor in '.join(DTYPES)}", left_out)
    shared = table["num_heads"] / table["num_key_value_heads"]
    return kept(table, shared.between(*QUERIES_PER_KV) & (table["head_dim"] == HEAD_DIM), f"{what}: other heads", left_out)


def read_all_reduces(folder: Path, left_out: LeftOut | None = None) -> AllReduceTimes:
    """Reads `custom_allreduce_perf.parquet`, in CUDA graphs where it has both.

    Raises:
        KernelError: the table is missing, or lacks a column.
    """
    left_out = LeftOut() if left_out is None else left_out
    path = folder / "custom_allreduce_perf.parquet"
    if not path.exists():
        raise KernelError(f"{path}: no such file")
    table = pd.read_parquet(path)
    missing = [column for column in ("num_gpus", "message_size", "latency") if column not in table]
    if missing:
        raise KernelError(f"{path}: no column {missing[0]}")
    if "backend" in table:
        table = kept(table, table["backend"].str.endswith("_graph"), "all-reduces: not in a CUDA graph", left_out)
    by_size = table.pivot_table(index="message_size", columns="num_gpus", values="latency")
    is_whole = table["message_size"].isin(by_size.dropna().index)
    kept(table, is_whole, "all-reduces: sizes not measured between each number of GPUs", left_out)
    table = by_size.dropna()
    sizes = [float(BF16_BYTES * one) for one in table.index]
    num_gpus = table.columns.astype(int).tolist()
    return AllReduceTimes(message_bytes=sizes, num_gpus=num_gpus, s=(table.T.to_numpy(np.float64) / 1e3).tolist())


def _line(x: Floats, latency_ms: "pd.Series[float]") -> tuple[float, float]:
    """Returns (constant, slope) in seconds of the line with the least sum of absolute relative errors, below CLOSE squared."""
    seconds = latency_ms.to_numpy(np.float64) / 1e3
    terms, weights = np.column_stack([np.ones(len(x)), x]), 1 / seconds
    for _ in range(30):
        found = np.linalg.lstsq(terms * weights[:, None], seconds * weights, rcond=None)[0]
        weights = 1 / seconds / np.sqrt(np.maximum(np.abs(terms @ found / seconds - 1), CLOSE))
    return max(0.0, float(found[0])), float(found[1])


def _versions(folder: Path) -> list[str]:
    tables = (("gemm", "gemm_perf.parquet"), ("attention", "generation_attention_perf.parquet"))
    return [f"kernels of vllm {newest_path(folder, *one).parent.name}" for one in tables]


def _name(all_reduces: str | Path | None) -> list[str]:
    return [] if all_reduces is None else [f"all-reduces of {'/'.join(Path(all_reduces).parts[-4:])}"]
