"""A surrogate with a calibration: its step times, what it refuses, and what it flags."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from pydantic import ValidationError

from experiments import run
from replicas.calibration.file import Calibration, located, read, write
from replicas.calibration.gpu import read_any
from replicas.catalog import gpu, model
from replicas.step_time import step_time
from replicas.surrogate import Surrogate
from sim.records import BATCH, records
from tests.commands import ROOT

MODEL, GPU = model("llama-3.1-8b"), gpu("h100-sxm")

DEVICE = {"s_per_token": 1e-4, "s_per_attended_token": 1e-8, "weights_s": 5e-3, "s_per_kv_token": 2e-8, "serial_share": 0.5,
          "fixed_s": 1e-3, "s_per_request": 1e-5}  # fmt: skip
PART = {"s": 1e-4, "s_per_request": 1e-6}
RANGE = {"num_requests": [1.0, 8.0], "num_tokens": [1.0, 600.0], "attended_tokens": [1.0, 1e6], "kv_tokens": [1.0, 1e5]}


def a_calibration(**changes: Any) -> Calibration:
    given = {
        "engine_version": "0.32.0",
        "gpu": GPU,
        "model": MODEL,
        "dtype": "bfloat16",
        "source": "made up",
        "device_time": DEVICE,
        "cpu_time": {"schedule": PART, "update": PART, "front_end": PART},
        "range": RANGE,
        "kv_cache": {"num_gpu_blocks": 1000, "block_size": 32},
        **changes,
    }
    return Calibration.model_validate(given)


@pytest.fixture
def path(tmp_path: Path) -> str:
    write(a_calibration(), tmp_path / "h100.yaml")
    return str(tmp_path / "h100.yaml")


def test_the_file_reads_as_it_was_written(path: str) -> None:
    assert read(path) == a_calibration()


def test_the_file_is_small_and_names_what_the_catalogue_knows(path: str) -> None:
    text = Path(path).read_text()
    assert len(text.splitlines()) < 40
    assert (yaml.safe_load(text)["model"], yaml.safe_load(text)["gpu"]) == ("llama-3.1-8b", "h100-sxm")


def test_a_step_takes_what_the_coefficients_say(path: str) -> None:
    """By hand: A = 100 x 0.1 ms + 1e5 x 10 ns = 11 ms, M = 5 ms + 1e4 x 20 ns = 5.2 ms, half of the shorter is not hidden."""
    batch = records(BATCH, 1)[0]
    batch.num_tokens, batch.attended_tokens, batch.kv_tokens, batch.num_requests = 100, 1e5, 10_000, 4
    gpu_s = 11e-3 + 0.5 * 5.2e-3 + 1e-3 + 4 * 1e-5
    cpu_s = 3 * (1e-4 + 4 * 1e-6)
    options: dict[str, Any] = {"calibration": path, "enforce_eager": True}
    assert step_time(batch, Surrogate(**options, async_scheduling=False).engine(MODEL, GPU)[0]) == pytest.approx(gpu_s + cpu_s)
    assert step_time(batch, Surrogate(**options).engine(MODEL, GPU)[0]) == pytest.approx(gpu_s)
    slower = Surrogate(**options, async_scheduling=False, step_time_scale=1.1).engine(MODEL, GPU)[0]
    assert step_time(batch, slower) == pytest.approx(1.1 * (gpu_s + cpu_s))
    with_drafts = Surrogate(**options, draft_s=2e-3).engine(MODEL, GPU)[0]
    assert step_time(batch, with_drafts) == pytest.approx(gpu_s + 2e-3)


def test_the_weights_keep_their_size_for_the_cold_start(path: str) -> None:
    measured, roofline = (Surrogate(calibration=one).engine(MODEL, GPU)[0] for one in (path, None))
    assert measured.dense_weight_bytes == roofline.dense_weight_bytes > 0


def test_the_engines_own_block_count_is_used_unless_one_is_given(path: str) -> None:
    assert Surrogate(calibration=path, block_size=16, max_model_len=16_000).memory(MODEL, GPU).num_gpu_blocks == 2000
    assert Surrogate(calibration=path, block_size=16, num_gpu_blocks=700).memory(MODEL, GPU).num_gpu_blocks == 700


def test_float32_takes_twice_the_memory(tmp_path: Path) -> None:
    write(a_calibration(dtype="float32"), tmp_path / "fp32.yaml")
    wide = Surrogate(calibration=str(tmp_path / "fp32.yaml"), dtype="float32").engine(MODEL, GPU)[0]
    assert wide.dense_weight_bytes == 2 * Surrogate().engine(MODEL, GPU)[0].dense_weight_bytes
    with pytest.raises(ValidationError, match="dtype float32 needs a calibration"):
        Surrogate(dtype="float32")


@pytest.mark.parametrize(
    ("of", "options", "said"),
    [
        ({"model": model("qwen3-8b")}, {}, "model is llama-3.1-8b, measured was qwen3-8b"),
        ({"gpu": gpu("a100-sxm")}, {}, "gpu is h100-sxm, measured was a100-sxm"),
        ({"dtype": "float16"}, {}, "dtype is bfloat16, measured was float16"),
        ({}, {"quantization": "fp8"}, "dtype is fp8, measured was bfloat16"),
        ({}, {"tensor_parallel_size": 2}, "tensor_parallel_size is 2, measured was 1"),
    ],
)
def test_a_calibration_of_another_engine_is_refused_in_a_line(
    of: dict[str, Any], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    write(a_calibration(**of), tmp_path / "other.yaml")
    with pytest.raises(ValueError, match=said) as error:
        Surrogate(calibration=str(tmp_path / "other.yaml"), **options).engine(MODEL, GPU)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("option", ["flops_efficiency", "bandwidth_efficiency", "overhead_s", "cpu_s", "cpu_s_per_request"])
def test_an_option_that_the_calibration_has_measured_is_refused(option: str, path: str) -> None:
    with pytest.raises(ValidationError, match=f"{option} 0.5 has no effect with a calibration"):
        Surrogate(calibration=path, **{option: 0.5})


def test_all_options_that_the_calibration_has_measured_are_named(path: str) -> None:
    with pytest.raises(
        ValidationError, match=r"flops_efficiency 0\.5, cpu_s 0\.1 have no effect with a calibration.*leave them out"
    ):
        Surrogate(calibration=path, flops_efficiency=0.5, cpu_s=0.1)


def test_a_scale_without_a_calibration_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"step_time_scale 1\.1 needs a calibration"):
        Surrogate(step_time_scale=1.1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no such file; `kind: calibrate` makes one"),
        ("- 1", "is not a mapping"),
        ("a: [", "while parsing"),
        ("format: 2", "format: Input should be 1"),
    ],
)
def test_a_bad_file_is_refused_in_a_line(text: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        read(path)
    assert "\n" not in str(error.value)


SHIPPED = "calibrations/vllm-0.15_h100-sxm_served.yaml"


def test_a_calibration_of_the_project_is_found_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = the_config(SHIPPED, tmp_path)
    monkeypatch.chdir(tmp_path)
    result = run(config, out=tmp_path / "out", progress=False)
    shipped = (ROOT / SHIPPED).read_bytes()
    assert result.manifest["pools"]["main"]["calibration"]["sha256"] == hashlib.sha256(shipped).hexdigest()
    assert run(config, out=tmp_path / "out", progress=False).manifest == result.manifest  # it stands where it stood: no new run


def test_a_calibration_in_the_current_directory_goes_before_the_projects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "calibrations").mkdir()
    write(a_calibration(), tmp_path / SHIPPED)
    assert located(SHIPPED).resolve() == tmp_path / SHIPPED
    assert read_any(SHIPPED) == a_calibration()


@pytest.mark.parametrize("reader", [read, read_any])
def test_a_calibration_that_is_nowhere_is_told_with_its_place_and_those_there_are(
    reader: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no such file") as error:
        reader("none/h100.yaml")
    said = f"no such file at {tmp_path}/none/h100.yaml; `kind: calibrate` makes one; shipped: vllm-0.11"
    assert str(error.value).startswith(f"calibration none/h100.yaml: {said}")


@pytest.mark.parametrize("name", ["vllm-0.15_h100-sxm_served", "vllm-0.15_h100-sxm_served.yaml", SHIPPED])
def test_a_shipped_calibration_is_found_by_its_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert located(name) == ROOT / SHIPPED


def test_another_folders_calibration_is_not_taken_for_a_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no such file"):
        located("mine/vllm-0.15_h100-sxm_served.yaml")


def the_config(path: str, folder: Path) -> Path:
    traffic = {
        "kind": "poisson",
        "rate_per_s": 20.0,
        "duration_s": 20.0,
        "lengths": {"prompt": {"kind": "uniform", "low": 100, "high": 1000}, "output": {"kind": "fixed", "tokens": 30}},
    }
    replicas = {
        "kind": "surrogate",
        "calibration": path,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 512,
        "max_model_len": 4096,
    }
    pool = {"name": "main", "model": MODEL.name, "gpu": GPU.name, "replicas": replicas}
    pool["autoscaler"] = {"kind": "fixed", "replicas": 1}
    config = folder / "calibrated.yaml"
    config.write_text(yaml.safe_dump({"traffic": traffic, "router": {"kind": "round_robin"}, "pools": [pool]}))
    return config


def test_every_result_that_leaned_on_steps_outside_the_range_is_flagged(path: str, tmp_path: Path) -> None:
    result = run(the_config(path, tmp_path), out=tmp_path / "out", progress=False)
    (flag,) = [line for line in json.loads((result.folder / "summary.json").read_text())["warnings"] if "extrapolated" in line]
    said = result.manifest["pools"]["main"]["calibration"]
    assert 0 < said["steps_outside_range"] < said["steps"] == result.manifest["counts"]["steps"]
    assert f"{said['steps_outside_range']:,} of {said['steps']:,} steps" in flag
    wide = {**RANGE, "num_requests": [1.0, 64.0]}
    write(a_calibration(range=wide), Path(path))
    inside = run(the_config(path, tmp_path), out=tmp_path / "inside", progress=False)
    assert inside.manifest["pools"]["main"]["calibration"]["steps_outside_range"] == 0
    assert not [line for line in json.loads((inside.folder / "summary.json").read_text())["warnings"] if "extrapolated" in line]
    pd.testing.assert_frame_equal(result.requests, inside.requests)  # the range changes no time


def test_a_changed_calibration_is_run_again(path: str, tmp_path: Path) -> None:
    config = the_config(path, tmp_path)
    first = run(config, out=tmp_path / "out", progress=False).requests["tpot_s"].median()
    write(a_calibration(device_time={**DEVICE, "fixed_s": 1.0}), Path(path))
    again = run(config, out=tmp_path / "out", progress=False).requests["tpot_s"].median()
    assert again > first + 0.9
    assert np.isfinite(first)
