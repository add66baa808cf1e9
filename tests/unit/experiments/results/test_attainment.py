"""Which requests are held to targets, which meet them, and what is said where there is nothing to measure."""

import json

import numpy as np
import pandas as pd
import pytest

from experiments import plots, regression, report
from experiments.results.writer import PoolInfo
from sim.metrics import judged, meets
from sim.records import FAILED, FINISHED, IN_FLIGHT, REJECTED
from tests import synthetic

TPOT, ITL = {"tpot_s": {"p90": 0.05}}, {"itl_s": {"p99": 0.1}}


def leave(folder, rows, gaps_s=(), **given):
    """Writes `rows` as a whole result folder of one experiment, an interval of 100 s, and returns its summary."""
    folder.mkdir(exist_ok=True)
    writer = synthetic.writer(folder, timeline_interval_s=100.0, **given)
    writer.write_requests(0, rows)
    pools = given.get("pools", [PoolInfo("main")])
    writer.write_interval([synthetic.gauges(0.0, 100.0, pool.name) for pool in pools])
    (folder / "config.yaml").write_text(f"name: {folder.name}\n")
    return writer.finish([synthetic.machine()], synthetic.totals(100.0, gaps_s, len(pools)))


def printed(folder):
    """Label -> cell of the one run's table."""
    lines = [line.rpartition("  ") for line in report.table([folder]).splitlines()[1:]]
    return {label.strip(): cell for label, _, cell in lines}


def targets_met(folder):
    """Scope and name -> `targets_met` of summary.parquet, None for null."""
    table = pd.read_parquet(folder / "summary.parquet")
    return {row.name: None if pd.isna(row.targets_met) else bool(row.targets_met) for row in table.itertuples(index=False)}


def one_token_answers(n=100):
    return synthetic.finished(np.arange(float(n)), 0.1, 0.0, num_output_tokens=1)


def test_a_target_on_a_metric_that_no_request_has_is_not_measurable_rather_than_met_by_all(tmp_path):
    summary = leave(tmp_path / "made_up", one_token_answers(), slo=TPOT)
    whole = summary["all"]
    assert (whole["judged"], whole["attainment"], whole["goodput_per_s"]) == (0, None, None)
    assert [target["met"] for target in summary["targets"]] == [None]
    assert targets_met(tmp_path / "made_up") == {"all": None}
    cells = printed(tmp_path / "made_up")
    assert cells["TPOT p90 <= 50 ms"] == cells["requests within targets"] == cells["goodput, requests/s"] == "not measurable"
    assert cells["minutes out of target"] == "-"
    timeline = pd.read_parquet(tmp_path / "made_up" / "timeline.parquet")
    assert timeline["attainment"].isna().all()
    assert timeline["targets_met"].isna().all()
    assert timeline["judged"].tolist() == [0, 0]


def test_a_picture_of_targets_that_are_not_measurable_says_so(tmp_path):
    leave(tmp_path / "made_up", one_token_answers(), slo=TPOT)
    (facts,) = plots.facts([tmp_path / "made_up"])
    assert facts.splitlines()[1:] == ["TPOT p90 not measurable"]


def test_a_baseline_whose_share_becomes_unmeasurable_moves(tmp_path):
    folder = tmp_path / "made_up"
    leave(folder, synthetic.finished(np.arange(10.0), 0.1, 0.01), slo=TPOT)
    regression.write_baseline([folder], tmp_path / "baseline.json")
    entries = json.loads((tmp_path / "baseline.json").read_text())["experiments"]
    assert entries["made_up"]["attainment"]["mean"] == 1.0
    leave(folder, one_token_answers(), slo=TPOT)
    lines = regression.check([folder], tmp_path / "baseline.json")
    assert "made_up: attainment moved from 100.000 % to nothing" in lines


