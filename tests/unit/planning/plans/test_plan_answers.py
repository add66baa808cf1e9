"""A plan says one thing: the fleet, the bill and the page are of what simulation found, and nothing of the traffic is lost."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from experiments import run
from experiments.cli import main
from experiments.pages.page import as_text
from experiments.running import Result
from experiments.settings.loading import load
from planning.plans.answer import decided
from planning.plans.confidence import Target, Verdict, judged, share_within
from planning.plans.demand import measured
from planning.plans.fleets import Fleet, base_case, option
from planning.plans.min_gpus import Candidate, search
from planning.plans.outcome import Outcome, worked_out
from planning.plans.progress import Progress
from planning.plans.report import headline, page
from planning.plans.run import document
from planning.plans.simulated import _answer, _said, _traffic_line, simulated
from planning.plans.sizes import at_size, in_proportion
from planning.plans.trial import Arriving, Ran, arrivals_of, separate, shared
from planning.plans.verify import Row, _percentile, verified
from sim.errors import ConfigError

TTFT, TPOT = Target("ttft_s", "p99", 1.0), Target("tpot_s", "p90", 0.05)
SMALL: dict[str, Any] = {
    "kind": "plan",
    "traffic": {
        "kind": "poisson",
        "rate_per_s": 25,
        "duration_s": 60,
        "lengths": {
            "prompt": {"kind": "lognormal", "mean": 1500, "p99": 6000, "max": 12000},
            "output": {"kind": "lognormal", "mean": 200, "p99": 800, "max": 2000},
        },
    },
    "slo": {"ttft_s": {"p99": 0.5}, "tpot_s": {"p90": 0.05}},
    "model": "llama-3.1-8b",
    "hardware": [{"gpu": "h100-sxm", "price_per_gpu_hour": 2.0}],
    "replicas": {"kind": "surrogate", "max_model_len": 16384},
    "tensor_parallel_sizes": [1],
    "prefill_mfu": 0.5,
    "pools": "shared",
    "trials": {"seeds": [1, 2], "duration_s": None},
    "api_prices": [{"name": "an API", "input_per_million": 0.1, "output_per_million": 0.4}],
}
TIGHT = {"ttft_s": {"p99": 0.5}, "tpot_s": {"p90": 0.0065}}  # the closed form's mean keeps it, nine in ten requests do not


def written(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}))
    return path


def planned(tmp_path: Path, **changes: Any) -> Outcome:
    (one,) = load(written(tmp_path, **changes))
    return worked_out(one.experiment)


def ran(tmp_path: Path, **changes: Any) -> tuple[Result, str]:
    """A plan's result folder and its page."""
    found = run(written(tmp_path, **changes), out=tmp_path / "out", progress=False)
    return found, " ".join((found.folder / "plan.txt").read_text().split())


def with_lengths(prompt: dict[str, Any], output: dict[str, Any], **traffic: Any) -> dict[str, Any]:
    return {**SMALL["traffic"], **traffic, "lengths": {"prompt": prompt, "output": output}}


