"""What RunWriter leaves in a result folder, from made-up runs whose answers are worked out in each test."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from experiments.results import costs, request_table, summary_table, timeline
from experiments.results import writer as results
from experiments.results.tables import Column
from experiments.results.writer import PoolInfo
from sim.records import CLIENT_TIMEOUT, FAILED, IN_FLIGHT, REJECTED, TIMED_OUT
from tests import synthetic

TABLES = {
    "requests": request_table.COLUMNS,
    "timeline": timeline.COLUMNS,
    "replicas": costs.COLUMNS,
    "summary": summary_table.COLUMNS,
}


def strict(path):
    """Parses JSON as RFC 8259 has it: no NaN, no Infinity."""

    def refuse(word):
        raise ValueError(word)

    return json.loads(path.read_text(), parse_constant=refuse)


def run(folder, rows, duration_s=100.0, machines=None, gaps_s=(), **given):
    """Writes `rows` as a whole run and returns its summary."""
    writer = synthetic.writer(folder, **given)
    writer.write_requests(0, rows)
    machines = [synthetic.machine()] if machines is None else machines
    return writer.finish(machines, synthetic.totals(duration_s, gaps_s, len(given.get("pools", [0]))))


def test_a_finished_request_reads_back_with_every_column(tmp_path):
    run(tmp_path, synthetic.finished([1.0], ttft_s=0.5, tpot_s=0.25, num_output_tokens=5, queue_s=0.125))
    (row,) = pq.read_table(tmp_path / "requests.parquet").to_pylist()
    assert row == {
        "id": 0, "class": "default", "pool": "main", "replica": 0, "arrived_at_s": 1.0, "routed_at_s": 1.0,
        "scheduled_at_s": 1.125, "first_token_at_s": 1.5, "finished_at_s": 2.5, "ttft_s": 0.5, "tpot_s": 0.25,
        "e2e_s": 1.5, "queue_s": 0.125, "num_prompt_tokens": 10, "num_output_tokens": 5, "num_cached_tokens": 0,
        "num_preemptions": 0, "status": "finished", "reason": None,
    }  # fmt: skip


def test_what_a_refused_request_lacks_is_null_and_in_no_statistic(tmp_path):
    rows = synthetic.finished(np.arange(40.0), ttft_s=0.5, tpot_s=0.01)
    lost = slice(0, 10)
    for name in ("scheduled_at_s", "first_token_at_s", "finished_at_s"):
        rows[name][lost] = np.nan
    rows["status"][lost], rows["reason"][lost], rows["machine"][lost] = REJECTED, 2, -1
    summary = run(tmp_path, rows)
    table = pq.read_table(tmp_path / "requests.parquet")
    for name in ("replica", "first_token_at_s", "ttft_s", "tpot_s", "e2e_s", "queue_s"):
        assert table[name].null_count == 10, name
    ttft = summary["all"]["ttft_s"]
    assert (ttft["n"], ttft["missing"], ttft["mean"], ttft["p50"]) == (30, 10, 0.5, 0.5)
    assert summary["all"]["requests"]["reasons"] == {"over_kv_cache": 10}


def test_row_groups_with_and_without_requests_that_timed_out_read_back_together(tmp_path, monkeypatch):
    """Only the second has the word `client_timeout` among its reasons; both readers put them together."""
    monkeypatch.setattr("experiments.results.writer.ROW_GROUP", 4)
    rows = synthetic.finished(np.zeros(10), ttft_s=1.0, tpot_s=0.01)
    rows["status"][[1, 5]], rows["reason"][[1, 5]] = (REJECTED, TIMED_OUT), (2, CLIENT_TIMEOUT)
    summary = run(tmp_path, rows)
    expected = [None, "over_kv_cache", None, None, None, "client_timeout", None, None, None, None]
    assert pq.ParquetFile(tmp_path / "requests.parquet").num_row_groups == 3
    assert pq.read_table(tmp_path / "requests.parquet")["reason"].to_pylist() == expected
    reasons = pd.read_parquet(tmp_path / "requests.parquet")["reason"]
    assert reasons.astype(object).where(reasons.notna(), None).tolist() == expected
    assert summary["all"]["requests"]["reasons"] == {"over_kv_cache": 1, "client_timeout": 1}


def test_mean_and_percentiles_share_one_population(tmp_path):
    rows = synthetic.finished([0.0, 1.0, 2.0], ttft_s=1.0, tpot_s=20.0, num_output_tokens=[1, 2, 2])
    tpot = run(tmp_path, rows)["all"]["tpot_s"]
    assert (tpot["n"], tpot["mean"], tpot["p50"], tpot["missing"]) == (2, 20.0, 20.0, 0)


def test_timed_out_requests_are_counted_warned_of_and_do_not_shorten_the_run(tmp_path):
    """One server, 100 s and 1,000 tokens each, 5 arrivals at 0, a timeout of 250 s: 2 finish; 2,000 tokens / 250 s."""
    rows = synthetic.finished(np.zeros(5), [50.0, 150, 0, 0, 0], 50 / 999, num_output_tokens=1000)
    rows["status"][2:], rows["num_generated_tokens"][2:], rows["finished_at_s"][2:] = TIMED_OUT, 0, 250.0
    rows["first_token_at_s"][2:] = np.nan
    summary = run(tmp_path, rows, duration_s=250.0)
    counts = summary["all"]["requests"]
    assert (counts["finished"], counts["timed_out"], summary["all"]["output_tokens_per_s"]) == (2, 3, 8.0)
    assert "3 of 5 requests did not finish (3 timed out)" in summary["warnings"][0]


def test_ttft_has_as_many_values_as_requests_with_a_token(tmp_path):
    rng = np.random.default_rng(1)
    rows = synthetic.finished(np.sort(rng.uniform(0, 10, 8192)), rng.exponential(1, 8192), 0.01)
    summary = run(tmp_path, rows)
    table = pd.read_parquet(tmp_path / "requests.parquet")
    assert summary["all"]["ttft_s"]["n"] == summary["all"]["requests"]["finished"] == 8192
    np.testing.assert_allclose(summary["all"]["ttft_s"]["mean"] * 8192, table["ttft_s"].sum())


def test_percentiles_of_the_summary_are_those_of_the_table_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "ROW_GROUP", 64)
    rng = np.random.default_rng(2)
    rows = synthetic.finished(np.arange(1000.0), rng.exponential(1, 1000), rng.exponential(0.01, 1000), queue_s=0.0)
    summary = run(tmp_path, rows, duration_s=2000.0)
    table = pd.read_parquet(tmp_path / "requests.parquet")
    assert pq.ParquetFile(tmp_path / "requests.parquet").num_row_groups == 16
    assert table["id"].tolist() == list(range(1000))
    for metric in ("ttft_s", "tpot_s", "e2e_s", "queue_s"):
        for p in (50, 90, 95, 99, 99.9):
            assert summary["all"][metric][f"p{p}"] == np.percentile(table[metric], p), (metric, p)


@pytest.mark.parametrize("sizes", [[1] * 30, [7, 23], [30]])
def test_results_do_not_depend_on_how_requests_are_handed_over(tmp_path, sizes):
    rng = np.random.default_rng(3)
    rows = synthetic.finished(np.sort(rng.uniform(0, 100, 30)), rng.exponential(1, 30), 0.01)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir(), parts.mkdir()
    run(whole, rows)
    writer, first = synthetic.writer(parts), 0
    for size in sizes:
        writer.write_requests(first, rows[first : first + size])
        first += size
    writer.finish([synthetic.machine()], synthetic.totals(100.0))
    for name in TABLES:
        assert (whole / f"{name}.parquet").read_bytes() == (parts / f"{name}.parquet").read_bytes(), name


def test_the_measured_window_is_the_same_above_and_below_every_fraction_line(tmp_path):
    """60 s of warm-up, 180 s measured at 10 requests/s, then 60 s more: 10 requests/s, and 180 s of the machine."""
    rows = synthetic.finished(np.arange(3000) / 10, 0.0, 0.0, num_output_tokens=1)
    rows["num_prompt_tokens"] = 100
    summary = run(tmp_path, rows, duration_s=300.0, measure_start_s=60.0, measure_end_s=240.0)
    whole = summary["all"]
    assert whole["requests"]["arrived"] == whole["ttft_s"]["n"] == 1800
    assert (whole["arrivals_per_s"], whole["requests_per_s"], whole["goodput_per_s"]) == (10.0, 10.0, 10.0)
    assert whole["input_tokens_per_s"] == 1000.0
    assert whole["cost"]["gpu_hours"] == pytest.approx(4 * 180 / 3600)
    assert summary["window"] == {"start_s": 60.0, "end_s": 240.0, "duration_s": 180.0}


def test_a_run_without_completions_leaves_strict_json_and_nulls(tmp_path):
    summary = run(tmp_path, synthetic.requests(0), machines=[])
    assert strict(tmp_path / "summary.json") == summary
    statistics = ("mean", "std", "p50", "p90", "p95", "p99", "p99.9", "max")
    for metric in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s"):
        assert summary["all"][metric] == {"n": 0, "missing": 0, **dict.fromkeys(statistics)}, metric
    assert summary["all"]["attainment"] is None
    assert [target["met"] for target in summary["targets"]] == [None, None]
    assert pd.read_parquet(tmp_path / "summary.parquet")["ttft_p99_s"].isna().all()
    assert pq.read_table(tmp_path / "requests.parquet").num_rows == 0


def test_a_target_counts_requests_never_served_as_infinitely_late(tmp_path):
    """98 of 100 requests at 0.1 s: the p99 of those served is fine, the 99th request of 100 never got a token."""
    rows = synthetic.finished(np.arange(100.0), 0.1, 0.01)
    rows["status"][:2], rows["first_token_at_s"][:2] = FAILED, np.nan
    summary = run(tmp_path, rows)
    assert summary["all"]["ttft_s"]["p99"] == pytest.approx(0.1)
    ttft, tpot = summary["targets"]
    assert (ttft["value_s"], ttft["met"], ttft["missing"]) == (None, False, 2)
    assert (tpot["value_s"], tpot["met"]) == (pytest.approx(0.01), True)
    assert summary["all"]["attainment"] == 0.98


def test_requests_in_flight_at_the_end_are_counted_and_warned_of(tmp_path):
    rows = synthetic.finished([0.0, 1.0], 0.1, 0.01)
    rows["status"][1], rows["finished_at_s"][1] = IN_FLIGHT, np.nan
    summary = run(tmp_path, rows)
    assert summary["all"]["requests"]["in_flight"] == 1
    assert any("max_drain_s" in line for line in summary["warnings"])
    assert (summary["all"]["ttft_s"]["n"], summary["all"]["e2e_s"]["n"]) == (2, 1)


def test_dollars_per_million_tokens_are_all_dollars_over_those_tokens(tmp_path):
    """$10 an hour and 1,000 tokens/s for an hour: 10 / 3.6 = $2.78 per 1M."""
    rows = synthetic.finished(np.arange(3600.0), 0.0, 0.0, num_output_tokens=750)
    rows["num_prompt_tokens"] = 250
    cost = run(tmp_path, rows, duration_s=3600.0)["all"]["cost"]
    assert cost["dollars_per_hour"] == pytest.approx(10.0)
    assert cost["dollars_per_1m_total_tokens"] == pytest.approx(10 / 3.6)
    assert cost["dollars_per_1m_output_tokens"] == pytest.approx(10 / 2.7)
    assert cost["dollars_per_1m_input_tokens"] == pytest.approx(10 / 0.9)


def test_a_machine_costs_lifetime_times_gpus_times_price_starting_and_draining_included(tmp_path):
    """4 GPUs for 0..1800 s at $2.50, starting until 600 and draining from 1200; 8 GPUs for 900..3600 s at $1."""
    first = synthetic.machine(ready_at_s=600.0, draining_at_s=1200.0, released_at_s=1800.0)
    second = synthetic.machine(id=1, num_gpus=8, price_per_gpu_hour=1.0, requested_at_s=900.0)
    cost = run(tmp_path, synthetic.requests(0), duration_s=3600.0, machines=[first, second])["all"]["cost"]
    assert (cost["gpu_hours"], cost["dollars"]) == (4 * 0.5 + 8 * 0.75, 5.0 + 6.0)
    assert pd.read_parquet(tmp_path / "replicas.parquet")["dollars"].tolist() == [5.0, 6.0]


@pytest.mark.parametrize("machines", [[], [synthetic.machine(price_per_gpu_hour=None)]])
def test_without_replicas_or_prices_there_is_no_cost_rather_than_zero_or_infinity(tmp_path, machines):
    cost = run(tmp_path, synthetic.finished([1.0], 0.1, 0.01), machines=machines)["all"]["cost"]
    assert (cost["dollars"], cost["dollars_per_1m_output_tokens"]) == (None, None)


def test_itl_is_pooled_over_tokens(tmp_path):
    itl = run(tmp_path, synthetic.requests(0), gaps_s=[0.01] * 98 + [1.0] * 2)["all"]["itl_s"]
    assert (itl["n"], itl["mean"]) == (100, pytest.approx(0.0298))
    assert itl["std"] == pytest.approx(np.std([0.01] * 98 + [1.0] * 2))
    assert itl["p50"] == pytest.approx(0.01, rel=1e-3)
    assert itl["p99"] == pytest.approx(1.0, rel=1e-3)


def test_each_class_is_judged_by_its_own_targets(tmp_path):
    slo = {"ttft_s": {"p90": 1.0}, "tpot_s": None, "classes": {"batch": {"ttft_s": {"p90": 30.0}}}}
    rows = synthetic.finished(np.arange(4.0), [0.5, 2.0, 2.0, 40.0], 0.01)
    rows["class_id"] = [0, 0, 1, 1]
    summary = run(tmp_path, rows, classes=["chat", "batch"], slo=slo)
    assert [part["attainment"] for part in summary["classes"].values()] == [0.5, 0.5]
    assert summary["all"]["attainment"] == 0.5
    limits = {(target["scope"], target["limit_s"]): target["met"] for target in summary["targets"]}
    assert limits == {("chat", 1.0): False, ("batch", 30.0): False}
    assert summary["classes"]["chat"]["ttft_s"]["p50"] == 1.25


def test_each_pool_has_its_own_latencies_and_machines(tmp_path):
    writer = synthetic.writer(tmp_path, pools=[PoolInfo("big"), PoolInfo("small")])
    writer.add_machine(0, 0)
    writer.add_machine(7, 1)
    rows = synthetic.finished(np.arange(4.0), [1.0, 2.0, 3.0, 4.0], 0.01)
    rows["machine"] = [0, 7, 7, -1]
    writer.write_requests(0, rows)
    machines = [synthetic.machine(pool="big"), synthetic.machine(id=7, pool="small", num_gpus=1)]
    summary = writer.finish(machines, synthetic.totals(3600.0, [0.01] * 3, num_pools=2))
    big, small = summary["pools"]["big"], summary["pools"]["small"]
    assert (big["ttft_s"]["mean"], small["ttft_s"]["mean"], summary["all"]["ttft_s"]["n"]) == (1.0, 2.5, 4)
    assert (big["cost"]["gpu_hours"], small["cost"]["gpu_hours"]) == (4.0, 1.0)
    assert (big["itl_s"]["n"], small["itl_s"]["n"]) == (3, 0)
    assert pq.read_table(tmp_path / "requests.parquet")["pool"].to_pylist() == ["big", "small", "small", None]
    table = pd.read_parquet(tmp_path / "summary.parquet")
    assert table[["scope", "name"]].to_numpy().tolist() == [["all", "all"], ["pool", "big"], ["pool", "small"]]


def test_the_timeline_has_each_interval_once_for_every_pool_and_for_all(tmp_path):
    """Two arrivals in the first minute, one of them 70 s long; none in the second; one in the last, of 30 s."""
    writer = synthetic.writer(tmp_path)
    writer.write_interval([synthetic.gauges(0.0, 60.0, num_ready=2, desired=3, num_starting=1, gpu_hours=0.2)])
    writer.write_interval([synthetic.gauges(60.0, 120.0)])
    writer.write_requests(0, synthetic.finished([10.0, 30.0, 125.0], [0.5, 70.0, 0.1], 0.0))
    writer.write_interval([synthetic.gauges(120.0, 150.0)])
    writer.finish([synthetic.machine()], synthetic.totals(150.0))
    table = pd.read_parquet(tmp_path / "timeline.parquet")
    assert table["pool"].tolist() == ["all", "main"] * 3
    whole = table[table["pool"] == "all"]
    assert whole["arrivals"].tolist() == [2, 0, 1]
    assert whole["demand_per_s"].tolist() == [2 / 60, 0.0, 1 / 30]
    assert whole["completions"].tolist() == [1, 1, 1]
    assert whole["ttft_p50_s"].iloc[0] == np.percentile([0.5, 70.0], 50)
    assert whole["ttft_p50_s"].isna().tolist() == [False, True, False]
    assert whole["attainment"].iloc[0] == 0.5
    assert np.isnan(whole["attainment"].iloc[1])
    assert whole[["num_ready", "num_starting", "desired"]].iloc[0].tolist() == [2, 1, 3]
    assert whole["gpu_hours"].iloc[0] == 0.2


@pytest.mark.parametrize("name", TABLES)
def test_every_column_says_what_it_is(tmp_path, name):
    run(tmp_path, synthetic.finished([1.0], 0.1, 0.01))
    schema = pq.read_schema(tmp_path / f"{name}.parquet")
    assert schema.names == [column.name for column in TABLES[name]]
    assert all(field.metadata[b"description"] for field in schema)
    assert schema.metadata[b"description"]


def test_an_empty_machine_list_and_absent_stages_still_make_a_typed_table(tmp_path):
    run(tmp_path, synthetic.requests(0), machines=[synthetic.machine(ready_at_s=10.0)])
    table = pq.read_table(tmp_path / "replicas.parquet")
    assert table["released_at_s"].to_pylist() == [None]
    assert isinstance(costs.COLUMNS[0], Column)


def test_more_classes_than_8_bits_count_keep_their_names(tmp_path):
    names = [f"name-{i}" for i in range(129)]
    rows = synthetic.finished(np.arange(129.0), ttft_s=0.5, tpot_s=0.01)
    rows["class_id"] = np.arange(129)
    summary = run(tmp_path, rows, duration_s=200.0, classes=names)
    assert pq.read_table(tmp_path / "requests.parquet")["class"].to_pylist() == names
    assert summary["classes"]["name-128"]["requests"]["finished"] == 1


def test_more_pools_than_8_bits_count_keep_their_names(tmp_path):
    names = [f"name-{i}" for i in range(129)]
    writer = synthetic.writer(tmp_path, pools=[PoolInfo(name) for name in names])
    rows = synthetic.finished(np.arange(129.0), ttft_s=0.5, tpot_s=0.01)
    rows["machine"] = np.arange(129)
    for i in range(129):
        writer.add_machine(i, 128 - i)
    writer.write_requests(0, rows)
    writer.finish([synthetic.machine(id=i) for i in range(129)], synthetic.totals(200.0, (), 129))
    assert pq.read_table(tmp_path / "requests.parquet")["pool"].to_pylist() == names[::-1]
