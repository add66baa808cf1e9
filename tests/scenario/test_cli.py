"""The command: its exit codes, what it prints where, and what it leaves."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments import run, runner
from experiments.cli import main
from experiments.running import folder_of, is_complete
from experiments.settings.loading import load
from sim.errors import ConfigError, TraceError
from tests.commands import CONFIG, SWEEP


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "day.yaml"
    path.write_text(CONFIG)
    return path


def test_mistakes_exit_with_2_and_no_traceback(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = config.with_name("other.yaml")
    other.write_text(CONFIG.replace("round_robin", "round_robbin"))
    config.write_text(CONFIG + "slo: {ttft_ms: {p99: 1000}}\n")
    assert main([str(config), str(other)]) == 2
    printed = capsys.readouterr()
    first, second = printed.err.splitlines()
    assert first.startswith(f"{config}: slo.ttft_ms: unknown key; did you mean 'ttft_s'")
    assert second.startswith(f"{other}: router.kind: no router named 'round_robbin'; did you mean 'round_robin'?")
    assert printed.out == ""


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--smok"], "no option '--smok'; did you mean --smoke?"),
        (["--jobs", "0", "x.yaml"], "must be a whole number from 1 up, given '0'"),
        (["--seed", "-1", "x.yaml"], "must be a whole number from 0 to 9,223,372,036,854,775,807, given '-1'"),
    ],
)
def test_wrong_options_exit_with_2(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def test_no_config_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "configs/day_forecast_vs_reactive.yaml" in capsys.readouterr().err


def test_missing_file_names_the_nearest(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dya.yaml"]) == 2
    assert capsys.readouterr().err == "dya.yaml: no such file; did you mean day.yaml?\n"


def test_dry_run_prints_a_config_that_loads_and_runs_nothing(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(config), "--dry-run", "--set", "traffic.limit=7"]) == 0
    printed = capsys.readouterr().out
    assert "100 requests expected over 20 s" in printed
    assert "= left for the KV cache" in printed
    again = config.with_name("again.yaml")
    again.write_text(printed)
    assert load(again)[0].hash == load(config, ["traffic.limit=7"])[0].hash
    assert sorted(path.name for path in config.parent.iterdir()) == ["again.yaml", "day.yaml"]


def test_a_file_after_the_sets_is_a_config(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dry-run", "--set", "traffic.limit=7", "router.kind=random", str(config)]) == 0
    printed = capsys.readouterr().out
    assert "limit: 7" in printed
    assert "kind: random" in printed


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schema"]) == 0
    kinds = {kind["properties"]["kind"]["const"]: kind for kind in json.loads(capsys.readouterr().out)["oneOf"]}
    assert set(kinds) == {"simulate", "plan", "calibrate", "calibrate_gpu", "validate"}
    assert all(kinds[kind]["properties"]["traffic"]["oneOf"] for kind in ("simulate", "plan"))


def test_a_missing_trace_exits_with_2_and_the_other_experiment_runs(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = config.with_name("replay.yaml")
    replay = "traffic: {kind: azure, path: nowhere.csv}\n" + CONFIG[CONFIG.index("router:") :]
    other.write_text(replay)
    assert main([str(other), str(config), "--jobs", "1"]) == 2
    printed = capsys.readouterr()
    assert "nowhere.csv: no such file; set traffic.path" in printed.err
    assert "Traceback" not in printed.err
    assert (config.parent / "results" / "day" / "manifest.json").exists()
    assert not (config.parent / "results" / "replay").exists()


def test_one_run_leaves_a_whole_folder_and_is_kept(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(config)]) == 0
    folder = config.parent / "results" / "day"
    first = (folder / "manifest.json").read_text()
    assert main([str(config)]) == 0
    assert "day: kept" in capsys.readouterr().err
    assert (folder / "manifest.json").read_text() == first
    assert main([str(config), "--force"]) == 0
    assert (folder / "manifest.json").read_text() != first
    assert not list(config.parent.glob("results/.*"))


def test_smoke_results_lie_apart_from_real_ones(config: Path) -> None:
    assert main([str(config), "--smoke"]) == 0
    assert (config.parent / "results" / "smoke" / "day" / "manifest.json").exists()
    assert not (config.parent / "results" / "day").exists()


def test_python_gives_data_frames(config: Path) -> None:
    result = run(config)
    assert len(result.requests) == result.manifest["counts"]["requests"]
    assert list(result.timeline["pool"].unique()) == ["all", "main"]
    assert len(result.replicas) == 2
    assert result.runs == []
    assert not result.summary.empty


def test_a_sweep_gathers_its_runs_also_in_parallel(config: Path) -> None:
    config.write_text(CONFIG + SWEEP)
    alone = run(config, out="alone")
    together = run(config, out="together", jobs=2, progress=False)
    assert [one.slug for one in together.runs] == ["random", "least_loaded"]
    assert list(together.requests["run"].unique()) == ["random", "least_loaded"]
    for one, other in zip(alone.runs, together.runs, strict=True):
        assert (one.folder / "requests.parquet").read_bytes() == (other.folder / "requests.parquet").read_bytes()
    gathered = pd.read_parquet("together/day/summary.parquet")
    assert list(gathered.columns[:3]) == ["run", "seed", "router.kind"]
    assert set(gathered["run"]) == {"random", "least_loaded"}


def test_a_sweep_replaces_the_single_result_of_the_same_name(config: Path) -> None:
    run(config)
    config.write_text(CONFIG + SWEEP)
    run(config)
    assert sorted(path.name for path in Path("results/day").iterdir()) == ["least_loaded", "random", "summary.parquet"]


def test_a_result_is_kept_only_while_config_code_and_inputs_are_the_same(config: Path) -> None:
    trace = config.with_name("trace.csv")
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,100,10\n")
    config.write_text("traffic: {kind: azure, path: trace.csv}\n" + CONFIG[CONFIG.index("router:") :])
    (one,) = load(config)
    run(config)
    folder = folder_of(one, Path("results"))
    assert is_complete(one, folder)
    (other,) = load(config, ["router.kind=random"])
    assert not is_complete(other, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "code": {"source_hash": "another"}}))
    assert not is_complete(one, folder)
    trace.touch()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert is_complete(one, folder)
    later = folder.joinpath("manifest.json").stat().st_mtime + 10
    os.utime(trace, (later, later))
    assert not is_complete(one, folder)


def test_a_foreign_folder_is_not_replaced(config: Path) -> None:
    precious = config.parent / "results" / "day"
    precious.mkdir(parents=True)
    (precious / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="exists and is no result folder"):
        run(config)
    assert (precious / "thesis.tex").exists()


def test_two_files_with_one_name_are_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.with_name("other.yaml").write_text(CONFIG + "name: day\n")
    assert main(["day.yaml", "other.yaml"]) == 2
    assert "other.yaml: name: 'day' is also the name in day.yaml" in capsys.readouterr().err


def test_errors_reach_python_as_they_are(config: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        run(config, sets=["router.kind=randm"])
    with pytest.raises(TraceError, match="no such file"):
        run(config, sets=["traffic={kind: azure, path: nowhere.csv}"])


def test_a_router_of_ones_own_runs_by_module_and_function(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.with_name("my_first_router.py").write_text("def last(view):\n    return view.candidates[-1]\n")
    monkeypatch.syspath_prepend(config.parent)
    result = run(config, sets=["router.kind=my_first_router:last"])
    assert result.requests["replica"].nunique() == 1


def test_our_own_bug_exits_with_1_and_a_traceback(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(runner, "run_one", broken)
    assert main([str(config)]) == 1
    printed = capsys.readouterr().err
    assert "our fault" in printed
    assert "RuntimeError: boom" in printed


def test_check_exits_with_1_when_a_percentile_moved(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(config), "--check", "baseline.json"]) == 2
    assert main([str(config), "--write-baseline", "baseline.json"]) == 0
    assert main([str(config), "--check", "baseline.json"]) == 0
    slower = ["--set", "pools.main.replicas.overhead_s=0.05"]
    assert main([str(config), *slower, "--check", "baseline.json"]) == 1
    assert "ttft_s" in capsys.readouterr().out


def test_importing_the_package_stays_cheap() -> None:
    script = "import sys, experiments; print('pandas' in sys.modules, 'numba' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).split() == ["False", "False"]
