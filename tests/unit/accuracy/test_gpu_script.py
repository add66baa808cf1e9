"""The prepared script for a GPU, as far as it goes without an engine (docs/live.md has its rehearsal on a CPU)."""

from pathlib import Path

import numpy as np
import pytest

from accuracy.gpu.__main__ import Session, main
from tests.commands import ROOT

CONFIGS = ROOT / "configs"


def test_a_config_without_a_real_engine_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = CONFIGS / "cpu_overlap.yaml"
    assert main([str(config), "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"{config}: pools.main.replicas.kind: must be vllm here\n"


def test_a_config_that_does_not_simulate_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = CONFIGS / "calibrate_live_cpu.yaml"
    assert main([str(config), "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"{config}: kind: must be simulate here, given 'calibrate'\n"


def test_when_its_time_is_over_it_validates_what_there_is_and_leaves_the_rest_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    for name in ("calibrate", "record", "validate", "virtual"):
        monkeypatch.setattr(Session, name, lambda self, name=name: done.append(name))
    assert main([str(CONFIGS / "live_smoke.yaml"), "--out", str(tmp_path), "--minutes", "0"]) == 0
    assert done == ["calibrate", "record", "validate"]
    assert capsys.readouterr().out.endswith("== virtual: left out, no time is left\n")


def test_the_workload_has_the_rate_the_lengths_and_the_shared_tokens_of_the_traffic(tmp_path: Path) -> None:
    session = Session(CONFIGS / "live_smoke.yaml", tmp_path, 60.0)
    arriving, prompts = session._workload(rate_per_s=5.0, duration_s=20.0, seed=0)
    assert len(arriving) == len(prompts) == 100
    at_s = np.array([at for at, _ in arriving])
    assert (np.diff(at_s) > 0).all()
    assert at_s[-1] == pytest.approx(20.0, abs=4 * 0.2 * 10)  # 100 gaps of 0.2 s: a standard deviation of 2 s
    assert all(40 <= len(prompt) <= 300 for prompt in prompts)
    assert all(4 <= output <= 40 for _, output in arriving)
    beginnings = {tuple(prompt[:64]) for prompt in prompts if len(prompt) > 64}
    assert len(beginnings) == 4
    assert session._workload(5.0, 20.0, seed=0) == (arriving, prompts)
    assert session._workload(5.0, 20.0, seed=1) != (arriving, prompts)
