"""What a person is shown, and what a percentile held to a baseline says when it moves."""

import json

import numpy as np
import pytest

from experiments import plots, regression, report
from sim.errors import ConfigError
from sim.records import TIMED_OUT
from tests import synthetic


def result(root, slug="", *, ttft_s=0.5, lost=0, name="day"):
    """A result folder of 1,000 requests over 100 s, the first `lost` of them timed out."""
    folder = root / name / slug
    folder.mkdir(parents=True)
    rows = synthetic.finished(np.arange(1000) / 10, ttft_s, 0.01)
    rows["status"][:lost], rows["first_token_at_s"][:lost] = TIMED_OUT, np.nan
    writer = synthetic.writer(folder)
    writer.write_requests(0, rows)
    writer.write_interval([synthetic.gauges(0.0, 60.0, num_ready=1)])
    writer.write_interval([synthetic.gauges(60.0, 105.0, num_ready=3, capacity_per_s=15.0)])
    writer.finish([synthetic.machine()], synthetic.totals(105.0, [0.01] * 5))
    (folder / "config.yaml").write_text(f"name: {name}\n")
    return folder


def row(text, label):
    """The cells of one line of a table."""
    (line,) = [line for line in text.splitlines() if line.startswith(label)]
    return line[len(label) :].split()


def test_runs_stand_side_by_side_in_milliseconds(tmp_path):
    text = report.table([result(tmp_path, "forecast"), result(tmp_path, "queue_target", ttft_s=2.0)], width=100)
    assert text.splitlines()[0].split() == ["forecast", "queue_target"]
    assert row(text, "TTFT p99, ms") == ["500.0", "2,000.0"]
    assert row(text, "TTFT p99 <= 1,000 ms") == ["500.0", "ok", "2,000.0", "MISSED"]
    assert row(text, "requests within targets") == ["100.00", "%", "0.00", "%"]
    assert row(text, "replicas ready, mean / most") == ["1.9", "/", "3", "1.9", "/", "3"]


def test_a_percentile_that_misses_requests_is_marked(tmp_path):
    folder = result(tmp_path, lost=20)
    text = report.table([folder])
    assert row(text, "TTFT p99, ms") == [">500.0"]
    assert row(text, "TTFT p99 <= 1,000 ms") == ["never", "MISSED"]
    assert row(text, "  timed out") == ["20"]
    assert "20 of 1,000 requests did not finish" in report.warnings([folder])[0]


