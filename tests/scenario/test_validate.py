"""Recorded runs against simulated ones: an engine that is simulated exactly has no error, and each cause of one is told."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from accuracy.errors import Measures, errors, spread_between
from accuracy.measured.recordings import Recording
from accuracy.validations.run import is_repeat
from experiments import run
from experiments.cli import main
from sim.errors import ConfigError, TraceError
from tests.commands import ROOT
from tests.recordings import record, some_requests
from tests.shared import shared

USERS = ("ttft_s", "tpot_s", "e2e_s", "itl_s")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings, and a calibration on one of them."""
    folder = tmp_path_factory.mktemp("recordings")
    record(folder, "sweep", some_requests(40, seed=1))
    record(folder, "plain", some_requests(20))
    record(folder, "slow", some_requests(20), slowness=lambda at_s: 1.25)
    record(folder, "wavering", some_requests(20), slowness=lambda at_s: 1.0 if at_s < 200 else 1.5)
    record(folder, "shared", some_requests(20, shared=range(400)), caching=True)
    config = {"kind": "calibrate", "model": "llama-3.1-8b", "gpu": "h100-sxm", "recordings": str(folder), "include": ["sweep"]}
    (folder / "fit.yaml").write_text(yaml.safe_dump(config))
    assert main([str(folder / "fit.yaml"), "--out", str(folder)]) == 0
    return folder


def validated(folder: Path, out: Path, *include: str, **keys: Any) -> pd.DataFrame:
    config = {"kind": "validate", "recordings": str(folder), "include": [*include], **keys}
    config["calibration"] = str(folder / "fit" / "calibration.yaml")
    (out / "against.yaml").write_text(yaml.safe_dump(config))
    result = run(out / "against.yaml", out=out, progress=False)
    return pd.read_parquet(result.folder / "errors.parquet").set_index(["recording", "metric", "statistic"])


def worst(table: pd.DataFrame, recording: str, column: str = "error") -> float:
    rows = table.loc[recording]
    return float(rows[rows.index.get_level_values("metric").isin(USERS)][column].abs().max())


def test_an_engine_of_the_models_form_is_simulated_without_error(folder: Path, tmp_path: Path) -> None:
    table = validated(folder, tmp_path, "plain")
    # the fit stops at a thousandth (test_step_fit.py); a millisecond's bin of ITL is within 0.05 %
    assert worst(table, "plain") < 3e-3
    assert table.loc[("plain", "requests_per_s", "mean"), "error"] == pytest.approx(0, abs=1e-3)


def test_prompts_that_share_tokens_find_them_in_the_simulated_cache_as_in_the_real_one(folder: Path, tmp_path: Path) -> None:
    table = validated(folder, tmp_path, "shared")
    assert table.loc[("shared", "cached_token_share", "mean"), "real"] > 0.3
    assert table.loc[("shared", "cached_token_share", "mean"), "error"] == 0
    assert worst(table, "shared") < 3e-3


def test_a_simulated_run_can_be_run_again_from_its_folder(folder: Path, tmp_path: Path) -> None:
    validated(folder, tmp_path, "shared")
    first = tmp_path / "against" / "runs" / "shared"
    again = run(first / "config.yaml", out=tmp_path / "again", progress=False)
    assert again.manifest["config_hash"] == json.loads((first / "manifest.json").read_text())["config_hash"]
    pd.testing.assert_frame_equal(again.requests, pd.read_parquet(first / "requests.parquet"))


def test_a_slower_machine_is_an_error_until_one_scalar_allows_for_it(folder: Path, tmp_path: Path) -> None:
    as_it_is = validated(folder, tmp_path, "slow", drift="none")
    assert as_it_is.loc[("slow", "e2e_s", "p50"), "error"] == pytest.approx(1 / 1.25 - 1, abs=3e-3)
    assert not as_it_is.loc[("slow", "e2e_s", "p50"), "is_within"]
    allowed = validated(folder, tmp_path, "slow", drift="each")
    assert allowed.loc[("slow", "e2e_s", "p50"), "step_time_scale"] == pytest.approx(1.25, rel=3e-3)
    assert worst(allowed, "slow") < 3e-3


def test_one_scalar_for_all_is_between_those_of_each(folder: Path, tmp_path: Path) -> None:
    table = validated(folder, tmp_path, "plain", "slow", drift="one")
    (scale,) = set(table["step_time_scale"])
    assert 1.0 < scale < 1.25


