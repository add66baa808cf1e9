"""The frozen scenarios: what moved against the baseline, and beside each what theory says of it whatever the baseline.

A baseline alone freezes mistakes; a bound alone lets everything through that stays on its good side.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import run
from experiments.cli import main
from experiments.regression import TOLERANCE, check, write_baseline
from experiments.running import Result
from experiments.settings.loading import RunConfig, load
from tests.estimates import Estimate
from tests.regression import SCENARIOS, baseline_of
from tests.regression.__main__ import main as regenerate

# Llama 3.1 8B in bf16, and an H100's and an L40S's two rates; the sources are in models.csv and gpus.csv.
PARAMS, LAYERS, HEADS_DIM, KV_BYTES_PER_TOKEN = 8.03e9, 32, 4096, 131_072
H100_FLOPS_PER_S, H100_BYTES_PER_S, L40S_BYTES_PER_S = 989e12, 3.35e12, 864e9


Runs = Callable[[str], list[tuple[RunConfig, Result]]]


def scenario(name: str) -> Path:
    return next(path for path in SCENARIOS if path.stem == name)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Name of a scenario -> its runs, one a seed; each scenario is run once."""
    out = tmp_path_factory.mktemp("regression")

    @cache
    def runs_of(name: str) -> list[tuple[RunConfig, Result]]:
        return list(zip(load(scenario(name)), run(scenario(name), out=out, progress=False).runs, strict=True))

    return runs_of


def prefill_flops(tokens: Any) -> Any:
    """Two for each weight and token; four for each layer, dimension and pair of a token and one before it."""
    return tokens * 2 * PARAMS + 4 * LAYERS * HEADS_DIM * tokens**2 / 2


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_percentiles_stand_where_they_stood(path: Path, runs: Runs) -> None:
    """If one moved on purpose: `python -m tests.regression`, and say in CHANGELOG why the new value is right."""
    moved = check([one.folder for _, one in runs(path.stem)], baseline_of(path))
    assert moved == []


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_what_holds_in_every_run(path: Path, runs: Runs) -> None:
    for config, one in runs(path.stem):
        requests = one.requests[one.requests["status"] == "finished"]
        assert (requests["ttft_s"] >= requests["queue_s"]).all()
        gaps_s = requests["tpot_s"].fillna(0.0) * (requests["num_output_tokens"] - 1)
        np.testing.assert_allclose(requests["ttft_s"] + gaps_s, requests["e2e_s"], rtol=1e-9)
        asked = np.concatenate(list(config.experiment.traffic.stream(config.seed).chunks()))
        assert len(one.requests) == len(asked)
        assert (requests["num_output_tokens"] == asked["num_output_tokens"][requests["id"]]).all()


def test_light_load_takes_the_textbooks_times(runs: Runs) -> None:
    """Alone in the engine: 1,000 tokens of arithmetic, then weights and 1,001 to 1,100 tokens of KV a step."""
    ttft_s = prefill_flops(1000) / H100_FLOPS_PER_S
    tpot_s = (2 * PARAMS + 1050.5 * KV_BYTES_PER_TOKEN) / H100_BYTES_PER_S
    for _, one in runs("light_load"):
        assert one.requests["ttft_s"].min() == pytest.approx(ttft_s, rel=1e-3)
        assert one.requests["tpot_s"].min() == pytest.approx(tpot_s, rel=1e-3)
        assert one.requests["tpot_s"].median() == pytest.approx(tpot_s, rel=1e-3)


def test_light_load_finds_the_engine_idle_as_often_as_it_is_idle(runs: Runs) -> None:
    """Poisson arrivals see time averages; infinitely many servers of 0.5 s are empty for exp(-0.1 x 0.5) of the time."""
    shares = [(one.requests["ttft_s"] < 0.01651).mean() for _, one in runs("light_load")]
    busy_s = float(runs("light_load")[0][1].requests["e2e_s"].min())
    expected, num_requests = np.exp(-0.1 * busy_s), sum(len(one.requests) for _, one in runs("light_load"))
    idle = Estimate(float(np.mean(shares)), float(np.sqrt(expected * (1 - expected) / num_requests)))
    assert idle.agrees_with(float(expected))
    assert idle.detects(0.04)


def test_near_saturation_no_token_comes_before_its_weights_or_its_prompts_arithmetic(runs: Runs) -> None:
    for _, one in runs("near_saturation"):
        assert (one.requests["tpot_s"].dropna() > 2 * PARAMS / (0.7 * H100_BYTES_PER_S)).all()
        least_s = prefill_flops(one.requests["num_prompt_tokens"]) / (0.5 * H100_FLOPS_PER_S)
        assert (one.requests["ttft_s"] > 0.999 * least_s).all()


def test_near_saturation_is_near_it_and_not_beyond(runs: Runs) -> None:
    """The arithmetic of all tokens alone takes 65 to 95 % of the time; a queue for it forms and empties again."""
    for _, one in runs("near_saturation"):
        tokens = one.requests["num_prompt_tokens"].sum() + one.requests["num_output_tokens"].sum()
        assert 0.65 < tokens * 2 * PARAMS / (0.5 * H100_FLOPS_PER_S) / one.requests["finished_at_s"].max() < 0.95
        assert one.requests["queue_s"].quantile(0.99) > 3 * one.requests["queue_s"].median()
        assert one.requests["finished_at_s"].max() < 60 + 2 * one.requests["e2e_s"].max()