def test_many_runs_wrap_into_blocks_that_fit_the_terminal(tmp_path):
    text = report.table([result(tmp_path, f"router_{i}") for i in range(6)], width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("TTFT p99, ms") > 1


def test_the_summary_says_where_the_picture_is(tmp_path, capsys):
    folders = [result(tmp_path, "forecast"), result(tmp_path, "queue_target")]
    report.print_summary([*folders, result(tmp_path, name="other")])
    printed = capsys.readouterr().out
    for picture in (tmp_path / "day" / "plots" / "day.png", tmp_path / "other" / "plots" / "day.png"):
        assert str(picture) in printed
        assert picture.read_bytes().startswith(b"\x89PNG")
        page = picture.parents[1] / "report.md"
        assert str(page) in printed
        assert "![The runs over time](plots/day.png)" in page.read_text()


def test_a_run_without_any_request_can_be_drawn_and_reported(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    writer = synthetic.writer(folder)
    writer.write_interval([synthetic.gauges(0.0, 60.0, num_ready=0, capacity_per_s=0.0)])
    writer.finish([], synthetic.totals(60.0))
    assert plots.day([folder], folder / "day.png").exists()
    assert row(report.table([folder]), "TTFT p99, ms") == ["-"]


def test_a_baseline_of_the_same_runs_holds(tmp_path):
    folders = [result(tmp_path, f"forecast,seed={seed}", ttft_s=0.5 + seed / 100) for seed in (1, 2, 3)]
    regression.write_baseline(folders, tmp_path / "baseline.json")
    assert regression.check(folders, tmp_path / "baseline.json") == []
    entry = json.loads((tmp_path / "baseline.json").read_text())["experiments"]["day/forecast"]["ttft_s p99"]
    assert entry == {"mean": pytest.approx(0.52), "spread": pytest.approx(0.01), "seeds": 3}


def test_a_percentile_that_moved_is_named_with_its_size_and_the_spread_between_seeds(tmp_path):
    before = [result(tmp_path / "a", f"seed={seed}", ttft_s=0.5 + seed / 100) for seed in (1, 2, 3)]
    after = [result(tmp_path / "b", f"seed={seed}", ttft_s=0.6 + seed / 100) for seed in (1, 2, 3)]
    regression.write_baseline(before, tmp_path / "baseline.json")
    lines = regression.check(after, tmp_path / "baseline.json")
    (line,) = [line for line in lines if "ttft_s p99 " in line]
    assert line == (
        "day: ttft_s p99 moved from 520.000 ms to 620.000 ms (+19.2 %; "
        "10.0 times its spread of 10.000 ms over 3 seeds; allowed: 30.000 ms)"
    )
    assert not [line for line in lines if "tpot_s" in line]


def test_a_change_no_larger_than_between_seeds_is_no_regression(tmp_path):
    before = [result(tmp_path / "a", f"seed={seed}", ttft_s=0.5 + seed / 100) for seed in (1, 2, 3)]
    after = [result(tmp_path / "b", f"seed={seed}", ttft_s=0.52 + seed / 100) for seed in (1, 2, 3)]
    regression.write_baseline(before, tmp_path / "baseline.json")
    assert regression.check(after, tmp_path / "baseline.json") == []


def test_requests_lost_since_the_baseline_are_reported_even_when_percentiles_stay(tmp_path):
    regression.write_baseline([result(tmp_path / "a")], tmp_path / "baseline.json")
    lines = regression.check([result(tmp_path / "b", lost=30)], tmp_path / "baseline.json")
    assert any(line.startswith("day: finished moved from 100.000 % to 97.000 %") for line in lines)


def entry(mean, spread=None, seeds=1):
    return {"mean": mean, "spread": spread, "seeds": seeds}


@pytest.mark.parametrize(
    ("key", "was", "now", "line"),
    [
        ("ttft_s p99", entry(50.0), entry(51.0), ""),  # 2 %, as declared
        ("ttft_s p99", entry(1.0), entry(1.021), "+2.1 %; its spread is unknown, the baseline has one seed; allowed: 20"),
        ("ttft_s p99", entry(1.0), entry(0.979), "-2.1 %; its spread is unknown, the baseline has one seed; allowed: 20"),
        ("ttft_s p99", entry(1.0, 0.1, 3), entry(1.299), ""),  # three spreads
        ("ttft_s p99", entry(1.0, 0.1, 3), entry(1.4), "4.0 times its spread of 100.000 ms over 3 seeds; allowed: 300.000 ms"),
        ("ttft_s p99", entry(1.0, 0.0, 3), entry(1.4), "it was the same in all 3 seeds"),
        ("queue_s p50", entry(0.0), entry(0.0001), ""),  # a tenth of a millisecond
        ("queue_s p50", entry(0.0), entry(0.00011), "moved from 0.000 ms to 0.110 ms (0.110 ms more"),
        ("attainment", entry(0.0), entry(0.0001), "moved from 0.000 % to 0.010 % (0.010 % more"),  # no share is too small
        ("chat: finished", entry(1.0), entry(0.97), "moved from 100.000 % to 97.000 %"),
        ("attainment", entry(None), entry(None), ""),
        ("attainment", entry(None), entry(0.5), "attainment moved from nothing to 50.000 %"),
        ("attainment", entry(0.5), entry(None), "attainment moved from 50.000 % to nothing"),
        ("attainment", None, entry(0.5), "attainment is new"),
        ("attainment", entry(0.5), None, "attainment is gone"),
    ],
)
def test_a_quantity_moves_when_it_leaves_the_largest_of_its_tolerances(tmp_path, monkeypatch, key, was, now, line):
    baseline = tmp_path / "baseline.json"
    before = {} if was is None else {key: was}
    baseline.write_text(json.dumps({"tolerance": {}, "experiments": {"day": before}}))
    monkeypatch.setattr(regression, "measured", lambda folders: {"day": {} if now is None else {key: now}})
    lines = regression.check([], baseline)
    assert (len(lines), line in "".join(lines)) == (bool(line), True)


def test_a_quantity_that_one_seed_lacks_has_no_mean(tmp_path):
    folders = [result(tmp_path, "seed=1"), result(tmp_path, "seed=2", lost=1000)]
    found = regression.measured(folders)["day"]
    assert found["ttft_s p99"] == {"mean": None, "spread": None, "seeds": 2}
    assert found["finished"] == {"mean": 0.5, "spread": pytest.approx(0.5**0.5), "seeds": 2}
    assert {key.split()[0] for key in found} == {"ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s", "attainment", "finished"}


def test_classes_are_held_to_the_baseline_too(tmp_path):
    folder = tmp_path / "day"
    folder.mkdir()
    rows = synthetic.finished(np.arange(4.0), [0.5, 2.0, 3.0, 4.0], 0.01)
    rows["class_id"] = [0, 0, 0, 1]
    rows["status"][2] = TIMED_OUT
    writer = synthetic.writer(folder, classes=["chat", "batch"])
    writer.write_requests(0, rows)
    writer.finish([], synthetic.totals(10.0))
    found = regression.measured([folder])["day"]
    assert (found["chat: finished"]["mean"], found["batch: finished"]["mean"]) == (2 / 3, 1.0)
    assert (found["chat: attainment"]["mean"], found["batch: attainment"]["mean"]) == (1 / 3, 0.0)
    assert found["batch: ttft_s p50"]["mean"] == 4.0


@pytest.mark.parametrize("text", [None, "{}", "[1]", "not json"])
def test_a_file_that_is_no_baseline_is_the_users_mistake(tmp_path, text):
    baseline = tmp_path / "baseline.json"
    if text is not None:
        baseline.write_text(text)
    with pytest.raises(ConfigError, match=r"baseline\.json: .*--write-baseline"):
        regression.check([result(tmp_path)], baseline)


def test_an_experiment_that_the_baseline_does_not_know_is_the_users_mistake(tmp_path):
    regression.write_baseline([result(tmp_path, name="other")], tmp_path / "baseline.json")
    with pytest.raises(ConfigError, match="has no 'day'; it has: other"):
        regression.check([result(tmp_path)], tmp_path / "baseline.json")
