"""Several seeds: confidence intervals, and differences on the same traffic."""

import json
from pathlib import Path

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


def row(table: str, label: str, nth: int = 0) -> str:
    return [line for line in table.splitlines() if line.startswith(label)][nth]


def test_w13_seeds_that_do_not_tell_two_variants_apart_say_no_difference(tmp_path: Path) -> None:
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


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """2,000 samples of 5 normal values: the mean lies inside in 95 % of them, with a standard error of 0.5 %."""
    rng = np.random.default_rng(1)
    inside = 0
    for sample in rng.normal(3.0, 2.0, size=(2000, 5)):
        mean, half_width = replications.interval(sample.tolist())
        inside += abs(mean - 3.0) <= half_width
    assert inside / 2000 == pytest.approx(0.95, abs=4 * 0.0049)