def test_following_the_machine_tells_its_drift_from_our_errors(folder: Path, tmp_path: Path) -> None:
    table = validated(folder, tmp_path, "wavering", drift="each", follow_drift_s=10.0)
    assert worst(table, "wavering") > 0.1
    assert worst(table, "wavering", "followed_error") < 3e-3


def test_the_page_says_what_was_allowed_for_and_marks_what_is_off(folder: Path, tmp_path: Path) -> None:
    validated(folder, tmp_path, "slow", repeat_spread={"e2e_s": {"p50": 0.3}})
    page = (tmp_path / "against" / "report.md").read_text()
    assert "No allowance for drift" in page
    first_table = page.split("mean absolute error")[0]
    rows = {line.split("|")[1].strip(): line for line in first_table.splitlines() if line.startswith("| ")}
    assert "**-20.0 %**" in rows["E2E p90"]
    assert "-20.0 %" in rows["E2E p50"]  # two real runs differ by more than that,
    assert "**" not in rows["E2E p50"]  # so it is not marked
    assert "30.0 %" in rows["E2E p50"]
    assert (tmp_path / "against" / "plots" / "distributions.png").stat().st_size > 10_000


def test_repeated_real_runs_are_compared_with_each_other(folder: Path, tmp_path: Path) -> None:
    """The same workload on a machine that is 1.25 times slower: 2 (1.25 - 1) / (1.25 + 1) apart."""
    table = validated(folder, tmp_path, "plain", "slow")
    assert table.loc[("plain", "e2e_s", "p50"), "repeat_spread"] == pytest.approx(0.5 / 2.25, rel=1e-3)
    assert np.isnan(validated(folder, tmp_path, "plain").loc[("plain", "e2e_s", "p50"), "repeat_spread"])