def table(tmp_path: Path, rows: list[tuple[Any, ...]], **options: Any) -> dict[str, Any]:
    """Traffic of a CSV file with these rows: instant, prompt, output and, where given, prefix and its tokens."""
    names = ["arrived_at_s", "num_prompt_tokens", "num_output_tokens", "prefix", "prefix_tokens"][: len(rows[0])]
    lines = [",".join(names), *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    columns = {"prefix_id": "prefix", "num_prefix_tokens": "prefix_tokens"} if len(names) > 3 else {}
    return {"kind": "table", "path": str(tmp_path / "log.csv"), "time_unit": "s", "columns": columns, **options}


def is_of(found: Result, num_gpus: int, text: str) -> None:
    """Everything in a folder is of one fleet of GPUs at two dollars."""
    plan = found.plan
    assert plan["fleet"]["num_gpus"] == num_gpus
    assert plan["headline"].startswith(f"{num_gpus} x h100-sxm serve")
    assert plan["headline"] in text
    assert plan["fleet"]["dollars_per_hour"] == 2.0 * num_gpus
    (fixed,) = (row for row in plan["policies"] if row["policy"] == "fixed")
    assert fixed["dollars_per_day"] == pytest.approx(48.0 * num_gpus)
    assert f"Kept at that size the fleet costs ${48 * num_gpus:,} a day" in text
    assert {row["num_gpus"] - row["difference"] for row in plan["sensitivity"] if row["num_gpus"]} == {num_gpus}
    assert plan["break_even"][0]["fleet_per_million_full"] == plan["fleet"]["full_cost_per_million"]
    assert found.pools["num_gpus"][found.pools["is_chosen"]].sum() == num_gpus
    assert found.manifest["counts"]["gpus"] == num_gpus


def test_the_headline_names_the_fleet_that_a_search_found_not_the_one_that_it_refused(tmp_path: Path) -> None:
    """A log at five times its rate: the closed form knows its mean, not that requests come in clumps of forty."""
    rows = [(10.0 * clump + 0.001 * i, 1500, 200) for clump in range(12) for i in range(40)]
    traffic = table(tmp_path, rows, rate_scale=5)
    found, text = ran(tmp_path, traffic=traffic, search="min_gpus")
    (best,) = found.plan["min_gpus"]
    closed = found.plan["closed_form"]
    assert best["num_replicas"] > closed["num_gpus"]
    is_of(found, best["num_replicas"], text)
    assert found.plan["decided_by"] == "simulation"
    assert f"the closed form said {closed['num_gpus']} GPU" in found.plan["headline"]
    assert "at most 80 % full" not in text


def test_a_fleet_that_a_check_refuses_is_not_the_answer(tmp_path: Path) -> None:
    found, text = ran(tmp_path, slo=TIGHT, verify=True)
    assert not found.plan["verified"]["is_enough"]
    needed = found.plan["verified"]["needed"]["shared"]
    assert needed > found.plan["closed_form"]["num_gpus"]
    is_of(found, needed, text)
    assert "NOT enough" in text


def test_a_fleet_that_a_check_finds_enough_keeps_its_headroom(tmp_path: Path) -> None:
    found, text = ran(tmp_path, verify=True, max_utilization=0.4)
    assert found.plan["verified"]["is_enough"]
    assert found.plan["verified"]["needed"]["shared"] < found.plan["fleet"]["num_gpus"]
    assert found.plan["fleet"] == found.plan["closed_form"]
    is_of(found, found.plan["closed_form"]["num_gpus"], text)
    assert "at most 40 % full, which simulation finds enough" in text


def test_of_two_pools_the_one_that_is_too_small_grows(tmp_path: Path) -> None:
    slo = {"ttft_s": {"p99": 0.5}, "tpot_s": {"p99": 0.0058}}
    outcome = planned(tmp_path, slo=slo, pools="separate", verify=True)
    found = outcome.answer.verification
    assert found is not None
    assert found.settled is not None
    assert found.settled["prefill"] == found.fleet.working["prefill"]
    assert found.settled["decode"] == found.needed["decode"] > found.fleet.working["decode"]
    assert outcome.fleet.working == found.settled
    plan, traffic = outcome.plan, outcome.traffic
    arriving = {seed: arrivals_of(plan, traffic, seed) for seed in plan.trials.seeds}
    for less, is_enough in ((0, True), (1, False)):
        working = found.settled | {"decode": found.settled["decode"] - less}
        verdict = judged(
            lambda seed: separate(plan, outcome.fleet, arriving[seed], working, seed),  # noqa: B023
            plan.trials.seeds,
            [Target("tpot_s", "p99", 0.0058)],
            plan.trials.confidence,
        )
        assert verdict.is_enough is is_enough


def test_a_check_and_a_search_name_the_same_number(tmp_path: Path) -> None:
    found, text = ran(tmp_path, slo=TIGHT, verify=True, search="min_gpus")
    (best,) = found.plan["min_gpus"]
    checked = found.plan["verified"]
    assert checked["is_enough"]
    assert checked["checked"] == checked["needed"] == checked["settled"] == {"shared": best["num_replicas"]}
    is_of(found, best["num_replicas"], text)
    (row,) = (row for row in found.plan["verification"] if row["quantity"] == "shared instances")
    assert (row["closed_form"], row["simulated"]) == (best["closed_form"], best["num_replicas"])


def test_a_search_of_shared_pools_is_held_against_separate_ones_that_were_simulated_too(tmp_path: Path) -> None:
    slo = {"ttft_s": {"p99": 0.5}, "tpot_s": {"p90": 0.0055}}
    outcome = planned(tmp_path, slo=slo, pools="cheapest", search="min_gpus")
    assert outcome.answer.closed_form.arrangement == "separate"
    assert outcome.answer.candidates is not None
    assert outcome.answer.verification is not None
    enough = outcome.answer.verification.enough
    assert enough is not None
    assert outcome.fleet.num_gpus == min(enough.num_gpus, outcome.answer.candidates[0].num_gpus or math.inf)
    assert "as many as simulation needs" in headline(outcome)


@pytest.mark.parametrize("how", [{"search": "min_gpus"}, {"verify": True}, {"search": "min_gpus", "verify": True}])
def test_where_nothing_meets_the_targets_there_is_no_fleet_and_no_bill(how: dict[str, Any], tmp_path: Path) -> None:
    """A step with 12,000 tokens of KV takes 5.3 ms however few share it, and three in a hundred requests have as many."""
    prompts = {"kind": "empirical", "values": [500] * 97 + [12_000] * 3}
    traffic = with_lengths(prompts, {"kind": "fixed", "tokens": 50}, duration_s=20)
    found, text = ran(tmp_path, traffic=traffic, slo={"tpot_s": {"p98": 0.0051}}, **how)
    plan = found.plan
    assert plan["fleet"] is None
    assert plan["headline"].startswith("Nothing that was tried meets the targets (")
    assert plan["headline"] in text
    assert plan["closed_form"]["num_gpus"] >= 1
    assert plan["policies"] == plan["day"] == plan["sensitivity"] == plan["break_even"] == []
    assert not found.pools["is_chosen"].any()
    assert "a day" not in text.split("What to rent")[0]
    assert "own fleet" not in text


def test_a_spare_is_on_both_sides_of_a_search(tmp_path: Path) -> None:
    """With one to spare the closed form is as right as without."""
    plain, spare = (planned(tmp_path, search="min_gpus", num_spare=number) for number in (0, 1))
    ones = [outcome.answer.candidates[0] for outcome in (plain, spare) if outcome.answer.candidates]
    assert len({(one.num_replicas, one.planned, one.least, tuple(one.tried)) for one in ones}) == 1
    assert spare.fleet.num_gpus == plain.fleet.num_gpus + 1
    assert spare.fleet.dollars_per_hour == plain.fleet.dollars_per_hour + 2
    said = [simulated(outcome).said[0].split("The closed form said ")[1] for outcome in (plain, spare)]
    assert said[1].replace(", spares left out", "") == said[0]
    assert "num_spare" in as_text(page(spare, simulated(spare).sections))


def test_spares_take_no_part_in_a_check(tmp_path: Path) -> None:
    plain, spare = (planned(tmp_path, verify=True, num_spare=number).answer.verification for number in (0, 2))
    assert plain is not None
    assert spare is not None
    assert (plain.is_enough, plain.needed) == (spare.is_enough, spare.needed)
    assert repr(plain.rows) == repr(spare.rows)  # NaN is not equal to itself


def test_a_separate_prefill_pool_keeps_its_ttft_without_its_spares(tmp_path: Path) -> None:
    plain, spare = (planned(tmp_path, pools="separate", num_spare=number).ttft for number in (0, 1))
    assert plain is not None
    assert spare is not None
    assert (spare.num_instances, spare.one_line_s) == (plain.num_instances, plain.one_line_s)
    assert spare.less_one_s == plain.one_line_s


ONE_TOKEN = with_lengths({"kind": "fixed", "tokens": 500}, {"kind": "fixed", "tokens": 1})


@pytest.mark.parametrize("pools", ["shared", "separate", "cheapest"])
def test_answers_of_one_token_are_planned_and_have_no_tpot(pools: str, tmp_path: Path) -> None:
    found, text = ran(tmp_path, traffic=ONE_TOKEN, pools=pools, verify=True)
    assert found.plan["fleet"]["num_gpus"] == 1
    assert "decode" not in found.plan["fleet"]["num_instances"]
    tpot = [row for row in found.plan["verification"] if row["quantity"].startswith("TPOT")]
    assert [(row["closed_form"], row["simulated"], row["verdict"]) for row in tpot] == [(None, None, "not measurable")] * 2
    assert "TPOT p90 <= 0.05 s: not measurable" in text
    assert found.plan["verified"]["is_enough"]  # by its TTFT
    cost = found.plan["fleet"]["cost_at_peak"]
    assert cost["per_million_input"] == pytest.approx(2.0 / 3600 / (found.plan["traffic"]["peak_per_s"] * 500) * 1e6)


def test_answers_of_one_token_cannot_be_searched_for_by_tpot_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no target can be measured.*give a target on ttft_s"):
        planned(tmp_path, traffic=ONE_TOKEN, slo={"tpot_s": {"p90": 0.05}}, search="min_gpus")


def test_answers_of_one_token_keep_any_tpot(tmp_path: Path) -> None:
    """Even one that no decode step could keep."""
    assert planned(tmp_path, traffic=ONE_TOKEN, slo={"tpot_s": {"p90": 1e-6}}).fleet.num_gpus == 1


@pytest.mark.parametrize("pools", ["shared", "separate"])
def test_a_check_without_a_measurable_target_says_nothing_either_way(pools: str, tmp_path: Path) -> None:
    for slo in ({}, {"tpot_s": {"p90": 0.05}}):
        found, text = ran(tmp_path, traffic=ONE_TOKEN, slo=slo, pools=pools, verify=True)
        assert found.plan["verified"]["is_enough"] is None
        assert found.plan["decided_by"] == "closed form"
        assert found.plan["fleet"]["num_gpus"] == 1
        assert "no target can be measured" in text


def test_long_prompts_with_two_to_four_tokens_are_planned(tmp_path: Path) -> None:
    """16,000 in, 2 to 4 out, once in 20 s: a request alone has a TPOT of 5 ms, though one after the other they would wait."""
    lengths = {"kind": "fixed", "tokens": 16_000}, {"kind": "uniform", "low": 2, "high": 4}
    traffic = with_lengths(*lengths, rate_per_s=0.05, duration_s=600)
    replicas = {"kind": "surrogate", "max_model_len": 32_768}
    outcome = planned(tmp_path, traffic=traffic, replicas=replicas, slo={"ttft_s": {"p99": 2.0}, "tpot_s": {"p90": 0.05}})
    assert outcome.fleet.num_gpus == 1
    assert outcome.fleet.balance is not None
    assert outcome.fleet.balance.tpot_s <= 0.05


def test_a_layout_whose_cache_holds_no_request_is_not_called_slow(tmp_path: Path) -> None:
    replicas = {"kind": "surrogate", "max_model_len": 16384, "watermark": 0.999}
    with pytest.raises(ConfigError, match=r"TP1: not one request of 1,[0-9]+ tokens fits in its cache"):
        planned(tmp_path, replicas=replicas)


def test_requests_that_fit_no_engine_are_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, replicas={"kind": "surrogate", "num_gpu_blocks": 2})
    assert main([str(path), "--out", str(tmp_path / "out")]) == 2
    assert "none of the 1," in (error := capsys.readouterr().err)
    assert "prompt and answer may be 17 tokens together" in error


