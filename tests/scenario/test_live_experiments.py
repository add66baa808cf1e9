"""Experiments with live replicas, from the YAML file to the results; the engine is the naive one."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import run
from experiments.cli import main
from experiments.settings.loading import load
from replicas.calibration.file import write
from sim.errors import ConfigError
from tests.commands import ROOT
from tests.unit.replicas.calibration.test_calibrated import a_calibration

CONFIG = ROOT / "configs" / "live_smoke.yaml"
NAIVE = "pools.main.replicas.kind=tests.live_engines:Naive"
# 10 ms and 10 us a token: the surrogate of the naive engine, whose arithmetic takes 2 x num_params FLOPs a token
SAME_TIMES = "pools.main.gpu.bf16_flops_per_s=631244800000.0"


def ran(tmp_path: Path, *sets: str, kind: str = NAIVE) -> Any:
    both = ["sweep=null", kind, *sets]
    return run(CONFIG, out=tmp_path / kind.replace(":", "_"), sets=both, progress=False)


def test_the_same_file_runs_on_either_kind(tmp_path: Path) -> None:
    cpu = ["pools.main.replicas.cpu_s=0", "pools.main.replicas.cpu_s_per_request=0"]
    sets = ["pools.main.replicas.overhead_s=0.01", SAME_TIMES, "pools.main.gpu.bytes_per_s=1.0e+18", *cpu]
    live = ran(tmp_path, *sets)
    simulated = ran(tmp_path, *sets, kind="pools.main.replicas.kind=surrogate")
    assert (live.requests["status"] == "finished").all()
    # The surrogate adds attention, which is 4 L d FLOPs x 200 tokens of context beside 2 N a token: 13 % of the 10 us a token
    # of steps of 10 ms, so 2 % of a step of 150 tokens.
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert simulated.requests[name].median() == pytest.approx(live.requests[name].median(), rel=0.02), name
    assert simulated.requests["num_cached_tokens"].sum() == pytest.approx(live.requests["num_cached_tokens"].sum(), rel=0.05)
    assert live.requests["num_cached_tokens"].sum() > 0
    assert live.manifest["live"]["main"]["version"] == "naive"
    assert len(live.manifest["invariants_checked"]) == 12


def test_measured_starts_are_told_in_the_words_of_a_lifecycle(tmp_path: Path) -> None:
    """The naive engine says that its start took 3, 4 and 5 s: a surrogate that is given them starts as long as the live one."""
    given = ["pools.main.lifecycle={provision_s: 1, image_s: 2, warm_start: false}"]
    live = ran(tmp_path, *given)
    told = live.manifest["live"]["main"]
    assert told["starts"] == [{"weights_s": 3.0, "start_s": 4.0, "capture_s": 5.0}] * 2
    words = ", ".join(f"{name}: {value!r}" for name, value in told["lifecycle"].items())
    given = [f"pools.main.lifecycle={{provision_s: 1, image_s: 2, warm_start: false, {words}}}"]
    simulated = ran(tmp_path, *given, kind="pools.main.replicas.kind=surrogate")
    stages = ["image_pulled_at_s", "weights_loaded_at_s", "started_at_s", "ready_at_s"]
    assert live.replicas[stages].to_numpy().tolist() == [[3.0, 6.0, 10.0, 15.0]] * 2
    assert simulated.replicas[stages].to_numpy() == pytest.approx(live.replicas[stages].to_numpy())


def test_an_engine_that_does_not_schedule_ahead_as_asked_is_said(tmp_path: Path) -> None:
    """On a CPU vLLM never does; nor does the naive engine."""
    summary = json.loads((ran(tmp_path, "pools.main.replicas.async_scheduling=true").folder / "summary.json").read_text())
    said = "pool main: async_scheduling is on in the config and off in the engine, as vLLM naive has it here"
    assert summary["warnings"][-1] == said


def test_live_and_simulated_replicas_mix_in_a_fleet(tmp_path: Path) -> None:
    text = CONFIG.read_text().split("timeline_interval_s")[0]
    head, pool = text.split("pools:\n")
    live = pool.replace("kind: vllm", "kind: tests.live_engines:Naive").replace("replicas: 2}", "replicas: 1}")
    other = pool.replace("kind: vllm", "kind: surrogate").replace("name: main", "name: simulated")
    other = "".join(line for line in other.splitlines(True) if not line.lstrip().startswith(("clock:", "engine_args:")))
    path = tmp_path / "live_smoke.yaml"
    path.write_text(f"{head}pools:\n{live}{other}")
    result = run(path, out=tmp_path / "out", progress=False)
    assert set(result.requests["pool"]) == {"main", "simulated"}
    assert (result.requests["status"] == "finished").all()


def test_surrogates_follow_the_live_replica_that_recalibrates_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The device takes 7 ms and 10 us a token as calibrated, and from step 300 on 1.3 times that: 9.1 instead of 7 ms."""
    (one,) = load(CONFIG, ["sweep=null"])
    (pool,) = one.experiment.pools
    device = {
        "s_per_token": 1e-5,
        "s_per_attended_token": 0.0,
        "weights_s": 1e-9,
        "s_per_kv_token": 0.0,
        "serial_share": 1.0,
        "fixed_s": 0.007,
    }
    nothing = {"s": 0.0, "s_per_request": 0.0}
    cpu = {"schedule": {"s": 0.001, "s_per_request": 0.0}, "update": {"s": 0.002, "s_per_request": 0.0}, "front_end": nothing}
    range_ = {name: [1.0, 1e9] for name in ("num_requests", "num_tokens", "attended_tokens", "kv_tokens")}
    made = {"device_time": {**device, "s_per_request": 0.0}, "cpu_time": cpu, "range": range_, "kv_cache": None}
    write(a_calibration(model=pool.model, gpu=pool.gpu, dtype="float32", **made), tmp_path / "measured.yaml")
    document = one.document
    engine = {"kind": "tests.live_engines:Naive", "calibration": str(tmp_path / "measured.yaml"), "dtype": "float32"}
    limits = {name: document["pools"][0]["replicas"][name] for name in ("max_num_seqs", "max_num_batched_tokens", "block_size")}
    engine |= {**limits, "num_gpu_blocks": 256, "async_scheduling": False, "enforce_eager": True}
    live = engine | {"recalibrate": True, "engine_args": {"slows_at_step": 300}}
    machine = {"autoscaler": {"kind": "fixed", "replicas": 1}}
    document["pools"] = [
        {**document["pools"][0], **machine, "replicas": live},
        {**document["pools"][0], **machine, "name": "simulated", "replicas": {**engine, "kind": "surrogate"}},
    ]
    document["router"] = {"kind": "round_robin"}
    path = tmp_path / "live_smoke.yaml"
    path.write_text(yaml.safe_dump(document))
    result = run(path, out=tmp_path / "out", progress=False)
    found = result.manifest["recalibration"]["main/0"]
    assert found["scale"] == pytest.approx(1.3, rel=0.01)
    (alarm_s,) = found["alarms_at_s"]
    assert f"main/0: since about {alarm_s:.0f} s of the run steps take 1.30 times what " in capsys.readouterr().err
    requests = result.requests[result.requests["pool"] == "simulated"]
    gaps = requests["tpot_s"].where(requests["num_output_tokens"] > 4)
    before, after = gaps[requests["finished_at_s"] < alarm_s], gaps[requests["scheduled_at_s"] > alarm_s + 5]
    assert before.median() == pytest.approx(0.010, rel=0.05)
    assert after.median() == pytest.approx(0.003 * 1.3 + 0.007 * 1.3, rel=0.05)  # the CPU's time is scaled with the device's