@pytest.mark.parametrize(
    "change",
    [
        {"engine_args": {"enable_prefix_caching": True}},
        {"engine_args": {"max_num_seqs": 16}},
        {"num_gpu_blocks": 20_000},
        {"scheduler_config": {"async_scheduling": True}},
        {"model_config": {"num_hidden_layers": 2}},
    ],
)
def test_runs_of_another_engine_are_no_repeats(change: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    """The prefix cache on and off passed for two runs of one workload, which allowed 46 %."""
    for name, other in (("plain", "one"), ("slow", "two")):
        for path in folder.glob(f"{name}_*"):
            (tmp_path / path.name.replace(name, other)).write_text(path.read_text())
    one, two = (Recording(tmp_path, name) for name in ("one", "two"))
    assert is_repeat(one, two)
    meta = json.loads((tmp_path / "two_meta.json").read_text())
    for key, value in change.items():
        meta[key] = {**meta.get(key, {}), **value} if isinstance(value, dict) else value
    (tmp_path / "two_meta.json").write_text(json.dumps({**meta, "summary": {"n": 20}}))
    assert not is_repeat(one, Recording(tmp_path, "two"))


def test_runs_of_which_prompts_share_other_tokens_are_no_repeats(tmp_path: Path) -> None:
    for name, shared_tokens in (("one", range(400)), ("other", range(300))):
        requests = some_requests(5, shared=shared_tokens)
        record(tmp_path, name, [(at_s, prompt[:320], output) for at_s, prompt, output in requests], caching=True)
    one, other = (Recording(tmp_path, name) for name in ("one", "other"))
    assert (one.requests[["prompt_len", "output_len"]] == other.requests[["prompt_len", "output_len"]]).all(axis=None)
    assert is_repeat(one, one)
    assert not is_repeat(one, other)


def test_an_engine_argument_that_is_not_simulated_is_said(folder: Path, tmp_path: Path) -> None:
    for path in folder.glob("plain_*"):
        (tmp_path / path.name.replace("plain", "odd")).write_text(path.read_text())
    meta = json.loads((tmp_path / "odd_meta.json").read_text())
    meta["engine_args"]["decode_context_parallel_size"] = 2
    (tmp_path / "odd_meta.json").write_text(json.dumps(meta))
    config = {"kind": "validate", "recordings": str(tmp_path), "calibration": str(folder / "fit" / "calibration.yaml")}
    (tmp_path / "odd.yaml").write_text(yaml.safe_dump(config))
    result = run(tmp_path / "odd.yaml", out=tmp_path / "out", progress=False)
    assert "! odd: not simulated: decode_context_parallel_size=2" in (result.folder / "report.md").read_text()


def test_statistics_and_errors_by_hand() -> None:
    real = Measures({"ttft_s": np.array([1.0, 2.0, 3.0])}, rates={"requests_per_s": 2.0})
    simulated = Measures({"ttft_s": np.array([1.1, 2.2, 3.3])}, rates={"requests_per_s": 1.0})
    rows = {(row["metric"], row["statistic"]): row for row in errors(real, simulated, {"ttft_s": {"p50": 0.2}}, 0.05)}
    assert set(rows) == {("ttft_s", s) for s in ("mean", "p50", "p90", "p99")} | {("requests_per_s", "mean")}
    assert rows["ttft_s", "p50"]["error"] == pytest.approx(0.1)
    assert (rows["ttft_s", "p50"]["is_within"], rows["ttft_s", "p90"]["is_within"]) == (True, False)
    assert rows["requests_per_s", "mean"]["error"] == -0.5
    assert spread_between([real, simulated])["ttft_s"]["p50"] == pytest.approx(0.2 / 2.1)


def test_what_was_not_simulated_is_neither_within_nor_beyond_the_tolerance() -> None:
    (one,) = errors(Measures(statistics={("itl_s", "mean"): 0.01}), Measures(), {}, 0.05)
    assert np.isnan(one["error"])
    assert one["is_within"] is None


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"recordings": "nowhere"}, "recordings nowhere: no such folder"),
        (
            {"recordings": "nowhere.csv", "calibration": "calibrations/vllm-0.15_l40s_served.yaml"},
            "recordings nowhere.csv: no such folder",
        ),
        ({"include": ["plane"]}, "nothing is named 'plane'; there: plain, shared, slow"),
        ({"calibration": "none.yaml"}, "calibration none.yaml: no such file"),
        ({"calibration": "calibrations/vllm-0.15_l40s_served.yaml"}, "is of a GPU and any model, from served results"),
    ],
)
def test_what_is_missing_is_said_in_a_line(keys: dict[str, Any], said: str, folder: Path, tmp_path: Path) -> None:
    calibration = str(folder / "fit" / "calibration.yaml")
    config = {"kind": "validate", "recordings": str(folder), "calibration": calibration, **keys}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises((ConfigError, TraceError), match=said):
        run(tmp_path / "wrong.yaml", out=tmp_path, progress=False)
    assert not (tmp_path / "wrong").exists()


def in_milliseconds(table: str) -> str:
    head, *rows = table.splitlines()
    is_stamp = [name.endswith("_s") for name in head.split(",")]
    lines = [[str(1e3 * float(cell)) if stamp else cell for cell, stamp in zip(row.split(","), is_stamp, strict=True)]
             for row in rows]  # fmt: skip
    return "\n".join([head, *(",".join(line) for line in lines)])


def with_argument(**changes: Any) -> Callable[[str], str]:
    return lambda text: json.dumps({"engine_args": {**json.loads(text)["engine_args"], **changes}})


