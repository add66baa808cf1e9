"""Served runs in LLMServingSim's form: stamps of one clock, the engine's own blocks, the workload's token ids."""

import json
from pathlib import Path
from typing import Any

import pytest

from accuracy.measured.llmservingsim import find_runs
from accuracy.repeated.replay import engine_options, simulation_of
from experiments.settings.experiment import Experiment
from replicas.calibration.file import write
from sim.errors import TraceError
from tests.shared import shared
from tests.unit.replicas.calibration.test_calibrated import a_calibration

MODEL = "llama-3.1-8b"


def write_run(root: Path, queued_after_s: tuple[float, float] = (0.0, 0.0), **meta: Any) -> Path:
    """Two requests, which come at 0 and 2 s: `arrival_time` is of another clock, ahead of the engine's by 1e9 - 50 s."""
    folder = root / "bench" / "GPU1" / "Llama" / "vllm"
    folder.mkdir(parents=True)
    arguments = {"model": "meta-llama/Llama-3.1-8B", "max_num_seqs": 8, "max_num_batched_tokens": 2048, "max_model_len": None}
    plain = {"engine_kwargs": arguments, "dataset_path": "workloads/two.jsonl"}
    (folder / "meta.json").write_text(json.dumps(plain | meta))
    rows = [
        {"input_toks": 3, "output_toks": 2, "arrival_time": 1e9 + at, "queued_ts": 50.0 + at + after,
         "scheduled_ts": 50.0 + at + after, "first_token_ts": 50.5 + at, "last_token_ts": 51.0 + at}
        for at, after in zip((0.0, 2.0), queued_after_s, strict=True)
    ]  # fmt: skip
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "workloads").mkdir()
    (root / "workloads" / "two.jsonl").write_text('{"input_tok_ids": [1, 2, 3]}\n{"input_tok_ids": [1, 2, 4]}\n')
    return folder


@pytest.mark.parametrize("queued_after_s", [(0.0, 0.0), (0.0, 0.2), (0.3, 0.0)])
def test_requests_arrive_at_the_front_end(queued_after_s: tuple[float, float], tmp_path: Path) -> None:
    """An engine takes them in up to a step later; the one that it takes in at once tells what the clocks differ by."""
    write_run(tmp_path, queued_after_s)
    (one,) = find_runs(tmp_path, ["*"], MODEL)
    assert one.name == "GPU1_Llama"
    # a Unix time has about a tenth of a microsecond as its last digit
    assert one.requests["arrival_s"].tolist() == pytest.approx([0.0, 2.0], abs=1e-6)
    assert one.requests["last_token_s"].tolist() == pytest.approx([1.0, 3.0], abs=1e-6)
    assert one.prompts == [[1, 2, 3], [1, 2, 4]]


def test_ranks_that_share_experts_are_balanced_as_vllm_did(tmp_path: Path) -> None:
    write_run(tmp_path)
    (one,) = find_runs(tmp_path, ["*"], MODEL)
    (tmp_path / "scratch").mkdir()
    calibration = a_calibration()
    one.meta["engine_args"]["data_parallel_size"] = 2
    path = tmp_path / "calibration.yaml"
    write(calibration, path)
    experiment = simulation_of(one, calibration, str(path), 1.0, 1, tmp_path / "scratch").experiment
    assert isinstance(experiment, Experiment)
    assert (experiment.router.kind, experiment.router.scrape_interval_s) == ("vllm_old", 0.1)


def test_the_engine_is_that_of_its_version(tmp_path: Path) -> None:
    """Without more in meta.json it is vLLM 0.19's default: nine tenths of the memory, a prefix cache of blocks of 16."""
    write_run(tmp_path)
    options, unknown = engine_options(find_runs(tmp_path, ["*"], MODEL)[0])
    assert options == {"max_num_seqs": 8, "max_num_batched_tokens": 2048, "gpu_memory_utilization": 0.9,
                       "cuda_graph_bytes": 0.0, "block_size": 16, "enable_prefix_caching": True}  # fmt: skip
    assert unknown == []


def test_the_engines_own_blocks_count(tmp_path: Path) -> None:
    cache = {"num_gpu_blocks": 2588, "block_size": 16, "enable_prefix_caching": False}
    write_run(tmp_path, kv_cache=cache, resolved_config={"scheduler_config": {"async_scheduling": False, "policy": "fcfs"}})
    options, _ = engine_options(find_runs(tmp_path, ["*"], MODEL)[0])
    assert (options["num_gpu_blocks"], options["enable_prefix_caching"], options["async_scheduling"]) == (2588, False, False)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    with pytest.raises(TraceError, match=r"GPU1_Llama served meta-llama/Llama-3.1-8B, and the calibration is of qwen3-8b"):
        find_runs(tmp_path, ["*"], "qwen3-8b")
    with pytest.raises(TraceError, match=r"nothing is named 'GPU2_.'; there: GPU1_Llama"):
        find_runs(tmp_path, ["GPU2_*"], MODEL)
    (tmp_path / "workloads" / "two.jsonl").write_text('{"input_tok_ids": [1]}\n')
    with pytest.raises(TraceError, match=r"two\.jsonl: its prompts are not as many and as long"):
        _ = find_runs(tmp_path, ["*"], MODEL)[0].prompts
    (folder / "requests.jsonl").write_text('{"input_toks": 3}\n')
    with pytest.raises(TraceError, match=r"requests\.jsonl: queued_ts is missing"):
        _ = find_runs(tmp_path, ["*"], MODEL)[0].requests


def test_a_folder_without_runs_has_none(tmp_path: Path) -> None:
    assert find_runs(tmp_path, ["*"], MODEL) == []


def test_the_published_run_is_read() -> None:
    runs = shared("data/measurements/llmservingsim/bench/examples")
    (one,) = find_runs(runs, ["RTX4090_*"], MODEL)
    assert len(one.requests) == 300
    assert one.meta["num_gpu_blocks"] == 2588
    assert one.prompts is not None
