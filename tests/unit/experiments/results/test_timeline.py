"""timeline.parquet, from made-up requests and gauges: scopes, sums, shares and targets of an interval."""

import numpy as np
import pandas as pd
import pytest

from experiments.results import writer as results
from experiments.results.writer import PoolInfo
from sim.records import IN_FLIGHT, REJECTED
from tests import synthetic

MAIN = [PoolInfo("main")]
TWO = [PoolInfo("big"), PoolInfo("small")]


def table(folder, rows=None, intervals=(), *, duration_s=60.0, pools=MAIN, machines=(0,), **given):
    """The timeline of `rows`, with machine k in pool k, and of `intervals`, lists of gauges."""
    writer = synthetic.writer(folder, pools=list(pools), **given)
    for machine in machines:
        writer.add_machine(machine, machine)
    writer.write_requests(0, synthetic.requests(0) if rows is None else rows)
    for gauges in intervals:
        writer.write_interval(gauges)
    writer.finish([synthetic.machine(pool=pools[0].name)], synthetic.totals(duration_s, num_pools=len(pools)))
    return pd.read_parquet(folder / "timeline.parquet")


def two_pools(first, second, start_s=0.0):
    return [synthetic.gauges(start_s, start_s + 60.0, pool, **given) for pool, given in (("big", first), ("small", second))]


def whole(found):
    return found[found["scope"] == "all"].reset_index(drop=True)


def test_the_fleets_row_and_its_pools_are_marked_so_that_a_sum_over_one_scope_is_the_bill(tmp_path):
    first, second = {"gpu_hours": 1.0, "dollars": 2.0}, {"gpu_hours": 0.5, "dollars": 3.0}
    found = table(tmp_path, intervals=[two_pools(first, second)], pools=TWO)
    assert found.columns[0] == "scope"
    assert found[["scope", "pool"]].to_numpy().tolist() == [["all", "all"], ["pool", "big"], ["pool", "small"]]
    sums = found.groupby("scope")[["gpu_hours", "dollars"]].sum()
    assert sums.loc["all"].tolist() == sums.loc["pool"].tolist() == [1.5, 5.0]


def test_a_pool_named_all_keeps_its_own_row(tmp_path):
    pools = [PoolInfo("all"), PoolInfo("small")]
    gauges = [synthetic.gauges(0.0, 60.0, "all", num_ready=1), synthetic.gauges(0.0, 60.0, "small", num_ready=2)]
    found = table(tmp_path, intervals=[gauges], pools=pools)
    assert found["num_ready"].tolist() == [3, 1, 2]


def test_cache_use_of_a_fleet_is_weighted_by_its_pools_ready_replicas(tmp_path):
    """One replica at 90 %, three at 10 %: 30 % a replica, not 50 % a pool."""
    intervals = [two_pools({"num_ready": 1, "kv_cache_usage": 0.9}, {"num_ready": 3, "kv_cache_usage": 0.1})]
    found = table(tmp_path, intervals=intervals, pools=TWO)
    np.testing.assert_allclose(found["kv_cache_usage"], [0.3, 0.9, 0.1])


def test_cache_use_of_no_replica_is_null_rather_than_empty(tmp_path):
    """A pool that is scaled to zero counts neither as used nor as free."""
    none, one = {"num_ready": 0, "kv_cache_usage": 0.0}, {"num_ready": 1, "kv_cache_usage": 0.4}
    found = table(tmp_path, intervals=[two_pools(none, one), two_pools(none, none, 60.0)], duration_s=120.0, pools=TWO)
    assert found["kv_cache_usage"].isna().tolist() == [False, True, False, True, True, True]
    assert found["kv_cache_usage"].dropna().tolist() == [0.4, 0.4]