@pytest.mark.parametrize(
    ("file", "spoil", "said"),
    [
        ("requests.csv", lambda text: "", r"requests\.csv: is not a table of requests .No columns"),
        ("requests.csv", lambda text: text.splitlines()[0], r"requests\.csv: no request in it"),
        (
            "requests.csv",
            lambda text: text.replace("first_token_s", "first"),
            r"requests\.csv: no column first_token_s; needed",
        ),
        ("requests.csv", lambda text: re.sub(r"(?m)^(r1,)[^,]*", r"\1soon", text), "arrival_s is 'soon', no number, in row 3"),
        ("requests.csv", lambda text: re.sub(r"(?m)^(r1,)[^,]*", r"\1", text), "arrival_s is empty in row 3"),
        (
            "requests.csv",
            lambda text: re.sub(r"(?m)^(r1,)[^,]*", r"\g<1>1e6", text),
            "first_token_s is before arrival_s in row 3",
        ),
        ("requests.csv", in_milliseconds, r"steps begin within .* s and .* takes .* s; all stamps must be in seconds"),
        ("meta.json", lambda text: "{", r"meta\.json: is not JSON"),
        ("meta.json", lambda text: "[]", r"meta\.json: is not a mapping with engine_args, a mapping"),
        (
            "meta.json",
            with_argument(enforce_eager=False, max_num_seqs="8"),
            r"engine_args\.max_num_seqs is '8', no whole number",
        ),
        ("meta.json", with_argument(dtype="half"), "is of another engine than .*: dtype float16, calibrated was bfloat16"),
        ("meta.json", with_argument(tensor_parallel_size=2), "tensor_parallel_size 2, calibrated was 1"),
        ("meta.json", with_argument(model="Qwen/Qwen2.5-7B-Instruct"), "model qwen2.5-7b, calibrated was llama-3.1-8b"),
        (
            "meta.json",
            with_argument(max_num_batched_tokens=4),
            r"meta\.json: cannot be simulated: pools.*max_num_batched_tokens 4",
        ),
        ("steps.jsonl", lambda text: "[]", r"steps\.jsonl:1: is not a step"),
        ("prompts.json", lambda text: "[[1, 2", r"prompts\.json: is not JSON"),
        ("prompts.json", lambda text: '{"a": 1}', r"prompts\.json: its prompts are not as many"),
    ],
)
def test_a_bad_recording_is_refused_in_a_line(
    file: str, spoil: Callable[[str], str], said: str, folder: Path, tmp_path: Path
) -> None:
    for path in folder.glob("shared_*"):
        text = path.read_text()
        (tmp_path / path.name).write_text(spoil(text) if path.name == f"shared_{file}" else text)
    config = {"kind": "validate", "recordings": str(tmp_path), "calibration": str(folder / "fit" / "calibration.yaml")}
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump({**config, "drift": "each"}))
    with pytest.raises(TraceError, match=said) as error:
        run(tmp_path / "bad.yaml", out=tmp_path / "out", progress=False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out" / "bad").exists()


def test_recorded_runs_on_a_cpu_core_are_met(tmp_path: Path) -> None:
    """Issue 4's figures: calibrated on the sweep alone, one scalar for the machine's drift in each run, mean absolute errors.

    5 %, or where two real runs differ by more, that: 6 % for TPOT's median.
    """
    config = ROOT / "configs" / "validate_live_cpu.yaml"
    result = run(config, out=tmp_path, sets=[f"recordings={shared('data/live_cpu')}"], progress=False)
    table = pd.read_parquet(result.folder / "errors.parquet")
    found = table.groupby(["metric", "statistic"])[["error", "followed_error"]].agg(lambda column: column.abs().mean())
    for metric, statistic in (
        ("ttft_s", "p50"),
        ("tpot_s", "p90"),
        ("e2e_s", "p50"),
        ("e2e_s", "p90"),
        ("requests_per_s", "mean"),
    ):
        assert found.loc[(metric, statistic), "error"] < 0.05, (metric, statistic)
    assert found.loc[("tpot_s", "p50"), "error"] < 0.06
    page = (ROOT / "docs" / "calibration.md").read_text()
    documented = set()
    for line in page.split("Mean absolute errors")[1].splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells and cells[0].endswith((" p50", " p90")) and not cells[0].startswith("ITL"):
            documented.add(cells[0])
            key = (f"{cells[0].split()[0].lower()}_s", cells[0].split()[1])
            shown = [float(cell.rstrip("%")) / 100 for cell in cells[3:5]]
            # half of the last digit, and what another platform's rounding may do to a queue
            assert found.loc[key].tolist() == pytest.approx(shown, abs=0.005), f"docs/calibration.md is old: {line}"
    assert documented == {f"{metric} {percentile}" for metric in ("TTFT", "TPOT", "E2E") for percentile in ("p50", "p90")}
    # With the machine's drift followed, nothing but the simulator is left of the error.
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        assert found.loc[(metric, "p50"), "followed_error"] < 0.02, metric
    assert table[table["metric"] == "cached_token_share"]["error"].abs().max() < 0.01


def test_a_metric_that_the_simulation_does_not_have_is_neither_within_nor_beyond() -> None:
    real = Measures({"tpot_s": np.array([1.0, 2.0]), "ttft_s": np.array([1.0])})
    simulated = Measures({"tpot_s": np.array([np.nan, np.nan]), "ttft_s": np.array([1.0])})
    rows = errors(real, simulated, {}, 0.05)
    assert {row["metric"]: row["is_within"] for row in rows} == {"tpot_s": None, "ttft_s": True}