def values(ttft: list[float], tpot: list[float], outputs: list[int]) -> Ran:
    return Ran(np.array(ttft), np.array(tpot), np.array(outputs), {})


def test_a_target_without_a_sample_is_neither_met_nor_missed() -> None:
    one_token = values([0.5, 0.5], [np.nan, np.nan], [1, 1])
    assert math.isnan(share_within(one_token, TPOT))
    assert judged(lambda seed: one_token, [1, 2], [TPOT], 0.95).is_enough is None
    assert judged(lambda seed: one_token, [1, 2], [], 0.95).is_enough is None
    assert judged(lambda seed: one_token, [1, 2], [TTFT, TPOT], 0.95).is_enough is True
    late = values([0.5, 1.5], [np.nan, np.nan], [1, 1])
    assert judged(lambda seed: late, [1, 2], [TTFT, TPOT], 0.95).is_enough is False


def test_999_of_1000_requests_are_p99_9() -> None:
    found = values([0.5] * 999 + [9.0], [0.01] * 1000, [10] * 1000)
    assert judged(lambda seed: found, [1, 2], [Target("ttft_s", "p99.9", 1.0)], 0.95).is_enough is True


def test_the_limit_itself_keeps_a_target() -> None:
    assert share_within(values([1.0, 1.0 + 1e-9], [0.05, 0.05], [2, 2]), TTFT) == 0.5


def test_who_is_never_served_is_late_in_the_percentiles_too() -> None:
    """Two of a hundred are never served: the p99 is not that of the other 98."""
    some = values([0.1] * 98 + [np.nan] * 2, [0.01] * 98 + [np.nan] * 2, [5] * 99 + [1])
    assert _percentile(some.values("ttft_s"), "p50") == 0.1
    assert _percentile(some.values("ttft_s"), "p99") == math.inf
    assert _percentile(some.values("tpot_s"), "p50") == 0.01
    assert len(some.values("tpot_s")) == 99  # the one-token answer has none, the other was never served
    assert _percentile(some.values("tpot_s"), "p100") == math.inf
    assert _percentile(np.array([0.1, 0.3, math.inf]), "p50") == 0.3  # falls on a served one, and on it alone
    assert _percentile(np.array([0.1, 0.3, math.inf]), "p51") == math.inf
    assert math.isnan(_percentile(np.array([]), "p99"))


