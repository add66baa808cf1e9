"""A live replica serves as its surrogate does if its engine decides and lasts the same; and what happens when it goes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments.contracts.fleets import Ran, arrivals, classes, engine, run
from replicas.live.plane import EngineSource
from sim.records import FINISHED, IN_FLIGHT, OVER_RATE_LIMIT, OVER_TTFT
from tests.live_engines import NaiveEngine, per_token
from tests.property.naive_request import Settings

SETTINGS = Settings(
    max_num_seqs=6,
    max_num_batched_tokens=64,
    block_size=4,
    num_usable_blocks=60,
    max_model_len=200,
    enable_prefix_caching=True,
)
FIELDS = ("arrived_at_s", "routed_at_s", "scheduled_at_s", "first_token_at_s", "last_token_at_s", "finished_at_s")
COUNTS = ("num_generated_tokens", "num_cached_tokens", "num_preemptions", "machine", "status")


def surrogate(settings: Settings) -> Any:
    """The ENGINE record of the same engine, whose steps last `per_token`."""
    names = (
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
        "num_usable_blocks",
        "max_model_len",
        "enable_prefix_caching",
    )
    fields = {name: getattr(settings, name) for name in names}
    return engine(**fields, flops_per_token=1e-5, flops_per_s=1.0, overhead_s=0.01)


def source(settings: Settings, **options: Any) -> EngineSource:
    return EngineSource(lambda: NaiveEngine(settings, per_token), **options)


def workload(seed: int, num: int = 150) -> tuple[Any, list[list[tuple[int, int]]]]:
    """Requests that come in clumps, and prompts that share beginnings of any length."""
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(0.04, num) * (rng.random(num) < 0.7))
    prompts, outputs = rng.integers(1, 70, num), rng.integers(1, 30, num)
    rows = list(zip(at_s.tolist(), prompts.tolist(), outputs.tolist(), strict=True))
    segments = [[(int(rng.integers(3)), int(rng.integers(1, 1 + prompt)))] for prompt in prompts.tolist()]
    return arrivals(rows), segments


def compared(live: Ran, simulated: Ran) -> None:
    """A live engine's clock adds the same step times one by one, so instants differ by rounding alone."""
    for name in FIELDS:
        np.testing.assert_allclose(live.requests[name], simulated.requests[name], rtol=0, atol=1e-9, err_msg=name)
    for name in COUNTS:
        np.testing.assert_array_equal(live.requests[name], simulated.requests[name], err_msg=name)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_replicas", [1, 3])
@pytest.mark.parametrize("max_concurrency", [None, 20])
def test_a_live_replica_serves_as_its_surrogate_does(seed: int, num_replicas: int, max_concurrency: int | None) -> None:
    arriving, segments = workload(seed)
    arriving["arrived_at_s"] *= 1 if max_concurrency is None else 0.2  # so that its client has to hold some back
    options: dict[str, Any] = {"replicas": num_replicas, "segments": segments, "timeline_interval_s": 0.5}
    options["max_concurrency"] = max_concurrency
    simulated = run(arriving, surrogate(SETTINGS), **options)
    live = run(arriving, surrogate(SETTINGS), source=source(SETTINGS), **options)
    compared(live, simulated)
    assert (simulated.plane.fleet.clock[0].num_held > 50) == (max_concurrency is not None)
    assert live.requests["num_cached_tokens"].sum() > 0
    if num_replicas == 1:
        assert live.requests["num_preemptions"].sum() > 0
    np.testing.assert_array_equal(live.plane.fleet.itl_counts.sum(), simulated.plane.fleet.itl_counts.sum())
    busy = live.plane.fleet.replicas["busy_s"]
    np.testing.assert_allclose(busy, simulated.plane.fleet.replicas["busy_s"], atol=1e-9)
    assert live.plane.fleet.replicas["num_steps"].sum() == simulated.plane.fleet.replicas["num_steps"].sum()


