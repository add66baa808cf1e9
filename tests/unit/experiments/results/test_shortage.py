"""How long a fleet was short, by capacity and by targets, and its worst hour; and timelines that cannot say."""

import math
import re

import numpy as np
import pytest

from experiments import plots, report
from experiments.pages.figures import share
from experiments.results.shortage import ROW, fleet_rows, measured, shortage
from tests import synthetic


def timeline(num=3, length_s=60.0, **columns):
    """Rows of the whole fleet: nothing short, no request."""
    rows = np.full(num, np.nan, ROW)
    start_s = np.arange(num) * length_s
    plain = {"start_s": start_s, "end_s": start_s + length_s, "demand_per_s": 1.0, "capacity_per_s": 2.0, "judged": 0}
    for name, values in {**plain, **columns}.items():
        rows[name] = np.array(values, float)  # None is NaN
    return rows


def test_time_over_capacity_is_that_of_demand_above_it_not_at_it():
    assert shortage(timeline(demand_per_s=[1.0, 2.0, 2.1])).over_capacity_s == 60.0


def test_time_out_of_target_leaves_out_intervals_that_met_theirs_or_had_nothing_to_measure():
    assert shortage(timeline(4, targets_met=[True, False, None, False])).out_of_target_s == 120.0


def test_a_timeline_without_capacity_or_targets_does_not_say_never_short():
    found = shortage(timeline(capacity_per_s=np.nan))
    assert all(math.isnan(value) for value in found)


def test_one_interval_that_knows_its_capacity_is_enough_to_say():
    found = shortage(timeline(capacity_per_s=[np.nan, 0.5, 2.0], targets_met=[None, True, None]))
    assert (found.over_capacity_s, found.out_of_target_s) == (60.0, 0.0)


def test_the_worst_hour_begins_at_any_interval_and_weighs_each_by_its_requests():
    """Half-hours: 10 of 10, 0 of 30, 5 of 10, 10 of 10. The worst two in a row have 5 of 40."""
    found = shortage(timeline(4, 1800.0, judged=[10, 30, 10, 10], attainment=[1.0, 0.0, 0.5, 1.0]))
    assert found.worst_hour == 5 / 40


def test_the_worst_hours_share_is_of_whole_requests():
    """15 of 22 are a share whose product with 22 is a rounding more than 15."""
    assert shortage(timeline(2, 1800.0, judged=[22, 1], attainment=[15 / 22, 1.0])).worst_hour == 16 / 23


def test_an_hour_without_requests_is_not_the_worst():
    found = shortage(timeline(4, 1800.0, judged=[0, 0, 4, 4], attainment=[np.nan, np.nan, 0.5, 1.0]))
    assert found.worst_hour == 0.5  # of the second and third half-hour


@pytest.mark.parametrize(("num", "length_s"), [(59, 60.0), (2, 7300.0), (0, 60.0)])
def test_a_run_without_an_hour_in_it_has_no_worst_one(num, length_s):
    assert math.isnan(shortage(timeline(num, length_s, judged=1, attainment=0.5)).worst_hour)


def test_hours_in_which_no_request_could_be_held_to_a_target_have_no_worst_one():
    assert math.isnan(shortage(timeline(120)).worst_hour)


def test_an_hour_is_no_shorter_where_the_last_interval_is_cut_short():
    rows = timeline(5, 1800.0, judged=[10, 10, 10, 10, 0], attainment=[1.0, 0.0, 1.0, 1.0, np.nan])
    rows["end_s"][-1] -= 1790.0
    assert shortage(rows).worst_hour == 0.5


def test_a_run_of_an_hour_is_its_own_worst():
    assert shortage(timeline(60, judged=2, attainment=0.5)).worst_hour == 0.5


def test_the_measured_part_of_a_timeline_is_what_lies_in_the_window():
    rows = timeline(4)
    assert measured(rows, {"start_s": 60.0, "end_s": 180.0})["start_s"].tolist() == [60.0, 120.0]
    assert measured(rows, {"start_s": 59.0, "end_s": 181.0})["start_s"].tolist() == [60.0, 120.0]


def test_a_window_shorter_than_an_interval_is_not_the_whole_run():
    assert measured(timeline(4), {"start_s": 70.0, "end_s": 100.0})["start_s"].tolist() == [60.0]
    assert measured(timeline(4), {"start_s": 110.0, "end_s": 130.0})["start_s"].tolist() == [60.0, 120.0]
    assert measured(timeline(4), {"start_s": 60.0, "end_s": 100.0})["start_s"].tolist() == [60.0]
    assert measured(timeline(4), {"start_s": 70.0, "end_s": 120.0})["start_s"].tolist() == [60.0]


def leave(folder, ttft_s, **gauges):
    """A result folder of two hours, a request every 10 s; `ttft_s` (720,)."""
    folder.mkdir(parents=True)
    writer = synthetic.writer(folder, timeline_interval_s=600.0)
    writer.write_requests(0, synthetic.finished(np.arange(720) * 10.0, ttft_s, 0.01))
    for k in range(12):
        writer.write_interval([synthetic.gauges(k * 600.0, (k + 1) * 600.0, **gauges)])
    writer.finish([synthetic.machine()], synthetic.totals(7200.0))
    return folder


def test_rows_of_pools_are_not_counted_beside_those_of_the_fleet(tmp_path):
    rows = fleet_rows(leave(tmp_path / "day", 0.1))
    assert rows["start_s"].tolist() == [600.0 * k for k in range(12)]
    assert rows["num_ready"].tolist() == [1.0] * 12


def test_a_fleet_that_has_the_capacity_and_misses_its_targets_is_not_called_never_short(tmp_path):
    """The requests of 20 minutes wait 60 s each: 600 of 720 are in time, and 240 of 360 in the hour around them."""
    ttft_s = np.full(720, 0.1)
    ttft_s[120:240] = 60.0
    folder = leave(tmp_path / "day", ttft_s, capacity_per_s=5.0)
    (facts,) = plots.facts([folder])
    assert facts == (
        "demand never over capacity   ·   $20.00\n"
        "20 min out of target   ·   83.3 % of requests within targets, worst hour 66.6 %"
    )
    cells = dict(re.split("  +", line.strip()) for line in report.table([folder]).splitlines()[1:])
    assert (cells["minutes over capacity"], cells["minutes out of target"]) == ("0.0", "20.0")
    assert cells["worst hour within targets"] == "66.66 %"


def test_a_fleet_without_the_capacity_is_over_it_for_as_long_as_it_is(tmp_path):
    folder = leave(tmp_path / "day", 0.1, capacity_per_s=0.05)
    assert plots.facts([folder])[0].startswith("demand 2.0 h over capacity   ·   $20.00")


def test_all_but_one_of_a_million_requests_is_not_all(tmp_path):
    assert share(0.999999, 2) == "99.99 %"
    assert share(1.0, 1) == "100.0 %"


def test_a_run_that_ends_as_it_begins_is_drawn_empty_and_says_so(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    summary = synthetic.writer(folder).finish([], synthetic.totals(0.0))
    assert plots.day([folder], folder / "day.png").read_bytes().startswith(b"\x89PNG")
    assert plots.facts([folder]) == ["demand not known if ever over capacity   ·   0.00 GPU-hours\n2 targets not measurable"]
    assert summary["warnings"] == ["nothing was measured: the window begins at 0 s, and the run ended at 0 s"]
    assert report.table([folder]).splitlines()[-1].split()[-1] == "-"