def test_a_percentile_that_is_infinite_has_no_interval_and_breaks_nothing(tmp_path: Path) -> None:
    """One in five requests is longer than max_model_len, and refused."""
    prompts = {"kind": "empirical", "values": [500] * 4 + [20_000]}
    traffic = with_lengths(prompts, {"kind": "fixed", "tokens": 20}, duration_s=20)
    found, text = ran(tmp_path, traffic=traffic, verify=True)
    (row,) = (row for row in found.plan["verification"] if row["quantity"] == "TTFT p99, ms")
    assert row["simulated"] is None  # infinite is no JSON number
    assert "never" in text
    assert found.plan["fleet"] is None
    assert "% of the requests are longer than the 16,384 tokens that a replica holds, and are never served" in text


def test_rows_that_can_never_be_served_do_not_size_the_fleet(tmp_path: Path) -> None:
    rows = [(0.05 * i, 1000, 100) for i in range(1200)]
    dirty = [(at, 60_000 if i % 10 == 3 else prompt, output) for i, (at, prompt, output) in enumerate(rows)]
    clean, with_long = (planned(tmp_path, traffic=table(tmp_path, given)) for given in (rows, dirty))
    assert with_long.traffic.peak.prompt_tokens == pytest.approx(1000)
    assert with_long.traffic.peak.output_tokens == pytest.approx(100)
    assert with_long.traffic.peak.requests_per_s == pytest.approx(0.9 * clean.traffic.peak.requests_per_s)
    assert with_long.traffic.mean_per_s == pytest.approx(0.9 * clean.traffic.mean_per_s)
    assert with_long.day.demand_per_s == pytest.approx(0.9 * clean.day.demand_per_s)
    assert with_long.fleet.num_gpus == clean.fleet.num_gpus
    assert with_long.traffic.prompts.max() == 1000
    text = " ".join(as_text(page(with_long)).split())
    assert "120 of 1,200 requests looked at (10 %) are longer than the 16,384 tokens" in text
    assert "longer than" not in as_text(page(clean))


def test_the_longest_request_that_fits_is_served(tmp_path: Path) -> None:
    for total, num_served in ((16_384, 10), (16_385, 5)):
        rows = [(i, 1000, 100) for i in range(5)] + [(5 + i, total - 100, 100) for i in range(5)]
        found = measured(load(written(tmp_path, traffic=table(tmp_path, rows)))[0].experiment).lengths
        assert (found.num_served, found.longest) == (num_served, 16_384)


def test_dropped_and_clipped_rows_are_in_page_plan_and_manifest(tmp_path: Path) -> None:
    rows = [(0.1 * i, 1000, 0 if i in (5, 7) else 100) for i in range(600)]
    for policy, said in (("drop", "2 of the 600 rows read: dropped, zero tokens"), ("clip", "clipped, zero tokens")):
        found, text = ran(tmp_path, traffic=table(tmp_path, rows, bad_rows=policy))
        name = f"{'dropped' if policy == 'drop' else 'clipped'}_zero_tokens"
        assert found.plan["traffic"]["counts"][name] == 2
        assert found.manifest["counts"]["traffic"][name] == 2
        assert found.manifest["counts"]["traffic"]["read"] == 600
        assert said in text


SHARED_ROWS = [(0.1 * i, 1600, 100, f"system{i % 2}", 1200) for i in range(600)]


def test_what_a_trace_shares_is_counted_on_and_said(tmp_path: Path) -> None:
    """Two prefixes of 1,200 tokens, 75 blocks of 16; all but the first of each find them."""
    found, text = ran(tmp_path, traffic=table(tmp_path, SHARED_ROWS), verify=True)
    share = 598 * 1200 / (600 * 1600)
    assert found.plan["traffic"]["own_cached_share"] == pytest.approx(share)
    assert found.plan["traffic"]["cached_share"] == pytest.approx(share)
    (row,) = (row for row in found.plan["verification"] if row["quantity"] == "prompt tokens cached, %")
    assert row["closed_form"] == pytest.approx(100 * share)
    assert 0.9 * 100 * share < row["simulated"] <= 100 * share
    assert "74.8 % of the prompt tokens begin like an earlier request: the share that one endless cache would find" in text
    plain = planned(tmp_path, traffic=table(tmp_path, SHARED_ROWS), cached_share=0.0)
    assert found.plan["pools"][0]["capacity"] > plain.fleet.pools[0].capacity


@pytest.mark.parametrize(
    ("changes", "share", "said"),
    [
        ({"cached_share": 0.25}, 0.25, "which is not counted on: cached_share is 25.0 %"),
        ({"cached_share": 0.0}, 0.0, "which is not counted on: cached_share is 0.0 %"),
        ({"replicas": {**SMALL["replicas"], "enable_prefix_caching": False}}, 0.0, "enable_prefix_caching is false"),
    ],
)
def test_a_share_that_is_stated_stands_beside_the_trace_s_own(
    changes: dict[str, Any], share: float, said: str, tmp_path: Path
) -> None:
    outcome = planned(tmp_path, traffic=table(tmp_path, SHARED_ROWS), **changes)
    assert outcome.traffic.peak.cached_share == share
    assert said in " ".join(as_text(page(outcome)).split())
    arriving = arrivals_of(outcome.plan, outcome.traffic, 1)
    assert len(arriving.segments) == 0
    assert set(arriving.rows["num_prompt_tokens"]) == {round(1600 * (1 - share))}


def test_traffic_that_shares_nothing_has_no_share_of_its_own(tmp_path: Path) -> None:
    outcome = planned(tmp_path)
    assert document(outcome)["traffic"]["own_cached_share"] is None
    assert outcome.traffic.peak.cached_share == 0.0
    assert "No part of a prompt is cached" in as_text(page(outcome)).replace("\n", " ")