def test_recalibrating_needs_something_to_recalibrate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="recalibrate needs a calibration to follow"):
        ran(tmp_path, "pools.main.replicas.recalibrate=true")


def scaled(tmp_path: Path, *options: str) -> Any:
    text = ", ".join(("min_replicas: 1, max_replicas: 3, warm_buffer: 0, interval_s: 1, replica_token_capacity: 300", *options))
    lifecycle = "pools.main.lifecycle={provision_s: 0, image_s: 0}"
    result = ran(tmp_path, f"pools.main.autoscaler={{kind: queue_target, {text}}}", lifecycle, "traffic.rate_per_s=12")
    assert (result.requests["status"] == "finished").all()
    return result.replicas


def test_an_autoscaler_starts_real_engines(tmp_path: Path) -> None:
    machines = scaled(tmp_path)
    late = machines[machines["requested_at_s"] > 0].dropna(subset="ready_at_s")
    assert len(late) >= 1
    assert (late["ready_at_s"] - late["requested_at_s"]).to_numpy() == pytest.approx(3.0 + 4.0 + 5.0)


def test_an_autoscaler_drains_real_engines(tmp_path: Path) -> None:
    machines = scaled(tmp_path, "initial_replicas: 3", "scale_down_stabilization_s: 1")
    assert (machines["draining_at_s"] > 0).any()