def test_near_saturation_obeys_littles_law_in_the_timeline(runs: Runs) -> None:
    """Requests in the system, looked at each second: their sum is the requests' time in it, up to sampling."""
    for _, one in runs("near_saturation"):
        pool = one.timeline[one.timeline["pool"] == "main"]
        sampled = (pool["num_waiting"] + pool["num_running"]).sum() * 1.0
        assert sampled == pytest.approx(one.requests["e2e_s"].sum(), rel=0.03)


def test_tight_memory_refuses_what_never_fits_and_nothing_else(runs: Runs) -> None:
    """160 usable blocks of 16 hold 2,560 tokens; a request needs KV for all its tokens but the last."""
    for config, one in runs("tight_memory"):
        asked = np.concatenate(list(config.experiment.traffic.stream(config.seed).chunks()))
        is_too_long = asked["num_prompt_tokens"] + asked["num_output_tokens"] - 1 > 2560
        assert is_too_long.any()
        assert ((one.requests["status"] == "rejected") == is_too_long).all()
        assert set(one.requests["reason"][is_too_long]) == {"over_kv_cache"}


def test_tight_memory_holds_no_more_tokens_than_there_are_and_makes_the_preempted_pay(runs: Runs) -> None:
    for _, one in runs("tight_memory"):
        requests = one.requests[one.requests["status"] == "finished"]
        smooth = requests[requests["num_preemptions"] == 0]
        # Each holds its prompt from its first step to its last: a lower bound of what must fit into two caches.
        held = (smooth["num_prompt_tokens"] * (smooth["finished_at_s"] - smooth["scheduled_at_s"])).sum()
        assert held < 2 * 2560 * requests["finished_at_s"].max()
        assert one.timeline["kv_cache_usage"].max() <= 1.0
        assert one.timeline["kv_cache_usage"].max() > 0.9
        preempted = requests[requests["num_preemptions"] > 0]
        assert len(preempted) > 0
        assert preempted["tpot_s"].median() > 1.3 * smooth["tpot_s"].median()
        assert (requests["tpot_s"].dropna() > 2 * PARAMS / L40S_BYTES_PER_S).all()


def test_autoscaled_ramp_has_replicas_one_cold_start_after_it_asked(runs: Runs) -> None:
    """60 + 20 + 15 + 9 s, and 16.06 GB at 1 GB/s."""
    for _, one in runs("autoscaled_ramp"):
        later = one.replicas[(one.replicas["requested_at_s"] > 0) & one.replicas["ready_at_s"].notna()]
        assert len(later) >= 1  # two hold the peak of 5 requests/s at 60 % of 4.4 each, and one was there
        assert len(one.replicas) < 8  # all there may be: the queue of a cold start would ask for them if it were counted again
        np.testing.assert_allclose(later["ready_at_s"] - later["requested_at_s"], 104 + 2 * PARAMS / 1e9, rtol=1e-4)
        # Who queues on the climb is served when what was asked for before comes: no wait is longer than a cold start.
        assert one.requests["queue_s"].max() < 120.1


def test_autoscaled_ramp_pays_for_the_machines_it_had_and_for_enough_of_them(runs: Runs) -> None:
    for _, one in runs("autoscaled_ramp"):
        lifetimes_s = one.replicas["released_at_s"] - one.replicas["requested_at_s"]
        (paid,) = one.summary[one.summary["scope"] == "all"]["gpu_hours"]
        assert paid == pytest.approx(lifetimes_s.sum() / 3600, rel=1e-9)
        # The weights are read in every step of at most 256 tokens of decode: fewer GPU-seconds cannot make these tokens.
        assert paid * 3600 > one.requests["num_output_tokens"].sum() / 256 * 2 * PARAMS / (0.7 * L40S_BYTES_PER_S)
        assert paid * 3600 < 8 * one.requests["finished_at_s"].max()


def test_a_slower_engine_makes_the_check_fail_and_say_which_percentile_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """3 % less bandwidth: decode steps, which read memory, are 3 % longer; the prefill, which computes, is not."""
    path = scenario("light_load")
    check_it = [str(path), "--jobs", "1", "--out", str(tmp_path), "--check", str(baseline_of(path))]
    assert main(check_it) == 0
    capsys.readouterr()
    assert main([*check_it, "--set", "pools.main.replicas.bandwidth_efficiency=0.97"]) == 1
    printed = capsys.readouterr().out
    moved = [line for line in printed.splitlines() if line.startswith("light_load: ")]
    (median,) = [line for line in moved if "tpot_s p50" in line]
    assert "(+3.1 %" in median
    assert "the same in all 3 seeds" in median
    assert not [line for line in moved if "ttft_s p50" in line]


def test_regenerating_refuses_a_scenario_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert regenerate(["ligth_load"]) == 2
    assert "no scenario named ligth_load; known: autoscaled_ramp, light_load" in capsys.readouterr().err


def test_writing_a_baseline_anew_keeps_the_tolerance_that_a_person_declared(runs: Runs, tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    baseline.write_text('{"tolerance": {"relative": 0.5}, "experiments": {}}')
    write_baseline([one.folder for _, one in runs("light_load")], baseline)
    assert json.loads(baseline.read_text())["tolerance"] == TOLERANCE | {"relative": 0.5}