def test_refused_requests_for_one_token_miss_no_tpot(tmp_path):
    """98 one-token answers, and two requests for one token that were refused: there is no TPOT to be late with."""
    rows = one_token_answers()
    rows["status"][:2], rows["first_token_at_s"][:2], rows["num_generated_tokens"][:2] = REJECTED, np.nan, 0
    summary = leave(tmp_path, rows, slo=TPOT)
    assert [(target["met"], target["n"], target["missing"]) for target in summary["targets"]] == [(None, 0, 0)]
    assert summary["all"]["attainment"] is None
    assert summary["all"]["tpot_s"]["missing"] == 0
    assert summary["all"]["ttft_s"]["missing"] == summary["all"]["e2e_s"]["missing"] == 2


def test_requests_that_were_refused_count_against_every_target_that_they_should_have_met(tmp_path):
    """Ten requests: five one-token answers, three in time, and two of four tokens that never came: 3 of 5 within TPOT."""
    rows = synthetic.finished(np.arange(10.0), 0.1, 0.01, num_output_tokens=[1] * 5 + [4] * 5)
    rows["status"][8:], rows["first_token_at_s"][8:], rows["num_generated_tokens"][8:] = REJECTED, np.nan, 0
    whole = leave(tmp_path, rows, slo=TPOT)["all"]
    assert (whole["judged"], whole["attainment"], whole["goodput_per_s"]) == (5, 0.6, 0.03)
    assert (whole["tpot_s"]["n"], whole["tpot_s"]["missing"]) == (3, 2)


def test_an_answer_that_was_cut_to_one_token_is_held_to_no_tpot(tmp_path):
    rows = one_token_answers(2)
    rows["num_output_tokens"] = 5
    rows["num_generated_tokens"][1], rows["finished_at_s"][1] = 5, rows["first_token_at_s"][1] + 0.4
    whole = leave(tmp_path, rows, slo=TPOT)["all"]
    assert (whole["judged"], whole["attainment"], whole["tpot_s"]["missing"]) == (1, 0.0, 0)


def test_one_token_answers_are_held_to_the_other_targets(tmp_path):
    rows = one_token_answers(4)
    rows["first_token_at_s"][:1] += 5.0
    rows["finished_at_s"][:1] += 5.0
    whole = leave(tmp_path, rows)["all"]  # TTFT p99 and TPOT p90
    assert (whole["judged"], whole["attainment"]) == (4, 0.75)


def test_a_class_without_targets_neither_meets_nor_misses_any(tmp_path):
    """5 of chat's 10 requests are in time, batch has no targets: half of those that have one, not three quarters of all."""
    rows = synthetic.finished(np.arange(20.0), [0.5] * 5 + [2.0] * 5 + [0.5] * 10, 0.01)
    rows["class_id"] = [0] * 10 + [1] * 10
    slo = {"classes": {"chat": {"ttft_s": {"p90": 1.0}}}}
    summary = leave(tmp_path / "made_up", rows, classes=["chat", "batch"], slo=slo)
    assert (summary["all"]["judged"], summary["all"]["attainment"], summary["all"]["goodput_per_s"]) == (10, 0.5, 0.05)
    chat, batch = (summary["classes"][name] for name in ("chat", "batch"))
    assert (chat["judged"], chat["attainment"]) == (10, 0.5)
    assert (batch["judged"], batch["attainment"], batch["goodput_per_s"]) == (0, None, None)
    assert targets_met(tmp_path / "made_up") == {"all": False, "chat": False, "batch": None}
    assert printed(tmp_path / "made_up")["requests within targets"] == "50.00 %"
    timeline = pd.read_parquet(tmp_path / "made_up" / "timeline.parquet")
    assert (timeline["judged"].tolist(), timeline["attainment"].tolist()) == ([10, 10], [0.5, 0.5])


def test_a_run_without_targets_has_no_share_within_them(tmp_path):
    summary = leave(tmp_path / "made_up", synthetic.finished(np.arange(4.0), 0.1, 0.01), slo={})
    assert (summary["all"]["attainment"], summary["all"]["goodput_per_s"]) == (None, None)
    assert "requests within targets" not in printed(tmp_path / "made_up")
    assert "minutes out of target" not in printed(tmp_path / "made_up")


