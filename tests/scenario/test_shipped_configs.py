"""Every config that we ship is short, loads, and runs with --smoke."""

from pathlib import Path

import pytest

from experiments import run
from experiments.settings.loading import load
from tests.commands import ROOT
from tests.shared import shared

CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))


LIVE = ("live_smoke", "live_8b")


def sets_for(path: Path) -> list[str]:
    """The changes that a config needs here: traces, recordings and vLLM are not part of the project."""
    if path.stem.endswith("live_cpu"):
        return [f"recordings={shared('data/live_cpu')}"]
    if path.stem in LIVE:
        return ["sweep=null", "pools.main.replicas.kind=surrogate"]
    kernels = {
        "calibrate_rtx4090_kernels": "RTX4090/meta-llama/Llama-3.1-8B",
        "calibrate_rtxpro6000_kernels": "RTXPRO6000/meta-llama/Llama-3.1-8B",
        "calibrate_rtxpro6000_moe_kernels": "RTXPRO6000/Qwen/Qwen3-30B-A3B-Instruct-2507",
    }
    if path.stem in kernels:
        return [f"kernels.path={shared(f'data/measurements/llmservingsim/profiler/perf/{kernels[path.stem]}/bf16/tp1')}"]
    if path.stem.startswith("validate_rtx"):
        return [f"recordings={shared('data/measurements/llmservingsim/bench/examples')}"]
    if path.stem.endswith(("_served", "_kubecon", "_silicon")):
        return served_sets_for(path)
    if path.stem == "mooncake":
        return [f"traffic.path={shared('data/traces/mooncake/conversation_trace.jsonl')}"]
    if "azure" not in path.stem:
        return []
    name = f"AzureLLMInferenceTrace_{'code' if path.stem == 'azure_code' else 'conv'}.csv"
    return [f"traffic.path={shared(f'data/traces/azure2023/{name}')}"]


def served_sets_for(path: Path) -> list[str]:
    """Served results, and where a config reads kernel tables those of its GPU."""
    results = shared("data/serving_ground_truth.jsonl")
    if path.stem.endswith("_silicon"):
        results = shared("data/measurements/aiconfigurator/silicon_sample.csv")
    if path.stem.startswith("validate"):
        return [f"recordings={results}"]
    if path.stem.endswith("_silicon"):
        tables, name = shared("data/measurements/aiconfigurator/data"), path.stem.split("_")[1]
        all_reduces = {"b200": "b200_sxm/comm/vllm/0.19.0"}.get(
            name, "h100_sxm/comm/vllm/0.14.0"
        )  # TensorRT-LLM's are not there
        kernels = {"folder": f"{tables}/{name}_sxm", "all_reduces": f"{tables}/{all_reduces}"}
        return [f"served={results}", *(f"kernel_times.{key}={path}" for key, path in kernels.items())]
    systems = {"calibrate_a100_served": "a100_sxm", "calibrate_l40s_served": "l40s"}
    tables = [shared(f"data/measurements/aiconfigurator/data/{systems[path.stem]}")] if path.stem in systems else []
    return [f"served={results}", *(f"kernels={table}" for table in tables)]


def test_the_six_are_there() -> None:
    names = {path.stem for path in CONFIGS}
    assert names >= {"day_forecast_vs_reactive", "opening_question", "azure_conv", "azure_code", "routers", "cpu_overlap"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_is_short_and_named_after_its_file(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 40
    assert {one.experiment.name for one in load(path)} == {path.stem}


SIMULATIONS = [path for path in CONFIGS if "\nkind:" not in path.read_text()]


@pytest.mark.parametrize("path", SIMULATIONS, ids=lambda path: path.stem)
def test_runs_with_smoke(path: Path, tmp_path: Path) -> None:
    result = run(path, out=tmp_path, smoke=True, sets=sets_for(path), progress=False)
    for one in result.runs or [result]:
        if path.stem not in LIVE:  # a real engine takes 10 ms a step: it has fewer
            assert one.manifest["counts"]["requests"] == 2000
        turned_away = one.requests["reason"] == "predicted_ttft"  # by admission.yaml, on purpose
        assert (one.requests["status"][~turned_away] == "finished").all()
        assert path.stem == "admission" or not turned_away.any()


OTHERS = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.parent.name == "accuracy" else [])
    for path in sorted(set(CONFIGS) - set(SIMULATIONS))
]


@pytest.mark.parametrize("path", OTHERS)
def test_other_kinds_run_with_smoke(path: Path, tmp_path: Path) -> None:
    result = run(path, out=tmp_path, smoke=True, sets=sets_for(path), progress=False)
    if path.stem.startswith("plan_"):
        assert result.plan["fleet"]["num_gpus"] > 0
        assert (result.folder / "plan.html").stat().st_size > 50_000  # with its pictures
    else:
        assert all(count > 0 for count in result.manifest["counts"].values())


def test_the_opening_question_is_the_one_that_the_text_asks() -> None:
    (one,) = load(ROOT / "configs" / "opening_question.yaml")
    traffic, pool = one.experiment.traffic, one.experiment.pools[0]
    # 40 to 200 requests/s over 24 h: a mean of 120 and 10.4 million requests; 2,000 and 400 tokens on average
    assert traffic.ends_at_s == 86400
    assert traffic.mean_rate_per_s(0.0, 86400.0) == pytest.approx(120, rel=1e-6)
    assert (traffic.mean_prompt_tokens, traffic.mean_output_tokens) == pytest.approx((2000, 400), rel=0.01)
    assert one.document["slo"]["ttft_s"] == {"p99": 1.0}
    assert one.document["slo"]["tpot_s"] == {"p90": 0.05}
    assert (pool.model.name, pool.gpu.name) == ("llama-3.1-70b", "h100-sxm")
    assert (pool.replicas.tensor_parallel_size, pool.replicas.quantization) == (4, "fp8")


def test_overlapping_cpu_work_shortens_the_steps_and_the_queue(tmp_path: Path) -> None:
    # docs/sources.md [1]: median TPOT 10.3 -> 7.9 ms, median TTFT about halves; its trace is not given, so only the direction.
    # With a step of t_gpu + t_cpu, not their maximum, and the GPU the longer, a decode step is longer by all of t_cpu:
    # 1 ms and 20 us for each of its requests. tests/theory/test_cpu_overlap.py holds the size.
    result = run(ROOT / "configs" / "cpu_overlap.yaml", out=tmp_path, smoke=True, progress=False)
    overlapped, serial = (one.requests[["tpot_s", "ttft_s"]].median() for one in result.runs)
    assert overlapped["ttft_s"] < serial["ttft_s"]
    assert serial["tpot_s"] - overlapped["tpot_s"] > 0.001
