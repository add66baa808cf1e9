"""What a result folder says of itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments import provenance, run
from experiments.contracts.fleets import arrivals, engine
from experiments.contracts.fleets import run as run_fleet
from experiments.settings.loading import load
from replicas.integrity import recount
from tests.commands import ROOT

CONFIG = ROOT / "configs" / "cpu_overlap.yaml"
SETS = ["sweep=null", "traffic.limit=200"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(CONFIG, out=tmp_path_factory.mktemp("results"), sets=SETS, progress=False).folder


def test_the_inputs_are_echoed_in_the_result(folder: Path) -> None:
    (original,) = load(CONFIG, SETS)
    (echoed,) = load(folder / "config.yaml")
    assert echoed.hash == original.hash


def test_the_result_names_the_code_that_made_it(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["code"]["source_hash"] == provenance.source_hash()
    assert set(manifest["packages"]) >= {"numba", "numpy", "python", "simpy"}


def test_every_invariant_was_checked_in_the_run(folder: Path) -> None:
    checked = json.loads((folder / "manifest.json").read_text())["invariants_checked"]
    assert [name.split()[0] for name in checked] == [str(number) for number in range(1, 13)]


def test_the_folder_is_whole_and_nothing_else_is_left(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    tables = {f"{name}.parquet" for name in ("requests", "timeline", "replicas", "summary")}
    assert names >= tables | {"manifest.json", "config.yaml", "summary.json"}
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert len(pd.read_parquet(folder / "requests.parquet")) == 200


def test_what_a_killed_run_left_behind_is_cleared(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    remains = tmp_path / f".cpu_overlap.{dead.pid}.partial"
    remains.mkdir()
    alive = tmp_path / f".cpu_overlap.{os.getppid()}.partial"
    alive.mkdir()
    run(CONFIG, out=tmp_path, sets=SETS, progress=False)
    assert {path.name for path in tmp_path.iterdir()} == {"cpu_overlap", alive.name}


def test_a_request_holds_blocks_for_its_prompt_and_its_answer() -> None:
    """17 tokens of prompt and 31 of answer: 47 have KV when the last is sampled, 3 blocks of 16; 3 are enough, 2 are not."""
    enough = run_fleet(arrivals([(0.0, 17, 31)]), engine(num_usable_blocks=3))
    short = run_fleet(arrivals([(0.0, 17, 31)]), engine(num_usable_blocks=2))
    assert enough.requests.status.tolist() == [1]
    assert short.requests.status.tolist() == [2]


def test_a_gauge_has_one_owner_so_a_recount_never_differs() -> None:
    """Requests still in the engine: what it shows equals what a walk over its lists finds."""
    ran = run_fleet(arrivals([(0.0, 100, 1000)] * 9), engine(max_num_seqs=4), max_drain_s=0.5)
    seen = [row for row in ran.intervals if row["num_running"]]
    assert ran.simulation.is_cut_short
    assert ran.simulation.audit.num_miscounts == ran.simulation.audit.num_lost_blocks == 0
    assert [(row["num_running"], row["num_waiting"]) for row in seen] == [(4, 5)]
    counts = np.zeros(6, np.int64)
    recount(ran.plane.fleet, 0, counts)
    assert counts.tolist() == [0] * 6  # halted at the end
