"""Closed loops of aiconfigurator's table: what is known of how InferenceMAX sent them, and what is left out."""

import json
from pathlib import Path

import pytest
import yaml

from accuracy.measured.rows import read_served
from experiments import run
from tests.unit.replicas.calibration.test_gpu_calibration import of_a_gpu, write_gpu

READER = "tests.accuracy.silicon:read"

COLUMNS = (
    "silicon_data_source,mode,model_path,isl,osl,batch_size,tp_size,pp_size,system,backend,backend_version,gemm_quant_mode"
)


def test_closed_loops_are_read(tmp_path: Path) -> None:
    rows = [
        f"{COLUMNS},silicon_ttft_ms,silicon_tpot_ms",
        "2026.csv,agg,meta-llama/Llama-3.1-70B,1000,100,4,4,1,h100_sxm,vllm,,fp8,80,12",
        "2026.csv,disagg,x,1,1,1,1,1,h100_sxm,vllm,,fp8,1,1",
        "2026.csv,agg,x/Qwen3-32B,1024,1024,8,2,1,h100_sxm,trtllm,1.0,fp8,50,9",
        "gap-analysis/x.csv,agg,x/Qwen3-32B,1024,1024,8,2,1,h100_sxm,vllm,0.12,,50,9",
    ]
    (tmp_path / "silicon.csv").write_text("\n".join(rows) + "\n")
    one, apart, other, unknown = read_served(tmp_path / "silicon.csv", READER)
    assert apart.problem == "mode disagg, not agg: prefill and decode have engines of their own"
    assert (one.name, one.max_concurrency, one.problem) == ("silicon/h100-sxm/Llama-3.1-70B/tp4/1000-100/c4", 4, "")
    assert (one.num_requests, one.arguments["max_num_seqs"], one.arguments["kv_cache_dtype"]) == (40, 4, "auto")
    assert one.real.value("tpot_s", "mean") == 0.012
    assert one.real.value("e2e_s", "mean") == pytest.approx(0.080 + 0.012 * 89)  # 80 to 100 tokens, 90 on average
    assert other.problem == "engine trtllm, not vllm"
    assert unknown.problem == "load generator and engine arguments are not known"


def test_every_row_of_a_file_is_simulated_or_counted_with_the_reason(tmp_path: Path) -> None:
    """Rows of disaggregated serving, and those that the config does not name, were dropped without a word."""
    rows = [
        f"{COLUMNS},silicon_ttft_ms,silicon_tpot_ms",
        "2026.csv,agg,meta-llama/Llama-3.1-70B,1000,100,4,4,1,h100_sxm,vllm,,fp8,80,12",
        "2026.csv,agg,meta-llama/Llama-3.1-70B,1000,100,8,4,1,h100_sxm,vllm,,fp8,90,13",
        "2026.csv,agg,meta-llama/Llama-3.1-70B,1000,100,16,4,1,h100_sxm,vllm,,fp8,90,13",
        *["2026.csv,disagg,meta-llama/Llama-3.1-70B,1000,100,,,,h100_sxm,vllm,,fp8,80,12"] * 3,
        "2026.csv,agg,x/Qwen3-32B,1024,1024,8,2,1,h100_sxm,trtllm,1.0,fp8,50,9",
    ]
    (tmp_path / "silicon.csv").write_text("\n".join(rows) + "\n")
    write_gpu(of_a_gpu(), tmp_path / "gpu.yaml")
    config = {
        "kind": "validate",
        "recordings": str(tmp_path / "silicon.csv"),
        "reader": READER,
        "include": ["*/c4", "*/c8", "*/c*4"],
        "exclude": ["*/c8"],
        "calibration": str(tmp_path / "gpu.yaml"),
        "step_time_change": None,
    }
    (tmp_path / "against.yaml").write_text(yaml.safe_dump(config))
    folder = run(tmp_path / "against.yaml", out=tmp_path, progress=False).folder
    page, manifest = (folder / "report.md").read_text(), json.loads((folder / "manifest.json").read_text())
    apart = "mode disagg, not agg: prefill and decode have engines of their own"
    assert manifest["counts"]["results"] == 1
    assert manifest["left_out"] == {"excluded by the config": 2}  # c8, and TensorRT-LLM's
    assert manifest["not_included"] == {"that could be simulated": 1, apart: 3}
    assert "! 2 results left out: excluded by the config" in page
    assert f"! 4 results of the file not named by include: 3 {apart}; 1 that could be simulated" in page
