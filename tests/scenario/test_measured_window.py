"""The window that a summary is about: where it lies in the run, and what is in it."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import simpy
import yaml

from experiments import run
from experiments.cli import main
from experiments.contracts.fleets import engine
from experiments.runner import GapWindow
from experiments.settings.loading import load
from sim.errors import ConfigError
from sim.metrics import NUM_ITL_BINS
from sim.window import new_fleet

LENGTHS = {"prompt": {"kind": "fixed", "tokens": 100}, "output": {"kind": "fixed", "tokens": 20}}
PLAIN = {"kind": "constant", "rate_per_s": 5.0, "duration_s": 20.0, "lengths": LENGTHS}


def experiment(folder: Path, traffic: dict[str, Any], **measure: float) -> Path:
    pool = {"name": "main", "model": "llama-3.1-8b", "gpu": "h100-sxm", "replicas": {"kind": "surrogate"}}
    document = {
        "traffic": traffic,
        "router": {"kind": "round_robin"},
        "pools": [{**pool, "autoscaler": {"kind": "fixed", "replicas": 1}}],
        "measure": measure,
    }
    path = folder / "window.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_window_after_the_end_of_the_traffic_is_refused_before_the_run(tmp_path: Path) -> None:
    load(experiment(tmp_path, PLAIN, start_s=20))
    with pytest.raises(ConfigError, match=r"measure\.start_s: must lie before the traffic's end at 20 s, given 1,000"):
        load(experiment(tmp_path, PLAIN, start_s=1000))


def test_a_window_after_the_end_of_a_recording_is_refused_when_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row at 0 s and one at 20 s: the second is still in a window that begins with it."""
    (tmp_path / "rows.csv").write_text("at,prompt,answer\n0,100,20\n20,100,20\n")
    columns = {"arrived_at": "at", "num_prompt_tokens": "prompt", "num_output_tokens": "answer"}
    traffic = {"kind": "table", "path": str(tmp_path / "rows.csv"), "columns": columns, "time_unit": "s"}
    options = ["--jobs", "1", "--out", str(tmp_path / "out")]
    assert main([str(experiment(tmp_path, traffic, start_s=20)), *options]) == 0
    capsys.readouterr()
    assert main([str(experiment(tmp_path, traffic, start_s=21)), *options]) == 2
    assert "measure.start_s: must lie before the traffic's end at 20 s, given 21" in capsys.readouterr().err


@pytest.mark.parametrize("changes", [{"max_concurrency": 4}, {"limit": 10, "duration_s": 2000.0}])
def test_a_window_after_the_end_of_a_run_whose_end_nobody_knew_is_said_and_its_requests_are_kept(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    """A client that holds requests back may send them later, and where a limit cuts the traffic only the run shows."""
    folder = run(experiment(tmp_path, PLAIN | changes, start_s=1000), out=tmp_path / "out", progress=False).folder
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["warnings"][0].startswith("nothing was measured: the window begins at 1,000 s, and the run ended at ")
    whole = summary["all"]
    assert (whole["requests"]["arrived"], whole["requests_per_s"], whole["attainment"]) == (0, None, None)
    assert (whole["itl_s"]["n"], whole["itl_s"]["max"]) == (0, None)
    assert len(pd.read_parquet(folder / "requests.parquet")) >= 10


def test_a_window_that_no_request_falls_into_is_said(tmp_path: Path) -> None:
    """One every 0.2 s, from the first arrival on: none in the hundredth of a second after 10.1 s."""
    folder = run(experiment(tmp_path, PLAIN, start_s=10.11, end_s=10.12), out=tmp_path, progress=False).folder
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["all"]["requests"]["arrived"] == 0
    assert summary["warnings"][0] == "no request arrived between 10.11 and 10.12 s, where requests are measured"


def test_a_window_that_ends_after_the_run_is_said_to_end_with_it(tmp_path: Path) -> None:
    folder = run(experiment(tmp_path, PLAIN, start_s=5, end_s=2000), out=tmp_path, progress=False).folder
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["window"]["end_s"] < 21
    assert summary["warnings"][0].startswith("measure.end_s is 2,000, and the run ended at 20")


def test_gaps_are_those_between_tokens_in_the_window(tmp_path: Path) -> None:
    """Answers of 20 tokens, done long before the next arrival: the gaps in the window are those of its requests."""
    folder = run(experiment(tmp_path, PLAIN, start_s=5, end_s=10), out=tmp_path, progress=False).folder
    itl = json.loads((folder / "summary.json").read_text())["all"]["itl_s"]
    requests = pd.read_parquet(folder / "requests.parquet")
    inside = requests[(requests["arrived_at_s"] >= 5) & (requests["arrived_at_s"] < 10)]
    assert itl["n"] == pytest.approx(len(inside) * 19, abs=19)  # one may lie across an edge
    assert itl["p50"] <= itl["p99"] <= itl["max"]


def test_no_gap_is_counted_of_a_window_that_never_began() -> None:
    fleet = new_fleet(engine(), 1, NUM_ITL_BINS)
    env = simpy.Environment()
    window = GapWindow(fleet, 100.0, None)
    env.process(window.watch(env))
    fleet.itl_counts[0, 7], fleet.itl_sums[0] = 5, (1.0, 1.0, 0.5)
    env.run(50.0)
    counts, sums = window.taken(fleet)
    assert (counts.sum(), sums.sum()) == (0, 0.0)


def test_the_largest_gap_is_that_of_the_window() -> None:
    """0.5 s before it begins, 0.2 s in it, 0.9 s after its end."""
    fleet = new_fleet(engine(), 1, NUM_ITL_BINS)
    env = simpy.Environment()
    window = GapWindow(fleet, 10.0, 20.0)
    env.process(window.watch(env))
    for until_s, gap_s in ((5.0, 0.5), (15.0, 0.2), (25.0, 0.9)):
        env.run(until_s)
        fleet.itl_counts[0, 7] += 1
        sums = fleet.itl_sums[0]
        fleet.itl_sums[0] = sums[0] + gap_s, sums[1] + gap_s**2, max(sums[2], gap_s)
    env.run(30.0)
    counts, sums = window.taken(fleet)
    assert (counts.sum(), sums[0, 2]) == (1, 0.2)
    assert sums[0, 0] == pytest.approx(0.2)