def test_a_missed_target_on_gaps_alone_is_missed_and_no_share_of_requests(tmp_path):
    rows = synthetic.finished(np.arange(4.0), 0.1, 0.01)
    summary = leave(tmp_path / "made_up", rows, [0.2] * 10, slo=ITL)
    assert [target["met"] for target in summary["targets"]] == [False]
    assert (summary["all"]["judged"], summary["all"]["attainment"]) == (0, None)
    assert targets_met(tmp_path / "made_up") == {"all": False}
    cells = printed(tmp_path / "made_up")
    assert cells["ITL p99 <= 100 ms"] == "200.0 MISSED"
    assert cells["requests within targets, ITL aside"] == "not measurable"
    (facts,) = plots.facts([tmp_path / "made_up"])
    assert facts.splitlines()[1:] == ["ITL p99 missed"]


def test_a_share_of_requests_beside_a_target_on_gaps_says_that_it_does_not_cover_it(tmp_path):
    rows = synthetic.finished(np.arange(4.0), [0.1, 0.1, 0.1, 2.0], 0.01)
    leave(tmp_path / "made_up", rows, [0.2] * 10, slo=ITL | {"ttft_s": {"p50": 1.0}})
    cells = printed(tmp_path / "made_up")
    assert cells["requests within targets, ITL aside"] == "75.00 %"
    assert cells["minutes out of target, ITL aside"] == "0.0"
    assert targets_met(tmp_path / "made_up") == {"all": False}
    (facts,) = plots.facts([tmp_path / "made_up"])
    assert facts.splitlines()[1:] == ["never out of target   ·   75.0 % of requests within targets", "ITL p99 missed"]


def test_a_target_on_gaps_is_judged_though_classes_have_targets_of_their_own(tmp_path):
    """Classes share engines: gaps have no class, so that the target of all is judged of all, and a class's own of none."""
    rows = synthetic.finished(np.arange(2.0), 0.1, 0.01)
    rows["class_id"] = [0, 1]
    slo = ITL | {"classes": {"chat": {"ttft_s": {"p99": 1.0}, "itl_s": {"p99": 0.3}}}}
    summary = leave(tmp_path / "made_up", rows, [0.2] * 10, classes=["chat", "batch"], slo=slo)
    found = {(target["scope"], target["metric"]): target["met"] for target in summary["targets"]}
    assert found == {("all", "itl_s"): False, ("chat", "ttft_s"): True, ("chat", "itl_s"): None}
    assert targets_met(tmp_path / "made_up") == {"all": False, "chat": None, "batch": None}


@pytest.mark.parametrize(("tpot_s", "expected"), [(0.01, True), (0.2, False)])
def test_all_targets_are_met_only_when_each_is(tmp_path, tpot_s, expected):
    rows = synthetic.finished(np.arange(10.0), 0.1, tpot_s)
    leave(tmp_path, rows)
    assert targets_met(tmp_path) == {"all": expected}


def test_one_target_missed_and_one_not_measurable_are_missed_together(tmp_path):
    rows = one_token_answers(10)
    rows["first_token_at_s"] += 5.0
    rows["finished_at_s"] += 5.0
    leave(tmp_path, rows)
    assert targets_met(tmp_path) == {"all": False}


def test_pools_are_not_judged_by_targets(tmp_path):
    rows = synthetic.finished(np.arange(2.0), 0.1, 0.01)
    leave(tmp_path, rows, pools=[PoolInfo("main"), PoolInfo("other")])
    assert targets_met(tmp_path) == {"all": True, "main": None, "other": None}


def test_a_request_of_a_class_without_targets_is_no_good_one():
    values = {"ttft_s": np.array([0.5])}
    assert meets(values, np.array([FINISHED]), {}).tolist() == [False]
    assert judged(np.array([4]), {}).tolist() == [False]


@pytest.mark.parametrize("status", [FAILED, REJECTED, IN_FLIGHT])
def test_a_request_that_did_not_finish_meets_nothing_though_its_first_token_came_in_time(status):
    assert meets({"ttft_s": np.array([0.5])}, np.array([status]), {"ttft_s": 1.0}).tolist() == [False]