def test_a_stated_share_leaves_whole_tokens(tmp_path: Path) -> None:
    """70 % of ten tokens is seven, though 10 x (1 - 0.7) is a little above three."""
    outcome = planned(tmp_path, traffic=table(tmp_path, [(i, 10, 5) for i in range(9)]), cached_share=0.7)
    assert set(arrivals_of(outcome.plan, outcome.traffic, 1).rows["num_prompt_tokens"]) == {3}


def test_a_prompt_that_is_all_but_cached_still_computes_its_last_token(tmp_path: Path) -> None:
    traffic = with_lengths({"kind": "fixed", "tokens": 4}, {"kind": "fixed", "tokens": 10})
    assert planned(tmp_path, traffic=traffic, cached_share=0.99).fleet.num_gpus == 1


def test_seeds_that_send_nothing_are_named(tmp_path: Path) -> None:
    traffic = with_lengths({"kind": "fixed", "tokens": 500}, {"kind": "fixed", "tokens": 20}, rate_per_s=0.0001)
    with pytest.raises(ConfigError, match="with seed 1 no request arrives within its 60 s"):
        planned(tmp_path, traffic=traffic)
    trials = {"seeds": [1, 2], "duration_s": 1.0}
    thin = {**traffic, "rate_per_s": 0.01, "duration_s": 3600}
    with pytest.raises(ConfigError, match=r"trials: with seed . no request arrives in the 1 s around the peak"):
        planned(tmp_path, traffic=thin, verify=True, trials=trials)


def test_a_calibrated_plan_says_what_its_step_times_were_fitted_to(tmp_path: Path) -> None:
    replicas = {"kind": "surrogate", "max_model_len": 16384, "calibration": "calibrations/vllm-0.15_h100-sxm_served.yaml"}
    outcome = planned(tmp_path, replicas=replicas, prefill_mfu=None)
    text = " ".join(as_text(page(outcome)).split())
    assert "Step times are those of calibrations/vllm-0.15_h100-sxm_served.yaml, fitted to measurements." in text
    assert "served results" in text
    assert "roofline" not in text.lower()
    assert "% of the memory bandwidth" not in text
    plain = " ".join(as_text(page(planned(tmp_path))).split())
    assert "Step times are a bound" in plain
    assert "bound" in plain


def test_no_policy_of_the_day_has_more_than_the_fleet(tmp_path: Path) -> None:
    """A minute's clump above the peak's five minutes asks for no machine that the plan does not have."""
    rows = [(0.5 * i, 3000, 300) for i in range(1200)] + [(600 + 0.01 * i, 3000, 300) for i in range(3000)]
    outcome = planned(tmp_path, traffic=table(tmp_path, rows), peak_window_s=600)
    for one in outcome.day.policies:
        assert one.gpus.max() <= outcome.fleet.num_gpus


def fleet_of(tmp_path: Path, **changes: Any) -> tuple[Any, Fleet]:
    outcome = planned(tmp_path, **changes)
    return outcome, outcome.fleet


def test_a_simulated_size_is_filled_as_far_as_the_targets_were_seen_to_hold(tmp_path: Path) -> None:
    _, fleet = fleet_of(tmp_path, num_spare=1)
    (pool,) = fleet.pools
    grown = at_size(fleet, {"shared": 5})
    assert grown.pools[0].num_instances == 6
    assert grown.max_utilization == (pytest.approx(pool.load / pool.capacity / 5),)
    assert grown.pools[0].capacity == pool.capacity
    assert grown.working == {"shared": 5}
    assert in_proportion(fleet, grown).pools[0].num_instances == 6  # nothing has changed
    one = at_size(fleet, {"shared": 1})  # below what the closed form holds for possible: it carries what was seen
    assert one.pools[0].capacity == pytest.approx(max(pool.capacity, pool.load))
    assert one.max_utilization[0] <= 1.0


def test_a_sensitivity_is_in_the_proportion_of_the_closed_forms(tmp_path: Path) -> None:
    outcome, fleet = fleet_of(tmp_path)
    plan = outcome.plan
    case = base_case(plan, outcome.traffic)
    half = option(plan, plan.hardware[0], type(case)(case.demand, case.work, 0.5), fleet.instance, ["shared"]).shared
    assert half is not None
    assert in_proportion(half, at_size(fleet, {"shared": 7})).pools[0].num_instances == 14
    assert in_proportion(half, fleet) is half


def test_a_day_of_a_grown_fleet_scales_the_simulated_number(tmp_path: Path) -> None:
    traffic = {"kind": "diurnal", "peak_per_s": 30, "trough_per_s": 15, "lengths": SMALL["traffic"]["lengths"]}
    trials = {"seeds": [1, 2], "duration_s": 60}
    outcome = planned(tmp_path, traffic=traffic, slo=TIGHT, verify=True, trials=trials)
    days = {one.policy: one for one in outcome.day.policies}
    assert outcome.fleet.closed_form is not None
    assert days["fixed"].gpus.max() == days["forecast"].gpus.max() == outcome.fleet.num_gpus
    assert days["forecast"].gpus.min() == pytest.approx(outcome.fleet.num_gpus / 2, abs=1)
    assert days["forecast"].short_s_per_day == 0
    assert days["forecast"].tight_s_per_day == days["fixed"].tight_s_per_day < 600  # minutes above the peak's five


