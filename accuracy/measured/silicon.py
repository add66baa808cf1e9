"""Reads aiconfigurator's table of closed loops, as far as the load generator is known that made them: InferenceMAX's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from accuracy.errors import Measures
from accuracy.measured.names import DTYPES, model_of
from accuracy.measured.results import Served
from replicas.catalog import gpus
from sim.errors import TraceError

PROMPTS_PER_SLOT = 10
"""Requests of a closed loop over its concurrency. Source: InferenceMAX's scripts."""

INFERENCEMAX = {"max_num_batched_tokens": 8192, "enable_prefix_caching": False, "async_scheduling": True,
                "gpu_memory_utilization": 0.9}  # fmt: skip
"""How InferenceMAX served Llama 3.1 70B in fp8 in October 2025.

Source: benchmarks/70b_fp8_h100_docker.sh, 70b_fp8_h200_slurm.sh and 70b_fp8_b200_docker.sh of SemiAnalysisAI/InferenceX on
GitHub."""

B200_MAX_NUM_SEQS = 512
"""On B200s; elsewhere max_num_seqs was the concurrency. Source: the same."""

KV_CACHE_DTYPES = {"b200-sxm": "fp8", "h200-sxm": "fp8", "h100-sxm": "auto"}
"""Its scripts have both for the H100, at different times; which it was, the results say: fitted as fp8 they read KV at 37 % of
the peak, where fp8 kernels reach 65 %, and as 16 bit at 75 %, where kernels reach 80 % (aiconfigurator's tables)."""

INFERENCEMAX_SHARE = 0.8
"""Its requests' lengths are uniform between this share of the nominal ones and those. Source: random-range-ratio 0.8 in its
workflows, and `sample_random_requests` of its benchmark_serving.py."""


AGGREGATED = "agg"
"""The mode of engines that prefill and decode; in others there are engines for each."""


def read_silicon(path: Path) -> list[Served]:
    """Reads closed loops in the form of aiconfigurator's silicon_sample.csv; those of engines that only prefill or decode have
    a problem.

    Raises:
        TraceError: no such file, or a column is missing.
    """
    try:
        table = pd.read_csv(path, low_memory=False)
        return [_silicon(row) for row in table.to_dict("records")]
    except (OSError, KeyError, ValueError) as error:
        raise TraceError(f"{path}: is no table of served results ({type(error).__name__}: {error})") from error


def _silicon(row: Mapping[Any, Any]) -> Served:
    name = str(row["model_path"]).split("/")[-1]
    model, gpu = model_of(name), str(row["system"]).replace("_", "-")
    sizes = [int(row[key]) if row[key] == row[key] else 1 for key in ("isl", "osl", "batch_size", "tp_size")]
    mode = str(row["mode"])
    dtype, version = str(row["gemm_quant_mode"]).replace("nan", "bfloat16"), row["backend_version"]
    problems = {
        f"mode {mode}, not agg: prefill and decode have engines of their own": mode != AGGREGATED,
        f"engine {row['backend']}, not vllm": row["backend"] != "vllm",
        f"model {name} is not in the catalogue": not model,
        f"GPU {gpu} is not in the catalogue": gpu not in gpus(),
        f"{dtype} weights": dtype not in ("fp8", "bfloat16"),
        "pipeline parallelism": row["pp_size"] > 1,
        "load generator and engine arguments are not known": "gap-analysis" in str(row["silicon_data_source"])
        or gpu not in KV_CACHE_DTYPES,
    }
    times = {("ttft_s", "mean"): row["silicon_ttft_ms"] / 1e3}
    if sizes[1] > 1:  # an answer of one token has no gap
        num_gaps = (1 + INFERENCEMAX_SHARE) / 2 * sizes[1] - 1  # on average
        times["tpot_s", "mean"] = row["silicon_tpot_ms"] / 1e3
        times["e2e_s", "mean"] = times["ttft_s", "mean"] + times["tpot_s", "mean"] * num_gaps
    layout = f"tp{sizes[3]}" if mode == AGGREGATED else mode
    return Served(
        name=f"silicon/{gpu}/{name}/{layout}/{sizes[0]}-{sizes[1]}/c{sizes[2]}",
        group="silicon",
        model=model,
        gpu=gpu,
        tensor_parallel_size=sizes[3],
        quantization=DTYPES.get(dtype),
        engine_version=str(version) if version == version else "",
        rate_per_s=0.0,
        num_requests=PROMPTS_PER_SLOT * sizes[2],
        num_prompt_tokens=sizes[0],
        num_output_tokens=sizes[1],
        is_even=True,
        shares_prompts=False,
        arguments={
            **INFERENCEMAX,
            "max_num_seqs": B200_MAX_NUM_SEQS if gpu == "b200-sxm" else sizes[2],
            "kv_cache_dtype": KV_CACHE_DTYPES.get(gpu, "auto"),
        },
        real=Measures(statistics=times),
        max_concurrency=sizes[2],
        shortest_share=INFERENCEMAX_SHARE,
        problem=next((problem for problem, is_so in problems.items() if is_so), ""),
    )
