"""Experiments with live replicas, from the YAML file to the results; the engine is the naive one."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from experiments import run
from experiments.cli import main

CONFIG = Path(__file__).parents[2] / "configs" / "live_smoke.yaml"
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