def test_a_kernel_calibrated_decode_pool_reads_prompts_in_no_time(tmp_path: Path) -> None:
    """What a GEMM of a prompt's rows was measured to take is the prefill pool's."""
    replicas = {"kind": "surrogate", "max_model_len": 16384, "calibration": "calibrations/vllm_h100-sxm_silicon.yaml"}
    traffic = with_lengths({"kind": "fixed", "tokens": 8000}, {"kind": "fixed", "tokens": 50}, rate_per_s=5)
    outcome = planned(tmp_path, replicas=replicas, prefill_mfu=None, pools="separate", traffic=traffic, slo={})
    arriving = arrivals_of(outcome.plan, outcome.traffic, 1)
    found = separate(outcome.plan, outcome.fleet, arriving, {"prefill": 8, "decode": 1}, 1)
    fleet = outcome.fleet
    step_s = fleet.instance.step_s(fleet.layout.batch, 8025)
    assert np.nanmedian(found.tpot_s) < 1.5 * step_s
    assert fleet.instance.kv_bytes_per_token == 131_072  # not the calibration's, which holds time
    assert 0.3 < fleet.prefill.mfu(2000) < 1.1


def test_a_lone_request_is_planned_and_checked(tmp_path: Path) -> None:
    traffic = {**SMALL["traffic"], "rate_per_s": 1, "limit": 1}
    assert planned(tmp_path, traffic=traffic, verify=True).fleet.num_gpus == 1


def test_a_search_with_separate_pools_is_refused_at_load(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="search: min_gpus looks for shared pools; pools: separate goes with verify: true"):
        load(written(tmp_path, search="min_gpus", pools="separate"))


def test_long_work_is_announced_where_no_terminal_shows_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("mine")
    progress.expect("search", 18, 200_000)
    assert "mine: search: some 18 simulations of 200,000 requests each" in capsys.readouterr().err
    with progress.one("2 replicas"):
        pass
    assert capsys.readouterr().err == ""  # too short to be worth a line
    progress.expect("search", 18, 200)
    assert capsys.readouterr().err == ""
    bar = Progress("mine", shows_bar=True)
    bar.expect("verify", 6, 200)
    with bar.one("2 replicas, seed 1"):
        pass
    bar.close()
    assert "mine: verify" in capsys.readouterr().err


def test_an_answer_that_was_not_simulated_says_so(tmp_path: Path) -> None:
    outcome = planned(tmp_path)
    assert outcome.answer.decided_by == "closed form"
    assert "By closed form, and not simulated" in as_text(page(outcome))


def test_a_refused_request_keeps_no_target_in_any_pool(tmp_path: Path) -> None:
    (one,) = load(written(tmp_path))
    plan = one.experiment
    traffic = measured(plan)
    arriving = arrivals_of(plan, traffic, 1)
    rows = arriving.rows.copy()
    rows["num_prompt_tokens"][:10] = 20_000
    fleet = option(plan, plan.hardware[0], base_case(plan, traffic)).shared
    assert fleet is not None
    found = shared(Arriving(rows), fleet.instance, 4, plan.trials.router, 1)
    assert np.isinf(found.values("ttft_s")[:10]).all()
    assert found.steps["shared"].num_refused == 10


def test_a_verified_fleet_and_the_answer_are_one_object(tmp_path: Path) -> None:
    outcome = planned(tmp_path, verify=True)
    assert outcome.answer.is_as_planned
    assert outcome.alternatives[0] is outcome.fleet
    assert len({(fleet.name, fleet.arrangement) for fleet in outcome.alternatives}) == len(outcome.alternatives)


def test_searches_and_checks_are_the_same_whoever_asks(tmp_path: Path) -> None:
    (one,) = load(written(tmp_path, search="min_gpus"))
    plan, traffic = one.experiment, measured(one.experiment)
    (candidate,) = search(plan, traffic)
    answer = decided(plan, traffic, candidate.fleet)
    assert answer.fleet is not None
    assert answer.fleet.working == {"shared": candidate.num_replicas}
    checked = verified(plan, traffic, candidate.fleet)
    assert checked.needed == answer.fleet.working


def test_intervals_that_do_not_fill_hours_leave_no_hour_empty(tmp_path: Path) -> None:
    """Steps of 50 minutes: the third hour begins within the last one."""
    traffic = {**SMALL["traffic"], "rate_per_s": 1, "duration_s": 9000}
    hours = planned(tmp_path, traffic=traffic, interval_s=3000).day.hours()
    assert [row["demand_per_s"] for row in hours] == pytest.approx([1.0] * 3)


def test_a_cache_that_finds_less_than_counted_on_makes_the_closed_form_optimistic() -> None:
    found = [Row(name, 40.0, 10.0, 1.0).verdict for name in ("prompt tokens cached, %", "TPOT p50, ms")]
    assert found == ["closed form optimistic", "closed form pessimistic"]


def test_a_client_s_limit_is_said_to_be_left_out(tmp_path: Path) -> None:
    outcome = planned(tmp_path, traffic={**SMALL["traffic"], "max_concurrency": 16})
    assert "max_concurrency 16 is not planned with" in as_text(page(outcome))


def test_the_smallest_fleet_pays_from_where_its_price_is_the_api_s(tmp_path: Path) -> None:
    outcome = planned(tmp_path, num_spare=1)
    (one,) = outcome.money
    tokens = outcome.traffic.peak.prompt_tokens + outcome.traffic.peak.output_tokens
    api_per_request = (0.1 * outcome.traffic.peak.prompt_tokens + 0.4 * outcome.traffic.peak.output_tokens) / 1e6
    assert one.smallest_fleet_gpus == 2
    assert one.smallest_fleet_pays_from_per_s * 3600 * api_per_request == pytest.approx(2 * 2.0)
    assert one.flips_at_per_s * 3600 * api_per_request == pytest.approx(outcome.fleet.dollars_per_hour)
    full_per_s = outcome.fleet.capacity_per_s
    assert one.fleet_per_million_full == pytest.approx(outcome.fleet.dollars_per_hour / 3600 / full_per_s / tokens * 1e6)
    assert full_per_s == pytest.approx(outcome.fleet.pools[0].capacity * outcome.fleet.pools[0].num_instances)


