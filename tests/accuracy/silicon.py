"""aiconfigurator's table of closed loops as indices, as far as the load generator is known that made them: InferenceMAX's."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from accuracy.measured.names import model_of
from replicas.catalog import gpus

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


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yields an index of each row of silicon_sample.csv; those of engines that only prefill or decode have a problem."""
    for row in pd.read_csv(path, low_memory=False).to_dict("records"):
        yield _index_of(row)


def _index_of(row: Mapping[Any, Any]) -> dict[str, Any]:
    name = str(row["model_path"]).split("/")[-1]
    gpu = str(row["system"]).replace("_", "-")
    prompt, output, limit, tp = [
        int(row[key]) if row[key] == row[key] else 1 for key in ("isl", "osl", "batch_size", "tp_size")
    ]
    mode = str(row["mode"])
    dtype, version = str(row["gemm_quant_mode"]).replace("nan", "bfloat16"), row["backend_version"]
    problems = {
        f"mode {mode}, not agg: prefill and decode have engines of their own": mode != AGGREGATED,
        f"engine {row['backend']}, not vllm": row["backend"] != "vllm",
        f"model {name} is not in the catalogue": not model_of(name),
        f"GPU {gpu} is not in the catalogue": gpu not in gpus(),
        f"{dtype} weights": dtype not in ("fp8", "bfloat16"),
        "pipeline parallelism": row["pp_size"] > 1,
        "load generator and engine arguments are not known": "gap-analysis" in str(row["silicon_data_source"])
        or gpu not in KV_CACHE_DTYPES,
    }
    return {
        "about": {
            "model": name,
            "gpu": gpu,
            "tp": tp,
            "engine_version": str(version) if version == version else "",
            "dtype": dtype,
            "server_args": {
                **INFERENCEMAX,
                "max_num_seqs": B200_MAX_NUM_SEQS if gpu == "b200-sxm" else limit,
                "kv_cache_dtype": KV_CACHE_DTYPES.get(gpu, "auto"),
            },
            "group": "silicon",
        },
        "reports": [
            {
                "name": f"silicon/{gpu}/{name}/{f'tp{tp}' if mode == AGGREGATED else mode}/{prompt}-{output}/c{limit}",
                "arrival": "all at once",
                "max_concurrency": limit,
                "num_requests": PROMPTS_PER_SLOT * limit,
                "prompt_tokens": prompt,
                "output_tokens": output,
                "shortest_share": INFERENCEMAX_SHARE,
                "problem": next((problem for problem, is_so in problems.items() if is_so), ""),
                "measured": _measured(row, output),
            }
        ],
    }


def _measured(row: Mapping[Any, Any], num_output_tokens: int) -> dict[str, dict[str, float]]:
    """Means in seconds. E2E is not published: it is TTFT and the mean answer's TPOT."""
    ttft_s, tpot_s = row["silicon_ttft_ms"] / 1e3, row["silicon_tpot_ms"] / 1e3
    if num_output_tokens == 1:  # an answer of one token has no gap
        return {"ttft_s": {"mean": ttft_s}}
    num_gaps = (1 + INFERENCEMAX_SHARE) / 2 * num_output_tokens - 1  # on average
    return {"ttft_s": {"mean": ttft_s}, "tpot_s": {"mean": tpot_s}, "e2e_s": {"mean": ttft_s + tpot_s * num_gaps}}