def test_gauges_of_a_fleet_are_its_pools_sums_and_a_price_is_null_as_soon_as_one_pool_has_none(tmp_path):
    names = ("num_ready", "num_starting", "num_draining", "desired", "capacity_per_s", "num_waiting", "num_running")
    first = dict(zip(names, range(1, 8), strict=True)) | {"dollars": None}
    second = dict(zip(names, range(11, 18), strict=True)) | {"dollars": 1.0}
    found = whole(table(tmp_path, intervals=[two_pools(first, second)], pools=TWO))
    assert found[list(names)].iloc[0].tolist() == [12, 14, 16, 18, 20, 22, 24]
    assert found["dollars"].isna().all()


def test_each_pool_has_its_own_arrivals_completions_and_latencies(tmp_path):
    """Three requests: one of each pool, and one that no pool got, which is the fleet's alone."""
    rows = synthetic.finished([10.0, 20.0, 30.0], [1.0, 2.0, 3.0], 0.01)
    rows["machine"] = [0, 1, -1]
    found = table(tmp_path, rows, pools=TWO, machines=(0, 1))
    assert found["arrivals"].tolist() == [3, 1, 1]
    assert found["completions"].tolist() == [3, 1, 1]
    assert found["ttft_p50_s"].tolist() == [2.0, 1.0, 2.0]
    assert found["attainment"].tolist() == [1 / 3, 1.0, 0.0]


def test_an_instant_on_the_edge_belongs_to_the_interval_that_begins(tmp_path):
    found = whole(table(tmp_path, synthetic.finished([59.9, 60.0], 0.0, 0.0), duration_s=120.0))
    assert found["arrivals"].tolist() == [1, 1]
    assert found["completions"].tolist() == [1, 1]
    assert found[["start_s", "end_s"]].to_numpy().tolist() == [[0.0, 60.0], [60.0, 120.0]]


def test_what_did_not_finish_is_no_completion(tmp_path):
    rows = synthetic.finished([1.0, 2.0], 0.1, 0.01)
    rows["status"][1] = REJECTED  # it has left, at a known instant
    assert whole(table(tmp_path, rows))["completions"].tolist() == [1]


def test_completions_after_the_last_arrival_have_their_intervals_and_no_share(tmp_path):
    found = whole(table(tmp_path, synthetic.finished([10.0], 130.0, 0.0), duration_s=180.0))
    assert found["completions"].tolist() == [0, 0, 1]
    assert found["attainment"].isna().tolist() == [False, True, True]
    assert (found["judged"].tolist(), found["arrivals"].tolist()) == ([1, 0, 0], [1, 0, 0])


def test_an_interval_meets_the_targets_when_its_percentiles_do(tmp_path):
    """Of 100 requests at 0.1 s, 0, 1 and 2 took 5 s: the 99th percentile lies between the 99th and the 100th of 100."""
    ttft_s = np.full(300, 0.1)
    ttft_s[[100, 200, 201]] = 5.0
    rows = synthetic.finished(np.arange(300) * 0.6, ttft_s, 0.01)
    assert whole(table(tmp_path, rows, slo={"ttft_s": {"p99": 0.2}}, duration_s=185.0))["targets_met"].tolist()[:3] == [
        True,
        True,  # 0.1 + 0.01 * 4.9 = 0.149 s
        False,
    ]


def test_an_interval_that_reaches_its_limit_exactly_keeps_it(tmp_path):
    rows = synthetic.finished([0.0, 60.0], [0.25, 0.375], 0.0)
    found = whole(table(tmp_path, rows, slo={"ttft_s": {"p99": 0.25}}, duration_s=120.0))
    assert found["targets_met"].tolist() == [True, False]


def test_requests_never_served_miss_an_intervals_target_and_one_token_answers_do_not(tmp_path):
    rows = synthetic.finished([1.0, 2.0, 61.0, 62.0, 121.0], 0.1, 0.01, num_output_tokens=[1, 4, 1, 4, 1])
    rows["status"][3], rows["num_generated_tokens"][3] = IN_FLIGHT, 1
    found = whole(table(tmp_path, rows, slo={"tpot_s": {"p90": 0.05}}, duration_s=180.0))
    assert found["targets_met"].tolist() == [True, False, None]
    assert found["judged"].tolist() == [1, 1, 0]