@pytest.mark.parametrize("max_concurrency", [None, 20])
@pytest.mark.parametrize("num_live", [1, 2])
def test_turns_follow_a_live_replicas_answers_as_its_surrogates(max_concurrency: int | None, num_live: int) -> None:
    """Every third request follows the one before it at once, every fifth one further back after some thought."""
    arriving, segments = workload(5)
    arriving["follows"][1::3], arriving["follows"][7::5], arriving["delay_s"][7::5] = 1, 4, 0.05
    options: dict[str, Any] = {"replicas": num_live, "segments": segments, "max_concurrency": max_concurrency}
    simulated = run(arriving, surrogate(SETTINGS), **options)
    compared(run(arriving, surrogate(SETTINGS), source=source(SETTINGS), **options), simulated)
    assert (np.diff(simulated.requests["arrived_at_s"]) >= 0).all()
    assert simulated.requests["num_prompt_tokens"].tolist() != arriving["num_prompt_tokens"].tolist()


@pytest.mark.parametrize("reason", [OVER_RATE_LIMIT, OVER_TTFT])
def test_the_gateway_treats_it_as_it_treats_a_surrogate(reason: int) -> None:
    arriving, segments = workload(3)
    kinds = classes((0, 0, 0, 0.0))
    if reason == OVER_RATE_LIMIT:
        kinds["bucket"][0] = (500.0, 1000.0, 1000.0, 0.0)
    else:
        kinds["admitted_ttft_s"], kinds["prefill_tokens_per_s"] = 0.2, 1000.0
    live = run(arriving, surrogate(SETTINGS), segments=segments, classes=kinds.copy(), source=source(SETTINGS))
    compared(live, run(arriving, surrogate(SETTINGS), segments=segments, classes=kinds.copy()))
    assert 10 < (live.requests["reason"] == reason).sum() < len(arriving) - 10


def test_the_timeline_shows_the_same_gauges() -> None:
    arriving, segments = workload(9)
    options: dict[str, Any] = {"replicas": 2, "segments": segments, "timeline_interval_s": 0.1}
    live = run(arriving, surrogate(SETTINGS), source=source(SETTINGS), **options).intervals
    simulated = run(arriving, surrogate(SETTINGS), **options).intervals
    assert len(live) == len(simulated) > 20
    for ours, theirs in zip(live, simulated, strict=True):
        assert ours == pytest.approx(theirs, nan_ok=True)


def test_priorities_reach_the_engine() -> None:
    settings = replace(SETTINGS, scheduling_policy="priority", enable_prefix_caching=False, max_num_seqs=1)
    arriving = arrivals([(0.0, 10, 5, 1), (0.001, 10, 5, 1), (0.002, 10, 5, 0)])
    kinds = classes((0, 0, 0, 0.0), (5, 0, 0, 0.0))
    ran = run(arriving, surrogate(settings), source=source(settings, by_priority=True), classes=kinds)
    first = ran.requests["first_token_at_s"]
    assert first[2] < first[1]


class Steps:
    """An autoscaler that wants what it is told, one number a tick, and then the last one."""

    def __init__(self, *desired: int) -> None:
        self.left = list(desired)
        self.desired = desired[0]

    def decide(self, view: Any) -> "Steps":
        self.desired = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return self


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize("drain_timeout_s", [0.05, 100.0])
def test_draining_is_as_with_surrogates(requeue: bool, drain_timeout_s: float) -> None:
    arriving, segments = workload(3, num=80)
    options: dict[str, Any] = {
        "segments": segments,
        "max_replicas": 3,
        "interval_s": 0.25,
        "stages": lambda: [("ready_at_s", 0.5)],
        "drain_timeout_s": drain_timeout_s,
        "requeue_on_timeout": requeue,
        "router": "round_robin",
    }
    simulated = run(arriving, surrogate(SETTINGS), autoscaler=Steps(2, 3, 1, 2, 1), **options)
    live = run(arriving, surrogate(SETTINGS), autoscaler=Steps(2, 3, 1, 2, 1), source=source(SETTINGS), **options)
    compared(live, simulated)
    assert [m.reason for m in live.simulation.machines] == [m.reason for m in simulated.simulation.machines]
    if drain_timeout_s < 1:
        assert sum(m.num_evicted for m in live.simulation.machines) > 0