def test_steps_are_recorded_in_virtual_time(tmp_path: Path) -> None:
    result = ran(tmp_path, "pools.main.replicas.record_steps=true")
    files = sorted((result.folder / "steps").iterdir())
    assert [file.name for file in files] == ["0_steps.jsonl", "1_steps.jsonl"]
    rows = [json.loads(line) for line in files[0].read_text().splitlines()]
    finished = result.requests[result.requests["replica"] == 0].set_index("id")["finished_at_s"]
    ends = {request: row["t3"] for row in rows for request in row["finished"]}
    assert ends == pytest.approx(finished.to_dict())
    assert rows[0]["idle"] is None
    assert min(row["idle"] for row in rows[1:]) >= -1e-9  # rounding of sums of instants up to 30 s


def test_a_failure_is_one_line_and_the_results_so_far_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fails = "pools.main.replicas.engine_args={fails_at_step: 100}"
    command = [str(CONFIG), "--out", str(tmp_path), "--set", "sweep=null", "--set", NAIVE, "--set", fails]
    assert main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    folder = tmp_path / "live_smoke"
    assert line == (
        f"{CONFIG}: live_smoke: vLLM failed in a step: OutOfMemoryError: CUDA out of memory; the results so far are in {folder}"
    )
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["failure"].startswith("vLLM failed")
    assert manifest["is_cut_short"]
    assert 0 < manifest["counts"]["requests"] < 126
    assert main(command) == 1  # it is no whole result, so it runs again


def test_an_engine_that_does_not_start_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fails = "pools.main.replicas.engine_args={fails_at_start: true}"
    assert main([str(CONFIG), "--out", str(tmp_path), "--set", "sweep=null", "--set", NAIVE, "--set", fails]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"{CONFIG}: live_smoke: vLLM did not start: ValueError: the model does not fit"


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_one_line_says_where_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vllm = "pools.main.replicas.kind=vllm"
    assert main([str(CONFIG), "--out", str(tmp_path), "--set", "sweep=null", "--set", vllm]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "kind: vllm needs vLLM" in line
    assert "make live" in line


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("pools.main.replicas.batching=static", "batching static: a live replica does not do that; allowed: continuous"),
        ("pools.main.replicas.data_parallel_size=2", "data_parallel_size 2: a live replica does not do that; allowed: 1"),
        ("pools.main.replicas.clock=gpu", "clock"),
    ],
)
def test_options_that_only_a_surrogate_has_are_refused(change: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(CONFIG), "--dry-run", "--set", "sweep=null", "--set", change]) == 2
    assert text in capsys.readouterr().err


def test_adapters_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classes = "classes={default: {lora: mine}}"
    assert main([str(CONFIG), "--out", str(tmp_path), "--set", "sweep=null", "--set", NAIVE, "--set", classes]) == 2
    assert "classes.default.lora: 'mine', and pools.main is live" in capsys.readouterr().err


def test_clients_that_give_up_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classes = "classes={default: {timeout_s: 6}}"
    assert main([str(CONFIG), "--out", str(tmp_path), "--set", "sweep=null", "--set", NAIVE, "--set", classes]) == 2
    assert "classes.default.timeout_s: 6, and pools.main is live, whose requests nobody aborts" in capsys.readouterr().err