def test_each_class_of_an_interval_is_held_to_its_own_targets(tmp_path):
    """Chat is in time in both minutes, batch in the first alone; batch has no target on TPOT, and chat none but that."""
    rows = synthetic.finished([1.0, 2.0, 61.0, 62.0], [9.0, 20.0, 9.0, 40.0], [0.01, 9.0, 0.01, 9.0])
    rows["class_id"] = [0, 1, 0, 1]
    slo = {"classes": {"chat": {"tpot_s": {"p90": 0.05}}, "batch": {"ttft_s": {"p90": 30.0}}}}
    found = whole(table(tmp_path, rows, slo=slo, classes=["chat", "batch"], duration_s=120.0))
    assert found["targets_met"].tolist()[:2] == [True, False]
    assert found["attainment"].tolist()[:2] == [1.0, 0.5]


@pytest.mark.parametrize(("limit_s", "expected"), [(1.0, [False, True]), (2.0, [True, True])])
def test_a_target_on_e2e_is_judged_by_the_interval_too(tmp_path, limit_s, expected):
    rows = synthetic.finished([1.0, 61.0], [1.5, 0.5], 0.0)
    found = whole(table(tmp_path, rows, slo={"e2e_s": {"p50": limit_s}}, duration_s=120.0))
    assert found["targets_met"].tolist() == expected


def test_gauges_stay_with_their_interval_when_the_last_is_shorter(tmp_path):
    intervals = [[synthetic.gauges(60.0 * k, min(60.0 * k + 60, 150.0), num_ready=k + 1, desired=k + 5)] for k in range(3)]
    found = whole(table(tmp_path, intervals=intervals, duration_s=150.0))
    assert found["num_ready"].tolist() == [1, 2, 3]
    assert found["desired"].tolist() == [5, 6, 7]
    assert found["end_s"].tolist() == [60.0, 120.0, 150.0]


def test_percentiles_of_an_interval_are_numpys_of_the_values_that_exist(tmp_path):
    rng = np.random.default_rng(5)
    ttft_s, tpot_s = rng.exponential(1, 50), rng.exponential(0.01, 50)
    rows = synthetic.finished(np.arange(50.0), ttft_s, tpot_s, num_output_tokens=[1, 4] * 25)
    (found,) = whole(table(tmp_path, rows)).iloc[:1].to_dict("records")
    seen = pd.read_parquet(tmp_path / "requests.parquet")
    assert (found["ttft_n"], found["tpot_n"]) == (50, 25)
    for metric in ("ttft", "tpot"):
        for percent in (50, 90, 99):
            assert found[f"{metric}_p{percent}_s"] == np.percentile(seen[f"{metric}_s"].dropna(), percent), (metric, percent)


def test_completions_add_up_over_row_groups_in_whatever_order_they_end(tmp_path, monkeypatch):
    """Groups of two: the first holds the request that ends last, the second none that ends, the third some that end before."""
    monkeypatch.setattr(results, "ROW_GROUP", 2)
    rows = synthetic.finished(np.arange(6.0), [170.0, 1.0, 1.0, 1.0, 70.0, 1.0], 0.0)
    rows["status"][2:4], rows["finished_at_s"][2:4] = IN_FLIGHT, np.nan
    found = whole(table(tmp_path, rows, duration_s=180.0))
    assert found["completions"].tolist() == [2, 1, 1]
    assert found["arrivals"].tolist() == [6, 0, 0]


def test_a_timeline_in_which_nothing_ended_has_no_completions(tmp_path):
    rows = synthetic.finished([1.0, 2.0], 0.1, 0.01)
    rows["status"], rows["finished_at_s"] = IN_FLIGHT, np.nan
    assert whole(table(tmp_path, rows))["completions"].tolist() == [0]