@pytest.mark.parametrize("requeue", [True, False])
def test_failing_is_as_with_surrogates_and_ends_the_engine(requeue: bool) -> None:
    arriving, segments = workload(3, num=80)
    started: list[NaiveEngine] = []

    def start() -> NaiveEngine:
        started.append(NaiveEngine(SETTINGS, per_token))
        return started[-1]

    def lives() -> dict[str, Any]:
        rng = np.random.default_rng(7)
        return {"time_to_failure_s": lambda: float(rng.exponential(0.4)), "requeue_on_failure": requeue}

    options: dict[str, Any] = {"segments": segments, "replicas": 2, "interval_s": 0.1, "stages": lambda: [("ready_at_s", 0.1)]}
    simulated = run(arriving, surrogate(SETTINGS), **options, **lives())
    live = run(arriving, surrogate(SETTINGS), source=EngineSource(start), **options, **lives())
    compared(live, simulated)
    failed = [machine for machine in live.simulation.machines if machine.reason == "failed"]
    assert sum(machine.num_evicted for machine in failed) > 0
    assert len(started) == len(live.simulation.machines) > 2
    assert all(one.is_shut_down for one in started)


def test_a_cold_start_really_starts_an_engine_and_lasts_as_long_as_that_took() -> None:
    started: list[NaiveEngine] = []

    def start() -> NaiveEngine:
        started.append(NaiveEngine(SETTINGS, per_token))
        return started[-1]

    live = EngineSource(start)

    def stages() -> list[tuple[str, float]]:
        return live.stages([("provisioned_at_s", 7.0), ("weights_loaded_at_s", 99.0), ("ready_at_s", 99.0)])

    arriving = arrivals([(0.1 * k, 10, 5) for k in range(300)])
    ran = run(arriving, surrogate(SETTINGS), source=live, stages=stages, autoscaler=Steps(1, 2), max_replicas=2, interval_s=5.0)
    second = ran.simulation.machines[1]
    assert len(started) == 2
    assert all(one.is_shut_down for one in started)
    assert second.ready_at_s == pytest.approx(second.requested_at_s + 7.0 + 3.0 + 5.0)
    assert (ran.requests["machine"] == 1).any()


def test_a_given_lifecycle_stands_when_the_start_is_not_measured() -> None:
    given = [("provisioned_at_s", 7.0), ("ready_at_s", 99.0)]
    assert source(SETTINGS, is_measured=False).stages(given) == given


def test_an_engine_that_fails_ends_the_run_and_keeps_what_it_did() -> None:
    arriving, segments = workload(5)
    failing = EngineSource(lambda: NaiveEngine(SETTINGS, per_token, fails_at_step=30))
    ran = run(arriving, surrogate(SETTINGS), source=failing, segments=segments)
    assert ran.simulation.failure == "vLLM failed in a step: OutOfMemoryError: CUDA out of memory"
    assert ran.simulation.is_cut_short
    status = ran.requests["status"]
    assert 0 < (status == FINISHED).sum() < len(ran.requests) < len(arriving)
    assert (status == IN_FLIGHT).any()
    assert ran.requests["arrived_at_s"].max() <= ran.ended_at_s


def test_a_conversation_hits_the_answers_that_the_engine_gave() -> None:
    """The second turn's prompt is the first's prompt and answer: all its full blocks but the one of its last token."""
    arriving = arrivals([(0.0, 16, 8), (5.0, 30, 4)])
    conversation = [[(77, 24)], [(77, 34)]]
    live = run(arriving, surrogate(SETTINGS), source=source(SETTINGS), segments=conversation)
    simulated = run(arriving, surrogate(SETTINGS), segments=conversation)
    assert live.requests["num_cached_tokens"].tolist() == simulated.requests["num_cached_tokens"].tolist() == [0, 20]