def test_an_api_that_is_dear_enough_is_beaten_and_a_cheap_one_never(tmp_path: Path) -> None:
    given = {"a": 9.0, "b": 1e-6}
    prices = [{"name": name, "input_per_million": price, "output_per_million": price} for name, price in given.items()]
    dear, cheap = planned(tmp_path, api_prices=prices).money
    assert dear.verdicts["fixed"].startswith("own fleet")
    assert (dear.never_pays, cheap.never_pays) == (False, True)
    assert cheap.verdicts["fixed"].startswith("API")
    assert cheap.smallest_fleet_pays_from_per_s == math.inf


def test_a_day_costs_its_gpu_hours_and_spares_are_billed_all_day(tmp_path: Path) -> None:
    traffic = {"kind": "diurnal", "peak_per_s": 60, "trough_per_s": 12, "lengths": SMALL["traffic"]["lengths"]}
    plain, spare = (planned(tmp_path, traffic=traffic, num_spare=number) for number in (0, 2))
    tokens_per_day = plain.traffic.mean_per_s * 86_400 * plain.fleet.tokens_per_request
    for one, other in zip(plain.day.policies, spare.day.policies, strict=True):
        assert other.gpu_hours_per_day == pytest.approx(one.gpu_hours_per_day + 2 * 24)
        assert one.dollars_per_day == pytest.approx(2.0 * one.gpu_hours_per_day)
        assert one.per_million == pytest.approx(one.dollars_per_day / tokens_per_day * 1e6)
        per_gpu_s = plain.fleet.pools[0].capacity
        assert one.utilization == pytest.approx(plain.traffic.mean_per_s / per_gpu_s / (one.gpu_hours_per_day / 24))
        assert other.tight_s_per_day <= one.tight_s_per_day
    assert plain.day.policies[0].gpu_hours_per_day == 24 * plain.fleet.num_gpus


def test_the_peak_is_the_busiest_window_and_a_short_rest_is_none_of_its_own(tmp_path: Path) -> None:
    """Windows of 100 s; 20 s are left over, in which requests come twice as fast as ever before."""
    busy = [(100 + i, 1000, 100) for i in range(100)]
    rows = [(10.0 * i, 1000, 100) for i in range(10)] + busy + [(200 + 10.0 * i, 1000, 100) for i in range(10)]
    rest = [(300 + 0.5 * i, 1000, 100) for i in range(41)]
    found = measured(load(written(tmp_path, traffic=table(tmp_path, rows + rest), peak_window_s=100))[0].experiment)
    assert found.peak.requests_per_s == pytest.approx(1.0)
    assert found.peak_at_s == 150.0
    assert found.duration_s == 320.0
    assert found.mean_per_s == pytest.approx(161 / 320)


def test_a_rest_of_more_than_half_a_window_is_one_of_its_own(tmp_path: Path) -> None:
    rows = [(float(i), 1000, 100) for i in range(300)] + [(300 + 0.5 * i, 1000, 100) for i in range(121)]
    found = measured(load(written(tmp_path, traffic=table(tmp_path, rows), peak_window_s=100))[0].experiment)
    assert found.peak.requests_per_s == pytest.approx(2.0, rel=0.01)  # the last request is at its very end
    assert found.peak_at_s == 330.0


def test_a_batch_holds_long_answers_for_longer(tmp_path: Path) -> None:
    """Of the tokens of a batch ten are of contexts of 105 on average, thirty of 115."""
    rows = [(0, 100, 10), (1, 100, 30)]
    found = measured(load(written(tmp_path, traffic=table(tmp_path, rows)))[0].experiment)
    assert found.biased_context_tokens == (10 * 105 + 30 * 115) / 40


def test_what_requests_behind_the_limit_share_is_not_counted_on(tmp_path: Path) -> None:
    """The first two begin with a prefix each."""
    found = measured(load(written(tmp_path, traffic=table(tmp_path, SHARED_ROWS, limit=2)))[0].experiment)
    assert found.own_cached_share == 0.0


def test_a_long_prompt_is_one_at_the_highest_percentile_of_ttft(tmp_path: Path) -> None:
    plan = load(written(tmp_path, slo={"ttft_s": {"p50": 0.1, "p99": 5.0}}))[0].experiment
    traffic = measured(plan)
    assert base_case(plan, traffic).longest == (np.percentile(traffic.prompts, 99), 5.0)


def test_at_its_capacity_the_fullest_pool_is_full(tmp_path: Path) -> None:
    fleet = planned(tmp_path, pools="separate").fleet
    more = fleet.capacity_per_s / fleet.demand.requests_per_s
    assert max(pool.utilization * more for pool in fleet.pools) == pytest.approx(1.0)
    assert len({pool.utilization for pool in fleet.pools}) == 2


def test_a_trial_is_cut_around_the_peak(tmp_path: Path) -> None:
    rows = [(10.0 * i, 1000, 100) for i in range(30)] + [(300 + i, 1000, 100) for i in range(100)]
    rows += [(400 + 10.0 * i, 1000, 100) for i in range(30)]
    for length_s, first_s, last_s in ((60, 320, 379), (None, 0, 690), (10_000, 0, 690)):
        trials = {"seeds": [1, 2], "duration_s": length_s}
        traffic = table(tmp_path, rows)
        plan = load(written(tmp_path, traffic=traffic, peak_window_s=100, trials=trials))[0].experiment
        found = arrivals_of(plan, measured(plan), 1).rows["arrived_at_s"]
        inside = [at for at, *_ in rows if first_s <= at <= last_s]
        start_s = 0 if first_s == 0 else 320
        assert found.tolist() == [at - start_s for at in inside]


def test_cached_prompt_tokens_take_no_part_of_the_gpus_cost(tmp_path: Path) -> None:
    plain, cached = (planned(tmp_path, cached_share=share).fleet for share in (0.0, 0.5))
    for fleet in (plain, cached):
        demand, instance = fleet.demand, fleet.instance
        computed = demand.prompt_tokens - demand.cached_tokens
        prompt_s = computed / instance.prefill_tokens_per_s(demand.prompt_tokens, demand.cached_tokens)
        answer_s = (demand.output_tokens - 1) / fleet.layout.tokens_per_s
        assert fleet.prefill_share == pytest.approx(prompt_s / (prompt_s + answer_s))
    assert cached.prefill_share < plain.prefill_share


