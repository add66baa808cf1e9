"""Several seeds: confidence intervals, and differences on the same traffic."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import replications


def folders(root: Path, variants: dict[str, list[float]]) -> list[Path]:
    """Result folders of `variants`: name -> TTFT p99 in seconds of seeds 1, 2, ..."""
    made = []
    for name, values in variants.items():
        for seed, ttft_s in enumerate(values, start=1):
            folder = root / f"{name},seed={seed}"
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text(json.dumps({"axes": {"router.kind": name}, "seed": seed}))
            latency = {"p50": ttft_s, "p99": ttft_s}
            scope = {"ttft_s": latency, "tpot_s": {"p50": None, "p99": None}, "e2e_s": latency}
            scope |= {"attainment": 1.0, "cost": {"dollars": None}}
            (folder / "summary.json").write_text(json.dumps({"all": scope}))
            made.append(folder)
    return made


def change(made: list[Path], **values: Any) -> None:
    """Replaces parts of the summaries in `made`."""
    for folder in made:
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({"all": summary["all"] | values}))


def row(table: str, label: str, nth: int = 0) -> str:
    return [line for line in table.splitlines() if line.startswith(label)][nth]


def test_seeds_that_do_not_tell_two_variants_apart_say_no_difference(tmp_path: Path) -> None:
    """Differences +1, -1, 0 s: mean 0, and t(0.975, 2) * 1 / sqrt(3) = 2.484 s around it."""
    table = replications.table(folders(tmp_path, {"a": [1.0, 2.0, 3.0], "b": [2.0, 1.0, 3.0]}))
    assert "+0.0 ± 2,484.1 no difference" in row(table, "TTFT p99, ms", nth=1)


def test_what_the_seeds_share_cancels_in_the_difference(tmp_path: Path) -> None:
    """The seeds spread by 10 s, the variants differ by 1.0, 1.1 and 0.9 s in each: 1 s, give or take 2.484 * 0.1 s."""
    table = replications.table(folders(tmp_path, {"a": [10.0, 20.0, 30.0], "b": [11.0, 21.1, 30.9]}))
    assert "20,000.0 ± 24,841.4" in row(table, "TTFT p99, ms")
    assert "+1,000.0 ± 248.4 higher" in row(table, "TTFT p99, ms", nth=1)


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    assert replications.table(folders(tmp_path, {"a": [1.0], "b": [2.0]})) == ""


def test_a_value_that_does_not_exist_is_a_dash(tmp_path: Path) -> None:
    table = replications.table(folders(tmp_path, {"a": [1.0, 2.0]}))
    assert row(table, "TPOT p99, ms").split() == ["TPOT", "p99,", "ms", "-"]
    assert row(table, "dollars").split() == ["dollars", "-"]


def test_a_difference_is_of_all_seeds_that_both_have_or_none(tmp_path: Path) -> None:
    """Seed 2 of b has no TTFT: two pairs are left of three, and a mean of those is not the mean that the head says."""
    made = folders(tmp_path, {"a": [1.0, 2.0, 3.0], "b": [2.0, 1.0, 3.0]})
    change(made[4:5], ttft_s={"p50": 1.0, "p99": None})
    table = replications.table(made)
    assert row(table, "TTFT p99, ms").endswith(" -")
    assert row(table, "TTFT p99, ms", nth=1).split()[-1] == "-"
    assert "no difference" in row(table, "TTFT p50, ms", nth=1)


def test_a_share_that_no_request_can_be_held_to_is_a_dash(tmp_path: Path) -> None:
    made = folders(tmp_path, {"a": [1.0, 2.0], "b": [1.0, 2.0]})
    change(made, attainment=None)
    table = replications.table(made)
    assert row(table, "requests within targets, %").split()[-2:] == ["-", "-"]
    assert row(table, "requests within targets, %", nth=1).split()[-1] == "-"


def test_a_difference_as_large_as_its_interval_is_none_and_a_larger_one_has_a_sign(tmp_path: Path) -> None:
    """Two seeds: half the interval is t(0.975, 1) = 12.706 times half their distance."""
    lower = folders(tmp_path / "lower", {"a": [2.0, 3.0], "b": [1.0, 2.0]})
    assert "-1,000.0 ± 0.0 lower" in row(replications.table(lower), "TTFT p99, ms", nth=1)
    same = folders(tmp_path / "same", {"a": [2.0, 3.0], "b": [2.0, 3.0]})
    assert "+0.0 ± 0.0 no difference" in row(replications.table(same), "TTFT p99, ms", nth=1)


def test_the_second_and_third_variants_are_held_against_the_first(tmp_path: Path) -> None:
    table = replications.table(folders(tmp_path, {"a": [1.0, 2.0], "b": [2.0, 3.0], "c": [4.0, 5.0]}))
    assert "against a, same traffic" in table
    assert [cell for cell in row(table, "TTFT p99, ms", nth=1).split() if cell.startswith("+")] == ["+1,000.0", "+3,000.0"]
    assert "a (n=2)" in row(table, "mean over seeds")


def test_a_variant_with_one_seed_and_a_folder_without_a_manifest_are_left_out(tmp_path: Path) -> None:
    made = folders(tmp_path, {"a": [1.0, 2.0], "b": [1.0]})
    (tmp_path / "other").mkdir()
    table = replications.table([*made, tmp_path / "other"])
    assert row(table, "mean over seeds").split() == ["mean", "over", "seeds", "a", "(n=2)"]
    assert "against" not in table


def test_dollars_and_shares_have_their_units(tmp_path: Path) -> None:
    made = folders(tmp_path, {"a": [1.0, 2.0]})
    change(made, attainment=0.75, cost={"dollars": 12.5})
    table = replications.table(made)
    assert row(table, "dollars").split()[1:] == ["12.50", "±", "0.00"]
    assert row(table, "requests within targets, %").split()[-3:] == ["75.000", "±", "0.000"]
    assert row(table, "E2E p99, ms").split()[-3:] == ["1,500", "±", "6,353"]  # 12.706 * 0.7071 s / sqrt(2)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """2,000 samples of 5 normal values: the mean lies inside in 95 % of them, with a standard error of 0.5 %."""
    rng = np.random.default_rng(1)
    inside = 0
    for sample in rng.normal(3.0, 2.0, size=(2000, 5)):
        mean, half_width = replications.interval(sample.tolist())
        inside += abs(mean - 3.0) <= half_width
    assert inside / 2000 == pytest.approx(0.95, abs=4 * 0.0049)
