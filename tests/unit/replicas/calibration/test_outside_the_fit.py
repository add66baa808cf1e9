"""Step times that nobody measured: a bound is said to be one, and a calibration used outside its fit says so."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import calibrated, plots, report, run
from experiments.calibrated import described, outside, step_times
from experiments.cli import main
from replicas.calibration.file import write
from replicas.calibration.fitted import NOT_STATED, Fitted, Traits
from replicas.calibration.gpu import GpuCalibration, read_any, write_gpu
from replicas.catalog import gpu, model, models
from replicas.live.config import Vllm
from replicas.surrogate import Surrogate
from sim.shipped import all_shipped
from tests.unit.replicas.calibration.test_calibrated import RANGE, a_calibration

L40S = "calibrations/vllm-0.15_l40s_served.yaml"
PLAIN = Traits("llama-3.1-8b", "dense", 1, "bfloat16", "bfloat16")
SEEN = Fitted(
    architectures=["dense"],
    tensor_parallel_sizes=[2, 8],
    dtypes=["bfloat16"],
    kv_cache_dtypes=["fp8"],
    speculation=[False],
    enforce_eager=[True],
    adapters=[False],
)
HERE = PLAIN._replace(tensor_parallel_size=4, kv_cache_dtype="fp8", enforce_eager=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "deepseek-v3", "architecture": "experts and latent attention"},
         "deepseek-v3 (experts and latent attention), fitted: dense"),
        ({"tensor_parallel_size": 16}, "tensor_parallel_size 16, fitted: 2, 8"),
        ({"tensor_parallel_size": 1}, "tensor_parallel_size 1, fitted: 2, 8"),
        ({"dtype": "fp8"}, "weights in fp8, fitted: bfloat16"),
        ({"kv_cache_dtype": "bfloat16"}, "KV in bfloat16, fitted: fp8"),
        ({"speculation": True}, "speculative decoding, fitted without"),
        ({"enforce_eager": False}, "no enforce_eager, fitted with"),
        ({"adapters": True}, "LoRA adapters, fitted without"),
    ],
)  # fmt: skip
def test_an_engine_that_was_not_fitted_is_said_with_both_values(changes: dict[str, Any], said: str) -> None:
    assert SEEN.outside(HERE) == []
    assert SEEN.outside(HERE._replace(**changes)) == [said]


def test_both_types_of_16_bit_take_the_same_time() -> None:
    assert SEEN.outside(HERE._replace(dtype="float16")) == []


def test_what_a_file_does_not_state_is_said_unless_the_engine_is_the_plainest() -> None:
    assert NOT_STATED.outside(PLAIN) == []
    rare = Traits("mixtral-8x7b", "experts", 2, "fp8", "fp8", speculation=True, enforce_eager=True, adapters=True)
    assert NOT_STATED.outside(rare) == [
        "mixtral-8x7b (experts), fitted: not stated",
        "tensor_parallel_size 2, fitted: not stated",
        "weights in fp8, fitted: not stated",
        "KV in fp8, fitted: not stated",
        "speculative decoding, fitted: not stated",
        "enforce_eager, fitted: not stated",
        "LoRA adapters, fitted: not stated",
    ]


def test_every_shipped_calibration_of_a_gpu_states_what_it_was_fitted_to() -> None:
    found = [read_any(path) for path in all_shipped("calibrations")]
    for one in [one for one in found if isinstance(one, GpuCalibration)]:
        sizes = sorted({int(name.split("/")[3].removeprefix("tp")) for name in one.fitted_to})
        assert one.fitted.tensor_parallel_sizes == sizes
        assert one.fitted.models is not None
        assert one.fitted.architectures == sorted({models()[name].architecture for name in one.fitted.models})
        assert one.fitted.dtypes == (["fp8"] if "silicon" in one.fitted_to[0] else ["bfloat16"])
        assert None not in one.fitted.model_dump().values()


def test_more_requests_in_a_step_than_were_fitted_are_said(tmp_path: Path) -> None:
    write(a_calibration(), tmp_path / "h100.yaml")
    options = Surrogate(calibration=str(tmp_path / "h100.yaml"), max_num_seqs=64)
    at = (options, model("llama-3.1-8b"), gpu("h100-sxm"))
    assert outside(*at) == ["up to 64 requests in a step, fitted: 8"]
    assert outside(*at, num_requests=9) == ["up to 9 requests in a step, fitted: 8"]
    assert outside(*at, num_requests=8) == []


BETWEEN_NODES = (
    "16 x h100-sxm in an engine and a node has 8: messages between nodes are timed as within one, NVLink at 450 GB/s"
)


def over_pcie(num_gpus: int) -> str:
    return f"{num_gpus} x l40s without NVLink: messages are timed at PCIe's peak, 32 GB/s"


@pytest.mark.parametrize(
    ("options", "served", "device", "said"),
    [
        ({"tensor_parallel_size": 16}, "llama-3.1-70b", "h100-sxm", BETWEEN_NODES),
        ({"data_parallel_size": 8, "tensor_parallel_size": 2}, "qwen3-30b-a3b", "h100-sxm", BETWEEN_NODES),
        ({"tensor_parallel_size": 2}, "llama-3.1-8b", "l40s", over_pcie(2)),
        ({"tensor_parallel_size": 8}, "llama-3.1-70b", "h100-sxm", ""),
        ({"data_parallel_size": 16}, "llama-3.1-8b", "h100-sxm", ""),
        ({}, "llama-3.1-8b", "l40s", ""),
        ({"pipeline_parallel_size": 16}, "llama-3.1-8b", "h100-sxm", ""),
    ],
)
def test_messages_that_no_fast_link_carries_are_said(options: dict[str, int], served: str, device: str, said: str) -> None:
    assert outside(Surrogate(**options), model(served), gpu(device)) == ([said] if said else [])  # type: ignore[arg-type]


def test_links_of_a_fit_to_so_many_gpus_are_its_own(tmp_path: Path) -> None:
    dtypes = {"dtypes": ["bfloat16"], "kv_cache_dtypes": ["bfloat16"]}
    wide = {"tensor_parallel_sizes": [1, 2], "architectures": ["dense"], **dtypes}
    fitted = GpuCalibration.model_validate(
        {"gpu": "l40s", "source": "made up", "efficiencies": {"fixed_s": 0.0}, "fitted": wide,
         "range": {**RANGE, "num_requests": [1.0, 1e4]}}
    )  # fmt: skip
    write_gpu(fitted, tmp_path / "gpu.yaml")
    at = (model("llama-3.1-8b"), gpu("l40s"))
    assert outside(Surrogate(calibration=str(tmp_path / "gpu.yaml"), tensor_parallel_size=2), *at) == []
    said = outside(Surrogate(calibration=str(tmp_path / "gpu.yaml"), tensor_parallel_size=4), *at)
    assert said == ["tensor_parallel_size 4, fitted: 1, 2", over_pcie(4)]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (Surrogate(), "bound"),
        (Surrogate(flops_efficiency=0.5), "bound"),
        (Surrogate(calibration=L40S), "vllm-0.15_l40s_served"),
        (Vllm(), "measured"),
    ],
)
def test_whose_step_times_an_engine_has(options: Surrogate, word: str) -> None:
    assert step_times(options) == word


def test_the_name_of_a_calibration_that_was_not_renamed_is_its_folders(tmp_path: Path) -> None:
    (tmp_path / "calibrate_mine").mkdir()
    write(a_calibration(), tmp_path / "calibrate_mine" / "calibration.yaml")
    assert step_times(Surrogate(calibration=str(tmp_path / "calibrate_mine" / "calibration.yaml"))) == "calibrate_mine"


def config(folder: Path, name: str, served: str, device: str, **replicas: Any) -> Path:
    traffic = {
        "kind": "poisson", "rate_per_s": 8.0, "duration_s": 10.0,
        "lengths": {"prompt": {"kind": "fixed", "tokens": 1000}, "output": {"kind": "fixed", "tokens": 200}},
    }  # fmt: skip
    pool = {"name": "main", "model": served, "gpu": device, "autoscaler": {"kind": "fixed", "replicas": 1},
            "replicas": {"kind": "surrogate", "max_model_len": 8192, **replicas}}  # fmt: skip
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"traffic": traffic, "router": {"kind": "round_robin"}, "pools": [pool]}))
    return path


def test_an_uncalibrated_run_says_bound_in_table_page_picture_manifest_and_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """DeepSeek-V3 in fp8 on eight H200s: served, it takes 3.4 to 3.8 times as long."""
    notes: list[str] = []
    monkeypatch.setattr(plots, "footnote", lambda figure, text: notes.append(text))
    path = config(tmp_path, "bound", "deepseek-v3", "h200-sxm", tensor_parallel_size=8, quantization="fp8")
    assert main([str(path), "--dry-run"]) == 0
    assert f"step times: bound, {calibrated.BOUND_MEANS}" in capsys.readouterr().out
    assert main([str(path), "--out", str(tmp_path)]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("step times")]
    assert row == ["step", "times", "bound"]
    folder = tmp_path / "bound"
    assert json.loads((folder / "summary.json").read_text())["step_times"] == {"main": "bound"}
    assert json.loads((folder / "manifest.json").read_text())["pools"]["main"]["step_times"] == "bound"
    assert "Step times: *bound* is what data sheets allow" in (folder / "report.md").read_text()
    assert notes == ["Step times are a bound, not a measurement."]


def test_the_picture_names_the_runs_whose_step_times_are_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(plots, "footnote", lambda figure, text: notes.append(text))
    both = [
        run(config(tmp_path, name, "llama-3.1-8b", "l40s", **replicas), out=tmp_path, progress=False).folder
        for name, replicas in (("fitted", {"calibration": L40S}), ("roofline", {}))
    ]
    plots.day(both, tmp_path / "both.png")
    plots.day(both[:1], tmp_path / "one.png")
    assert notes == ["Step times of roofline are a bound, not a measurement.", ""]
    assert "*bound*" not in "\n".join(report._page("fitted", both[:1], [], ""))


def test_a_fit_to_8b_on_one_gpu_that_serves_experts_in_fp8_on_eight_says_so_in_one_line(tmp_path: Path) -> None:
    options = {"tensor_parallel_size": 8, "quantization": "fp8", "calibration": L40S}
    path = config(tmp_path, "far", "mixtral-8x7b", "l40s", **options)
    folder = run(path, out=tmp_path, progress=False).folder
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["step_times"] == {"main": "vllm-0.15_l40s_served"}
    (line,) = [one for one in summary["warnings"] if one.startswith("pool main: ")]
    assert line.startswith(
        f"pool main: step times of {L40S} outside its fit: mixtral-8x7b (experts), fitted: dense; "
        "tensor_parallel_size 8, fitted: 1; weights in fp8, fitted: bfloat16; up to "
    )
    assert "requests in a step, fitted: 34; 8 x l40s without NVLink: messages are timed at PCIe's peak, 32 GB/s; " in line
    assert "are larger than any that was fitted, and extrapolated; calibrated on vllm 0.15, scheduled as vLLM 0.32" in line
    used = json.loads((folder / "manifest.json").read_text())["pools"]["main"]["calibration"]
    assert used["fitted"]["tensor_parallel_sizes"] == [1]
    said = described(Surrogate(**options), model("mixtral-8x7b"), gpu("l40s"))  # type: ignore[arg-type]
    assert said[0] == f"step times: {L40S}"
    assert said[1].startswith(f"! step times of {L40S} outside its fit: mixtral-8x7b (experts), fitted: dense; ")
    assert "up to 256 requests in a step, fitted: 34" in said[1]


def test_adapters_of_a_class_count_as_such(tmp_path: Path) -> None:
    path = config(tmp_path, "adapters", "llama-3.1-8b", "l40s", calibration=L40S, max_num_seqs=16, vllm_version="0.32")
    text = path.read_text() + "classes: {default: {lora: mine}}\n"
    path.write_text(text)
    (line,) = json.loads((run(path, out=tmp_path, progress=False).folder / "summary.json").read_text())["warnings"]
    assert "LoRA adapters, fitted without" in line


@pytest.mark.parametrize(
    ("replicas", "said"),
    [
        ({}, "Step times are a bound: what data sheets allow"),
        ({"calibration": L40S, "quantization": "fp8"}, "weights in fp8, fitted: bfloat16"),
    ],
)
def test_a_plan_says_whose_step_times_it_stands_on(
    replicas: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = yaml.safe_load(config(tmp_path, "x", "llama-3.1-8b", "l40s").read_text())
    for key in ("pools", "router"):
        del plan[key]
    plan |= {"kind": "plan", "model": "llama-3.1-8b", "slo": {"tpot_s": {"p90": 0.1}},
             "hardware": [{"gpu": "l40s", "price_per_gpu_hour": 1.0}],
             "replicas": {"kind": "surrogate", "max_model_len": 8192, **replicas}}  # fmt: skip
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(plan))
    found = run(path, out=tmp_path, progress=False)
    assert said in " ".join((found.folder / "plan.txt").read_text().split())
    assert found.plan["step_times"] == ("vllm-0.15_l40s_served" if replicas else "bound")
    assert any("weights in fp8" in one for one in found.plan["fleet"]["outside"]) == bool(replicas)
    capsys.readouterr()
    assert main([str(path), "--dry-run"]) == 0
    assert f"step times: {L40S if replicas else 'bound, '}" in capsys.readouterr().out