def test_a_request_waits_for_its_cache_between_two_pools(tmp_path: Path) -> None:
    """Alone in both pools: its TPOT is the transfer and the steps, shared among all tokens but the first."""
    traffic = with_lengths({"kind": "fixed", "tokens": 4000}, {"kind": "fixed", "tokens": 11}, limit=1)
    outcome = planned(tmp_path, traffic=traffic, pools="separate", kv_bytes_per_s=1e9)
    found = separate(outcome.plan, outcome.fleet, arrivals_of(outcome.plan, outcome.traffic, 1), outcome.fleet.working, 1)
    fleet = outcome.fleet
    assert found.ttft_s[0] == pytest.approx(fleet.prefill.prefill_s(4000), rel=1e-3)
    transfer_s = 4000 * 131_072 / 1e9
    assert found.tpot_s[0] == pytest.approx((transfer_s + 10 * fleet.instance.step_s(1, 4005)) / 10, rel=0.01)


def test_no_result_depends_on_how_many_arrivals_are_loaded_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk takes its own rows' prefixes, and no others'."""
    rows = [(0.1 * i, 1600, 100, f"system{i % 3}" if i % 4 else "", 1200 if i % 4 else 0) for i in range(200)]
    outcome = planned(tmp_path, traffic=table(tmp_path, rows))
    arriving = arrivals_of(outcome.plan, outcome.traffic, 1)
    found = []
    for chunk_rows in (1 << 15, 7, 200):
        monkeypatch.setattr("planning.plans.trial.CHUNK_ROWS", chunk_rows)
        found.append(shared(arriving, outcome.fleet.instance, 2, outcome.plan.trials.router, 1))
    for other in found[1:]:
        np.testing.assert_array_equal(other.ttft_s, found[0].ttft_s)
        assert other.steps["shared"].cached_share == found[0].steps["shared"].cached_share > 0.5


def test_a_long_file_is_counted_to_its_end_and_its_first_requests_are_kept(tmp_path: Path) -> None:
    """200,000 requests, two chunks of them; the last tenth can never be served."""
    rows = [(i, 1000 if i < 900 else 60_000, 100) for i in range(1000)]
    plan = load(written(tmp_path, traffic=table(tmp_path, rows, rate_scale=200)))[0].experiment
    found = measured(plan).lengths
    assert found.num_looked_at == found.counts["kept"] == 200_000
    assert found.served_share == pytest.approx(0.9)
    assert len(found.prompts) == len(found.outputs) == 50_000
    generated = measured(load(written(tmp_path, traffic={**SMALL["traffic"], "duration_s": 20_000}))[0].experiment).lengths
    assert 50_000 <= generated.num_looked_at < 200_000  # enough of half a million


def test_a_fleet_that_simulation_finds_as_large_as_the_closed_form_is_filled_as_far(tmp_path: Path) -> None:
    """A replica that is 16 % full, and enough, is still enough when it does 10 % less; the plan once said 2 for that."""
    _, fleet = fleet_of(tmp_path)
    same = at_size(fleet, fleet.working)
    assert same.max_utilization == fleet.max_utilization
    less = replace(fleet, pools=tuple(pool.derated(0.9, *fleet.max_utilization) for pool in fleet.pools))
    assert in_proportion(less, same).pools[0].num_instances == less.pools[0].num_instances


@pytest.mark.parametrize(
    ("simulated_number", "said"),
    [(math.nan, "no target of its own, or none to be met"), (4, "as planned"), (5, "closed form optimistic")],
)
def test_a_number_of_instances_is_held_against_the_planned_four(simulated_number: float, said: str) -> None:
    assert _said(Row("decode instances", 4, simulated_number, 0.0)) == said


@pytest.mark.parametrize(("duration_s", "span"), [(59.0, "59 s around the peak"), (60.0, "All traffic")])
def test_a_trial_as_long_as_the_traffic_is_of_all_of_it(tmp_path: Path, duration_s: float, span: str) -> None:
    outcome = planned(tmp_path, trials={"seeds": [1, 2], "duration_s": duration_s})
    assert _traffic_line(outcome).startswith(span)


def test_a_trial_of_limited_traffic_is_of_all_of_it_however_short_trials_are(tmp_path: Path) -> None:
    traffic = {**SMALL["traffic"], "limit": 100}
    outcome = planned(tmp_path, traffic=traffic, trials={"seeds": [1, 2], "duration_s": 1.0})
    assert len(arrivals_of(outcome.plan, outcome.traffic, 1).rows) == 100
    assert _traffic_line(outcome).startswith("All traffic")


def test_a_layout_that_costs_as_much_as_the_best_is_not_simulated(tmp_path: Path) -> None:
    """The same GPU at the same price, offered twice: its one replica cannot beat the other's."""
    (one,) = load(written(tmp_path, traffic={**SMALL["traffic"], "rate_per_s": 1}, hardware=SMALL["hardware"] * 2))
    best, other = search(one.experiment, measured(one.experiment))
    assert (best.num_replicas, other.num_replicas) == (1, None)
    assert other.remark == "pruned: 1 replica at least, $2.00 an hour"


def test_a_search_answers_with_the_first_of_its_candidates(tmp_path: Path) -> None:
    """They come with the cheapest first: here one that needs a replica more than planned, and one that nobody tried."""
    fleet = planned(tmp_path).fleet
    enough = Verdict(True, "enough", 1, {})
    number = fleet.working["shared"] + 1
    best = Candidate(fleet, 1, {number: enough}, number)
    dearer = Candidate(fleet, 1, remark="costs more than the best")
    assert _answer([best, dearer]).startswith(f"{number} replicas of TP1 on h100-sxm")
    assert "too few" in _answer([best, dearer])
