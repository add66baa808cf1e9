"""Made-up lines of served results, and files of them as indices."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.accuracy.lines import index_of


def row(rate: float, hf_model: str = "meta-llama/Llama-3.1-8B-Instruct", tp: int = 1, **changes: Any) -> dict[str, Any]:
    """A line of served results, without latencies."""
    plain: dict[str, Any] = {
        "group": "made-up", "engine": "vllm", "engine_version": "0.15.0", "model": hf_model, "dtype": "bf16",
        "gpu": "H100 SXM 80GB", "n_gpu": tp, "tp": tp, "workload": "chat", "arrival": "constant", "rate": rate,
        "in_len": {"mean": 500}, "out_len": {"requested": 40}, "num_prompts": 60, "ttft_ms": {"mean": 1.0}, "tpot_ms": None,
        "itl_ms": None, "e2e_ms": None, "throughput_req_s": rate, "server_args": {"max_num_seqs": 128}, "quality": "A",
    }  # fmt: skip
    return plain | changes


def write_indices(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Writes what the product reads of such lines: an index of each."""
    path.write_text("".join(json.dumps(index_of(one)) + "\n" for one in rows))
    return path
