"""Scopes of a summary: the whole, classes and pools, each with its own numbers, in JSON and in Parquet alike."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.results.costs import cost
from experiments.results.counts import Counts
from experiments.results.summary_table import METRICS
from experiments.results.targets import Target, targets, targets_by_class, verdict
from experiments.results.writer import PoolInfo
from sim.metrics import itl_bin
from sim.records import FAILED, IN_FLIGHT, REJECTED, TIMED_OUT
from tests import synthetic

NAMES = ["chat", "batch"]
MAIN = [PoolInfo("main")]


def leave(folder, rows, *, pools=MAIN, machine_pools=(0,), duration_s=100.0, gaps_s=(), **given):
    writer = synthetic.writer(folder, pools=list(pools), **given)
    for machine, pool in enumerate(machine_pools):
        writer.add_machine(machine, pool)
    writer.write_requests(0, rows)
    machines = [synthetic.machine(id=i, pool=pools[pool].name) for i, pool in enumerate(machine_pools)]
    extra = {"has_prefix_cache": True, "never_sent": np.array([3] + [2] * (len(given.get("classes", [0])) - 1))}
    return writer.finish(machines, synthetic.totals(duration_s, gaps_s, len(pools)) | extra)


def test_every_number_of_the_summary_is_in_its_row_of_the_table(tmp_path):
    rows = synthetic.finished(np.arange(8.0), np.arange(1.0, 9.0), 0.01, queue_s=0.5)
    rows["class_id"], rows["machine"], rows["num_cached_tokens"] = [0, 1] * 4, [0, 0, 1, 1] * 2, 3
    rows["num_preemptions"] = np.arange(8)
    rows["status"][:4] = REJECTED, TIMED_OUT, FAILED, IN_FLIGHT
    pools = [PoolInfo("big"), PoolInfo("small")]
    summary = leave(tmp_path, rows, pools=pools, machine_pools=(0, 1), classes=NAMES, gaps_s=[0.02, 0.04])
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    table = pd.read_parquet(tmp_path / "summary.parquet").replace({np.nan: None})
    parts = [summary["all"], *summary["classes"].values(), *summary["pools"].values()]
    assert table["scope"].tolist() == ["all", "class", "class", "pool", "pool"]
    assert table["name"].tolist() == ["all", *NAMES, "big", "small"]
    for row, part in zip(table.to_dict("records"), parts, strict=True):
        assert {name: row[name] for name in part["requests"] if name != "reasons"} == {
            name: n for name, n in part["requests"].items() if name != "reasons"
        }
        for metric in METRICS:
            stem = metric.removesuffix("_s")
            assert (row[f"{stem}_n"], row[f"{stem}_missing"]) == (part[metric]["n"], part[metric]["missing"])
            for name in ("mean", "std", "p50", "p90", "p95", "p99", "max"):
                assert row[f"{stem}_{name}_s"] == part[metric][name], (metric, name)
            assert row[f"{stem}_p99_9_s"] == part[metric]["p99.9"]
        for name, value in part.items():
            if name in row:
                assert row[name] == value, name
        for name, value in (part["cost"] or {}).items():
            assert row.get(name) == value or name == "allocation", name
        assert (row["window_start_s"], row["window_end_s"]) == (0.0, 100.0)
    assert table["dollars"].notna().tolist() == [True, False, False, True, True]
    assert table["never_sent"].tolist()[:3] == [5, 3, 2]
    assert pd.isna(table["never_sent"].tolist()[3:]).all()


ALWAYS = {
    "requests": "id class arrived_at_s num_prompt_tokens num_output_tokens num_cached_tokens num_preemptions status",
    "timeline": "scope start_s end_s pool demand_per_s arrivals completions",
    "replicas": "id pool num_gpus requested_at_s gpu_hours",
    "summary": "scope name window_start_s window_end_s judged num_preemptions "
    "arrived in_flight finished rejected timed_out failed",
}
"""Columns that have a value in every row."""


@pytest.mark.parametrize("name", ALWAYS)
def test_columns_that_always_have_a_value_say_so_and_no_others_do(tmp_path, name):
    leave(tmp_path, synthetic.finished([1.0], 0.1, 0.01))
    schema = pq.read_schema(tmp_path / f"{name}.parquet")
    assert {field.name for field in schema if not field.nullable} == set(ALWAYS[name].split())


def test_the_largest_value_of_every_metric_is_exact(tmp_path):
    rng = np.random.default_rng(4)
    ttft_s, tpot_s, queue_s = rng.exponential(1, 500), rng.exponential(0.01, 500), rng.uniform(0, 1, 500)
    rows = synthetic.finished(np.arange(500.0), ttft_s, tpot_s, queue_s=queue_s)
    gaps_s = rng.exponential(0.02, 300)
    summary = leave(tmp_path, rows, duration_s=600.0, gaps_s=gaps_s)
    table = pd.read_parquet(tmp_path / "requests.parquet")
    for metric in ("ttft_s", "tpot_s", "e2e_s", "queue_s"):
        assert summary["all"][metric]["max"] == table[metric].max(), metric
    assert summary["all"]["itl_s"]["max"] == gaps_s.max()


def test_a_class_and_a_pool_of_one_name_keep_their_own_numbers(tmp_path):
    """Two requests of class chat at 1 s, on the pool that is named batch, and one of class batch at 3 s on pool chat."""
    rows = synthetic.finished([0.0, 1.0, 2.0], [1.0, 1.0, 3.0], 0.01)
    rows["class_id"], rows["machine"] = [0, 0, 1], [1, 1, 0]
    pools = [PoolInfo("chat"), PoolInfo("batch")]
    slo = {"ttft_s": {"p50": 2.0}}
    summary = leave(tmp_path, rows, pools=pools, machine_pools=(0, 1), classes=NAMES, slo=slo)
    assert [(part["ttft_s"]["n"], part["ttft_s"]["p50"]) for part in summary["classes"].values()] == [(2, 1.0), (1, 3.0)]
    assert [(part["ttft_s"]["n"], part["ttft_s"]["p50"]) for part in summary["pools"].values()] == [(1, 3.0), (2, 1.0)]
    met = pd.read_parquet(tmp_path / "summary.parquet")["targets_met"].tolist()
    assert met == [False, True, False, None, None]  # all, as batch missed


def test_a_target_is_missed_where_as_many_were_served_as_were_not(tmp_path):
    """Of two requests one is refused: their median lies between the one and the one that is infinitely late."""
    rows = synthetic.finished([0.0, 1.0], [1.0, 1.0], 0.01)
    rows["status"][1], rows["first_token_at_s"][1], rows["num_generated_tokens"][1] = REJECTED, np.nan, 0
    summary = leave(tmp_path, rows, slo={"ttft_s": {"p50": 2.0}})
    assert [target["met"] for target in summary["targets"]] == [False]


def test_targets_that_classes_share_are_judged_of_all_and_of_each(tmp_path):
    rows = synthetic.finished([0.0, 1.0], [1.0, 3.0], 0.01)
    rows["class_id"] = [0, 1]
    summary = leave(tmp_path, rows, classes=NAMES, slo={"ttft_s": {"p50": 2.0}})
    assert {target["scope"]: (target["value_s"], target["met"]) for target in summary["targets"]} == {
        "all": (2.0, True), "chat": (1.0, True), "batch": (3.0, False),
    }  # fmt: skip


def test_one_class_with_targets_of_its_own_leaves_the_others_theirs_and_all_together_none():
    slo = {"ttft_s": {"p99": 1.0}, "classes": {"chat": {}, "batch": {"ttft_s": {"p99": 9.0}}}}
    found = [(name, target.limit_s) for name, target in targets_by_class(slo, NAMES)]
    assert found == [("chat", 1.0), ("batch", 9.0)]


@pytest.mark.parametrize("own", [None, {}])
def test_a_metric_that_a_class_leaves_empty_is_held_to_the_targets_of_all(own):
    slo = {"ttft_s": {"p99": 1.0}, "classes": {"batch": {"ttft_s": own}}}
    assert targets(slo, "batch") == [Target("ttft_s", "p99", 1.0)]


def test_a_target_is_met_when_its_limit_is_reached_exactly_and_not_beyond():
    target = Target("ttft_s", "p99", 1.0)
    assert verdict(target, "all", 1.0, 1, 0)["met"] is True
    assert verdict(target, "all", float(np.nextafter(1.0, 2.0)), 1, 0)["met"] is False


@pytest.mark.parametrize(("percent", "value_s"), [("p98", 0.1), ("p99", None)])
def test_a_percentile_that_falls_on_the_last_request_served_is_its_value(tmp_path, percent, value_s):
    """Of 101 requests one never came: rank 98 is the 99th's, and rank 99 the 100th's, the last that was served."""
    rows = synthetic.finished(np.arange(101.0), 0.1, 0.01)
    rows["first_token_at_s"][99] += 7.0
    rows["finished_at_s"][99] += 7.0
    rows["status"][100], rows["first_token_at_s"][100] = FAILED, np.nan
    (found,) = leave(tmp_path, rows, slo={"ttft_s": {percent: 10.0}}, duration_s=200.0)["targets"]
    assert found["met"] is True
    assert found["value_s"] == pytest.approx(value_s or 7.1)


def test_a_percentile_between_the_last_request_served_and_one_that_never_came_is_never(tmp_path):
    rows = synthetic.finished(np.arange(101.0), 0.1, 0.01)
    rows["status"][100], rows["first_token_at_s"][100] = FAILED, np.nan
    (found,) = leave(tmp_path, rows, slo={"ttft_s": {"p99.1": 10.0}}, duration_s=200.0)["targets"]
    assert (found["value_s"], found["met"], found["missing"]) == (None, False, 1)


def test_preemptions_are_those_of_the_requests_that_arrived_in_the_window(tmp_path):
    rows = synthetic.finished([0.0, 10.0, 19.9, 20.0], 0.1, 0.01)
    rows["num_preemptions"] = [100, 2, 3, 1000]
    rows["class_id"] = [0, 0, 1, 1]
    summary = leave(tmp_path, rows, classes=NAMES, measure_start_s=10.0, measure_end_s=20.0)
    assert summary["all"]["num_preemptions"] == 5
    assert [part["num_preemptions"] for part in summary["classes"].values()] == [2, 3]


def test_the_cached_share_is_of_prompt_tokens_of_requests_that_finished_in_the_window(tmp_path):
    """Prompts of 40 tokens, 10 cached, and answers of 60: a quarter. One finished before, one is still in flight."""
    rows = synthetic.finished([0.0, 10.0, 11.0, 12.0], 0.1, 0.0, num_output_tokens=60)
    rows["num_prompt_tokens"], rows["num_cached_tokens"] = 40, [40, 10, 10, 40]
    rows["status"][3], rows["finished_at_s"][3] = IN_FLIGHT, np.nan
    summary = leave(tmp_path, rows, measure_start_s=10.0, measure_end_s=20.0)
    assert summary["all"]["cached_token_share"] == 0.25
    assert summary["all"]["input_tokens_per_s"] == 8.0
    assert summary["all"]["output_tokens_per_s"] == 12.0


def test_arrivals_count_at_the_windows_start_and_completions_too_and_neither_at_its_end(tmp_path):
    rows = synthetic.finished([10.0, 15.0, 18.0, 20.0], [0.0, 1.0, 2.0, 0.0], 0.0)
    whole = leave(tmp_path, rows, measure_start_s=10.0, measure_end_s=20.0)["all"]
    assert (whole["requests"]["arrived"], whole["arrivals_per_s"]) == (3, pytest.approx(0.3))
    assert whole["requests_per_s"] == 0.2  # at 10 and 16 s; the third at 20 s


def test_what_was_refused_outside_the_window_is_neither_judged_nor_missing(tmp_path):
    rows = synthetic.requests(3)
    rows["arrived_at_s"], rows["status"], rows["reason"] = [5.0, 15.0, 25.0], REJECTED, 1
    whole = leave(tmp_path, rows, measure_start_s=10.0, measure_end_s=20.0)["all"]
    assert (whole["requests"]["arrived"], whole["judged"], whole["attainment"]) == (1, 1, 0.0)
    assert (whole["ttft_s"]["missing"], whole["tpot_s"]["missing"]) == (1, 1)


def test_tokens_of_requests_that_did_not_finish_are_no_throughput(tmp_path):
    rows = synthetic.finished([10.0, 11.0], 0.1, 0.01, num_output_tokens=50)
    rows["status"][1], rows["reason"][1], rows["num_generated_tokens"][1] = FAILED, 1, 20
    whole = leave(tmp_path, rows)["all"]
    assert (whole["requests_per_s"], whole["output_tokens_per_s"], whole["input_tokens_per_s"]) == (0.01, 0.5, 0.1)


@pytest.mark.parametrize("start_s", [100.0, 150.0])
def test_a_window_that_begins_as_the_run_ends_or_later_is_empty_and_measures_nothing(tmp_path, start_s):
    summary = leave(tmp_path, synthetic.finished([10.0], 0.1, 0.01), measure_start_s=start_s)
    assert f"nothing was measured: the window begins at {start_s:g} s, and the run ended at 100 s" in summary["warnings"]
    assert summary["window"] == {"start_s": start_s, "end_s": start_s, "duration_s": 0.0}


def test_refused_requests_of_several_pools_are_the_wholes_and_their_classes_alone():
    counts = Counts(NAMES, ["big", "small"], {}, 0.0, np.inf)
    scopes = {scope.key: scope for scope in counts.scopes()}
    assert list(scopes) == ["all", "class.chat", "class.batch", "pool.big", "pool.small"]
    no_pool = np.array([2, 5])  # the last cell of each class
    assert scopes["all"].cells[no_pool].all()
    assert [scopes[f"class.{name}"].cells[no_pool].tolist() for name in NAMES] == [[True, False], [False, True]]
    assert not any(scopes[f"pool.{name}"].cells[no_pool].any() for name in ("big", "small"))
    assert [scopes[f"pool.{name}"].pools.tolist() for name in ("big", "small")] == [[True, False], [False, True]]
    assert not scopes["class.chat"].pools.any()


def test_without_a_prefix_cache_there_is_no_cached_share(tmp_path):
    writer = synthetic.writer(tmp_path)
    writer.write_requests(0, synthetic.finished([1.0], 0.1, 0.01))
    whole = writer.finish([synthetic.machine()], synthetic.totals(100.0))["all"]
    assert whole["cached_token_share"] is None


def gaps_of_two_pools():
    """Pool big: 0.1 s twice; pool small: 0.3 s once."""
    totals = synthetic.totals(100.0, num_pools=2)
    for pool, gap_s, n in ((0, 0.1, 2), (1, 0.3, 1)):
        totals["itl_counts"][pool, itl_bin(gap_s)] = n
        totals["itl_sums"][pool] = n * gap_s, n * gap_s**2, gap_s
    return totals


def test_gaps_are_each_pools_own_and_the_wholes_together(tmp_path):
    writer = synthetic.writer(tmp_path, pools=[PoolInfo("big"), PoolInfo("small")])
    summary = writer.finish([], gaps_of_two_pools())
    whole, big, small = (part["itl_s"] for part in (summary["all"], *summary["pools"].values()))
    assert [one["n"] for one in (whole, big, small)] == [3, 2, 1]
    assert [one["max"] for one in (whole, big, small)] == [0.3, 0.1, 0.3]
    assert [one["mean"] for one in (whole, big, small)] == [pytest.approx(0.5 / 3), 0.1, 0.3]
    assert [one["std"] for one in (whole, big, small)] == pytest.approx([np.std([0.1, 0.1, 0.3]), 0.0, 0.0], abs=1e-9)


def test_the_cost_of_a_window_is_of_the_machines_that_were_held_in_it(tmp_path):
    """10 to 20 s: one machine was gone before, one came after, one is held from 15 to 30 s; the first two have no price."""
    before = synthetic.machine(price_per_gpu_hour=None, released_at_s=5.0)
    within = synthetic.machine(id=1, num_gpus=2, price_per_gpu_hour=3.6, requested_at_s=15.0, released_at_s=30.0)
    after = synthetic.machine(id=2, price_per_gpu_hour=None, requested_at_s=20.0)
    writer = synthetic.writer(tmp_path, measure_start_s=10.0, measure_end_s=20.0)
    writer.write_requests(0, synthetic.finished([12.0], 1.0, 0.0, num_output_tokens=10))
    cost = writer.finish([before, within, after], synthetic.totals(100.0))["all"]["cost"]
    assert (cost["gpu_hours"], cost["dollars"]) == (pytest.approx(10 / 3600), pytest.approx(0.01))
    assert cost["dollars_per_hour"] == pytest.approx(3.6)
    assert cost["dollars_per_1m_total_tokens"] == pytest.approx(0.01 / 20 * 1e6)


def test_a_machine_without_a_price_leaves_the_window_without_one():
    """An hour of four GPUs that cost $2.50 each, and an hour of four that cost nobody knows what."""
    priced, unpriced = synthetic.machine(), synthetic.machine(id=1, price_per_gpu_hour=None)
    gpu_hours, dollars = cost([priced, unpriced], 0.0, 3600.0)
    assert gpu_hours == 8.0
    assert np.isnan(dollars)


def test_a_window_that_outlasts_the_run_ends_with_it(tmp_path):
    writer = synthetic.writer(tmp_path, measure_start_s=10.0, measure_end_s=500.0)
    assert writer.finish([], synthetic.totals(100.0))["window"] == {"start_s": 10.0, "end_s": 100.0, "duration_s": 90.0}


def test_machines_of_any_number_are_found_in_their_pools(tmp_path):
    numbers = [0, 1, 62, 63, 64, 65, 200, 3, 1000, -1]
    writer = synthetic.writer(tmp_path, pools=[PoolInfo("even"), PoolInfo("odd")])
    for machine in numbers[:-1]:
        writer.add_machine(machine, machine % 2)
    rows = synthetic.finished(np.arange(10.0), 0.1, 0.01)
    rows["machine"] = numbers
    writer.write_requests(0, rows)
    writer.finish([], synthetic.totals(100.0, num_pools=2))
    table = pd.read_parquet(tmp_path / "requests.parquet")
    assert table["pool"].astype(object).where(table["pool"].notna(), None).tolist() == [
        *("even" if machine % 2 == 0 else "odd" for machine in numbers[:-1]), None,
    ]  # fmt: skip


def test_every_way_to_end_and_every_reason_reads_back_by_its_name(tmp_path):
    rows = synthetic.finished(np.arange(5.0), 0.1, 0.01)
    rows["status"], rows["reason"] = [0, 1, 2, 3, 4], [0, 0, 1, 3, 9]
    summary = leave(tmp_path, rows)
    table = pd.read_parquet(tmp_path / "requests.parquet")
    assert table["status"].tolist() == ["in_flight", "finished", "rejected", "timed_out", "failed"]
    assert table["reason"].isna().tolist() == [True, True, False, False, False]
    assert table["reason"].tolist()[2:] == ["over_max_model_len", "drain_timeout", "replica_failed"]
    counts = summary["all"]["requests"]
    assert [counts[name] for name in ("in_flight", "finished", "rejected", "timed_out", "failed")] == [1] * 5
    assert counts["reasons"] == {"over_max_model_len": 1, "drain_timeout": 1, "replica_failed": 1}


def warnings(folder, rows, machines=None, **totals):
    folder.mkdir(exist_ok=True)
    writer = synthetic.writer(folder)
    writer.write_requests(0, rows)
    machines = [synthetic.machine()] if machines is None else machines
    return writer.finish(machines, synthetic.totals(100.0) | totals)["warnings"]


def test_a_clean_run_has_no_warning_and_keeps_those_it_is_given(tmp_path):
    rows = synthetic.finished([1.0], 0.1, 0.01)
    assert warnings(tmp_path / "clean", rows) == []
    assert warnings(tmp_path / "given", rows, warnings=["mind the gap"]) == ["mind the gap"]


def test_caches_that_found_nothing_where_there_was_something_to_find_are_warned_of(tmp_path):
    rows = synthetic.finished([1.0], 0.1, 0.01)
    found = warnings(tmp_path / "none", rows, has_prefix_cache=True, ideal_cached_share=0.25)
    assert found == ["the prefix caches found nothing, though requests share 25 % of their prompts"]
    assert warnings(tmp_path / "nothing_shared", rows, has_prefix_cache=True, ideal_cached_share=0.0) == []
    rows["num_cached_tokens"] = 1
    assert warnings(tmp_path / "some", rows, has_prefix_cache=True, ideal_cached_share=0.25) == []


def test_requests_without_a_machine_that_was_paid_for_are_warned_of(tmp_path):
    found = warnings(tmp_path, synthetic.finished([1.0], 0.1, 0.01), machines=[])
    assert found == ["no replica was paid for in the window, so there is no cost to report"]


WHOLE = ("arrived", "arrivals", "completions", "judged", "desired", "in_flight", "finished", "rejected", "timed_out", "failed")


@pytest.mark.parametrize("name", ALWAYS)
def test_counts_are_whole_numbers_and_quantities_with_a_unit_are_not(tmp_path, name):
    leave(tmp_path, synthetic.finished([1.0], 0.1, 0.01))
    for field in pq.read_schema(tmp_path / f"{name}.parquet"):
        is_count = field.name in WHOLE or field.name.startswith("num_") or field.name.endswith(("_n", "_missing"))
        if is_count:
            assert pa.types.is_integer(field.type), field.name
        elif field.name.endswith(("_s", "_hours", "dollars", "attainment", "share")):
            assert field.type == pa.float64(), field.name
