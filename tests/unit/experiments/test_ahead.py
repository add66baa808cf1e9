"""A long run is announced with what it takes, and says how far it is where no bar can be seen."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from experiments import ahead, run, runner
from experiments.cli import main
from experiments.settings.loading import load
from sim.records import REQUEST, records
from sim.window import _in_larger_ring
from tests.commands import CONFIG
from tests.shared import shared

DAY = CONFIG.replace("rate_per_s: 5", "rate_per_s: 200").replace("duration_s: 20", "duration_s: 86400")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "day.yaml"
    path.write_text(CONFIG)
    return path


def said(path: Path, capsys: pytest.CaptureFixture[str], jobs: int = 1, sets: tuple[str, ...] = ()) -> str:
    ahead.say([one.experiment for one in load(path, sets)], jobs, Path("results"))
    return "".join(line for line in capsys.readouterr().err.splitlines() if not line.startswith("compiling"))


def test_a_long_run_says_its_size_time_memory_and_disk_ahead(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(DAY)
    assert said(config, capsys) == (
        "1 run of 17,280,000 requests in all: about 22 s to 3 min in 1 process, 0.3 GB of memory "
        "(up to 4.7 GB where the fleet does not keep up) and 1.3 GB of disk"
    )


def test_a_sweep_counts_its_runs_and_processes(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(DAY + "sweep: {router.kind: [random, vllm, round_robin, least_loaded]}\n")
    assert said(config, capsys, jobs=2) == (
        "4 runs of 69,120,000 requests in all: about 45 s to 6 min in 2 processes, 0.6 GB of memory "
        "(up to 9.3 GB where the fleet does not keep up) and 5.3 GB of disk"
    )


def test_a_disk_that_is_too_small_is_said_ahead(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(config, capsys, sets=("traffic.rate_per_s=1.0e+8",)).endswith(" GB are free")


def test_a_short_run_says_nothing_ahead(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(config, capsys) == ""


@pytest.mark.parametrize(
    ("sets", "num_requests"),
    [
        (("traffic.limit=7",), 7),
        (("traffic={kind: concurrent, limit: 9, max_concurrency: 2}",), 9),
        (("traffic={kind: azure, path: one.csv}",), 1),
    ],
)
def test_the_size_is_that_of_the_traffic(sets: tuple[str, ...], num_requests: int, config: Path) -> None:
    Path("one.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,100,10\n")
    (one,) = load(config, sets)
    found = ahead.needs(one.experiment)  # type: ignore[arg-type]
    assert found.num_requests == num_requests
    assert np.isfinite([*found.seconds, *found.memory_bytes]).all()


def test_shared_prompts_take_the_time_of_their_blocks(config: Path) -> None:
    path = shared("data/traces/mooncake/conversation_trace.jsonl")
    (one,) = load("mooncake", [f"traffic.path={path}"])
    low_s, high_s = ahead.needs(one.experiment).seconds  # type: ignore[arg-type]
    assert low_s < 2.3 < high_s  # as it was measured


def test_what_cannot_be_foreseen_is_left_out_and_not_a_failure(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(config, capsys, sets=("traffic={kind: azure, path: nowhere.csv}",)) == ""


def test_a_run_without_a_terminal_says_now_and_then_how_far_it_is(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "LINE_EVERY_S", 0.0)
    assert main([str(config), "--set", "traffic.rate_per_s=5000"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith("day: ") and " requests ended, " in line for line in lines)


def test_a_run_from_python_without_progress_stays_silent(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "LINE_EVERY_S", 0.0)
    monkeypatch.setattr(ahead, "LONG_S", 0.0)
    run(config, progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("first", "last"), [(0, 8), (3, 9), (7, 15), (13, 20), (16, 24), (5, 5)])
def test_a_window_that_grows_keeps_every_request_in_its_place(first: int, last: int) -> None:
    ring, numbers = records(REQUEST, 8), np.arange(first, last)
    ring["num_prompt_tokens"][numbers % 8] = numbers
    for size in (16, 64):
        larger = _in_larger_ring(ring, size, first, last)
        assert larger["num_prompt_tokens"][numbers % size].tolist() == numbers.tolist()


def test_a_window_that_grows_is_not_held_three_times() -> None:
    """A fleet that does not keep up holds a day's requests: growing them took three times their memory."""
    ring = records(REQUEST, 1 << 20)
    tracemalloc.start()
    _in_larger_ring(ring, 1 << 21, 0, 1 << 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.1 * ring.nbytes
