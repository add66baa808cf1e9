"""Two commands, one folder: the second is refused while the first is at it, and nobody reads what another made."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments import run, running
from experiments.cli import main
from experiments.lock import held
from sim.errors import ConfigError
from tests.commands import CONFIG, ENVIRONMENT, SWEEP, command


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "day.yaml"
    path.write_text(CONFIG)
    return path


def test_two_seeds_at_once_into_one_folder_do_not_mix(config: Path) -> None:
    """Whoever comes second is refused, and every number left is of the first's seed."""
    config.write_text(CONFIG + SWEEP)
    both = {seed: command(config, "--seed", str(seed), "--jobs", "1") for seed in (1, 2)}
    codes = {seed: (one.wait(), one.communicate()[1]) for seed, one in both.items()}
    refused = [seed for seed, (code, _) in codes.items() if code == 2]
    if not refused:  # one of them had ended before the other began
        assert [code for code, _ in codes.values()] == [0, 0]
        return
    (second,) = refused
    assert "is writing there; wait until it is done, or choose another --out" in codes[second][1]
    found = pd.read_parquet("results/day/summary.parquet")
    assert set(found["seed"]) == {3 - second}
    assert {json.loads(path.read_text())["seed"] for path in Path("results/day").glob("*/manifest.json")} == {3 - second}


def test_the_second_command_is_told_who_writes_there_and_since_when(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with held([Path("results/day")]):
        assert main([str(config), "--jobs", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    since = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.match(rf"results/day: process {os.getpid()} on \S+, since {since} \(.*\), is writing there", line)
    assert main([str(config), "--jobs", "1"]) == 0
    assert not list(Path("results").glob(".*"))


def test_a_kept_result_is_not_read_while_another_command_writes_it(config: Path) -> None:
    run(config)
    with held([Path("results/day")]), pytest.raises(ConfigError, match="is writing there"):
        run(config)


def test_other_experiments_of_the_same_folder_may_run(config: Path) -> None:
    with held([Path("results/night")]):
        assert main([str(config)]) == 0


def test_of_several_experiments_one_that_is_taken_stops_the_command_before_it_writes(config: Path) -> None:
    config.with_name("night.yaml").write_text(CONFIG)
    with held([Path("results/night")]):
        assert main(["day.yaml", "night.yaml", "--jobs", "1"]) == 2
    assert not Path("results/day").exists()


def test_the_lock_of_a_killed_command_is_taken_over(config: Path) -> None:
    hold = "import sys, time, pathlib\nfrom experiments.lock import held\n"
    hold += "with held([pathlib.Path('results/day')]):\n    print('held', flush=True)\n    time.sleep(60)\n"
    holder = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert main([str(config)]) == 2
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert Path("results/.day.lock").exists()
    assert main([str(config)]) == 0
    assert not Path("results/.day.lock").exists()


def test_many_commands_that_take_turns_never_hold_together(tmp_path: Path) -> None:
    """A lock file that its holder removes while others open it must not be held twice."""
    script = """
import os, sys, time, pathlib
from experiments.lock import held
from sim.errors import ConfigError
ends = time.monotonic() + 2
while time.monotonic() < ends:
    try:
        with held([pathlib.Path("day")]):
            os.close(os.open("inside", os.O_CREAT | os.O_EXCL))
            os.unlink("inside")
    except ConfigError:
        pass
"""
    call = [sys.executable, "-c", script]
    several = [subprocess.Popen(call, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE) for _ in range(4)]
    assert [(one.communicate()[1], one.returncode) for one in several] == [(b"", 0)] * 4


def test_a_result_that_another_command_replaced_is_not_reported(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a file system without locks, or by another way to the same folder."""
    real = running.gather

    def replaced(runs: Any, out: Path) -> None:
        manifest = Path("results/day/manifest.json")
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "config_hash": "another"}))
        real(runs, out)

    monkeypatch.setattr(running, "gather", replaced)
    assert main([str(config)]) == 2
    printed = capsys.readouterr()
    assert "results/day: another command has written there meanwhile" in printed.err
    assert printed.out == ""


def test_a_variant_of_an_earlier_command_is_in_no_table(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another seed, and one of its two variants fails: the first seed's result of that still lies there, and is not shown."""
    config.write_text(CONFIG + SWEEP)
    assert main([str(config), "--seed", "1", "--jobs", "1"]) == 0
    config.with_name("own_routers.py").write_text("def choose(view):\n    return 1 / 0\n")
    config.write_text(CONFIG + "sweep: {router: {random: {kind: random}, least_loaded: {kind: 'own_routers:choose'}}}\n")
    capsys.readouterr()
    assert main([str(config), "--seed", "2", "--jobs", "1"]) == 2
    assert list(pd.read_parquet("results/day/summary.parquet")[["run", "seed"]].itertuples(index=False)) == [("random", 2)]
    page = Path("results/day/report.md").read_text()
    assert "! least_loaded failed, and is not here: own_routers:choose: ZeroDivisionError: division by zero" in page
