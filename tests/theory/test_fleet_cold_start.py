"""Row T36 of docs/textbook.md through the whole fleet: SimPy's clock, machines that start, requests, autoscalers we ship.

Demand climbs by one replica's worth in each interval. A replica stands for PER_REPLICA requests/s; its engine would take
more, so that no backlog blurs what the policy sees, except in the last test. At tick k demand is (k + 2.25) replicas'
worth and its mean over the interval that begins there (k + 2.75), so k + 3 are needed, by the one and by the other.
"""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from autoscalers import Autoscaler, Forecast, QueueTarget
from experiments.contracts.fleets import Ran, arrivals, engine, run

INTERVAL_S = 60.0
PER_REPLICA = 4.0  # requests/s
NUM_RISING, NUM_STEPS = 16, 30  # intervals: of the climb, and with the plateau after it
STEP_S, PROMPT_TOKENS, OUTPUT_TOKENS = 0.02, 10_000, 100  # 2 s in the engine; its answer adds 0.5 % to the prompt's tokens
COLD_STARTS = [1, 2, 5]  # intervals
UNDAMPED: dict[str, Any] = {
    "interval_s": INTERVAL_S,
    "target_utilization": 1.0,
    "max_replicas": 40,
    "scale_down_tolerance": 0.0,
    "scale_down_stabilization_s": 0.0,
}
REACTIVE = QueueTarget(**UNDAMPED, warm_buffer=0, initial_replicas=3)
ORACLE = Forecast(**UNDAMPED, rate_window_s=INTERVAL_S, forecaster="oracle")
NAIVE = Forecast(**UNDAMPED, rate_window_s=INTERVAL_S, forecaster="naive", initial_replicas=3)


def demand_per_s(at_s: Any) -> Any:
    return PER_REPLICA * (2.25 + np.minimum(at_s / INTERVAL_S, NUM_RISING))


def expected_arrivals(at_s: Any) -> Any:
    """The integral of the demand."""
    rising_s = np.minimum(at_s, NUM_RISING * INTERVAL_S)
    return PER_REPLICA * (2.25 * rising_s + rising_s**2 / 2 / INTERVAL_S) + (at_s - rising_s) * demand_per_s(at_s)


def mean_rate_per_s(start_s: float, end_s: float) -> float:
    return float(expected_arrivals(end_s) - expected_arrivals(start_s)) / (end_s - start_s)


@cache
def ramp(output_tokens: int = OUTPUT_TOKENS) -> Any:
    """Evenly spaced arrivals, without any chance in them."""
    grid_s = np.linspace(0.0, NUM_STEPS * INTERVAL_S, 100_001)
    counts = expected_arrivals(grid_s)
    at_s = np.interp(np.arange(0.5, counts[-1]), counts, grid_s)
    return arrivals([(one_s, PROMPT_TOKENS, output_tokens) for one_s in at_s.tolist()])


def needed(step: int) -> int:
    """Replicas whose joint capacity is the mean demand of an interval, or more."""
    return math.ceil(mean_rate_per_s(step * INTERVAL_S, (step + 1) * INTERVAL_S) / PER_REPLICA)


def simulated(scaler: Autoscaler, cold_start: int, arriving: Any, engines: Any) -> Ran:
    in_flight_s = OUTPUT_TOKENS * STEP_S
    return run(
        arriving,
        engines,
        max_replicas=40,
        router="round_robin",
        autoscaler=scaler.start(mean_rate_per_s, seed=1),
        interval_s=INTERVAL_S,
        stages=lambda: [("provisioned_at_s", INTERVAL_S / 2), ("ready_at_s", (cold_start - 0.5) * INTERVAL_S)],
        cold_start_s=cold_start * INTERVAL_S,
        replica_requests_per_s=PER_REPLICA,
        replica_tokens=PER_REPLICA * in_flight_s * (PROMPT_TOKENS + OUTPUT_TOKENS / 2),
        timeline_interval_s=INTERVAL_S / 2,
        chunk=10_000,
    )


def ready_in_each_step(ran: Ran) -> list[int]:
    """Replicas ready in the middle of every interval."""
    middles = [row for row in ran.intervals if row["end_s"] % INTERVAL_S == INTERVAL_S / 2]
    return [row["num_ready"] for row in middles][:NUM_STEPS]


def short_steps(ready: list[int]) -> list[int]:
    return [step for step, num_ready in enumerate(ready) if num_ready < needed(step)]


@pytest.fixture(scope="module")
def roomy() -> Any:
    return engine(overhead_s=STEP_S, max_num_seqs=100_000, max_num_batched_tokens=10**8, num_usable_blocks=10**7)


def test_the_ramp_needs_one_replica_more_in_each_interval() -> None:
    assert [needed(step) for step in range(NUM_STEPS)] == [min(step, NUM_RISING) + 3 for step in range(NUM_STEPS)]
    rate_per_s = np.histogram(ramp()["arrived_at_s"], bins=np.arange(NUM_STEPS + 1) * INTERVAL_S)[0] / INTERVAL_S
    expected = [mean_rate_per_s(step * INTERVAL_S, (step + 1) * INTERVAL_S) for step in range(NUM_STEPS)]
    assert rate_per_s.tolist() == pytest.approx(expected, abs=1 / INTERVAL_S)


@pytest.mark.parametrize("cold_start", COLD_STARTS)
def test_a_reactive_fleet_is_exactly_one_cold_start_behind_the_ramp(cold_start: int, roomy: Any) -> None:
    ready = ready_in_each_step(simulated(REACTIVE, cold_start, ramp(), roomy))
    assert ready == [needed(max(0, step - cold_start)) for step in range(NUM_STEPS)]
    assert short_steps(ready) == list(range(1, NUM_RISING + cold_start))


@pytest.mark.parametrize("cold_start", COLD_STARTS)
def test_a_forecast_one_cold_start_ahead_is_never_behind_nor_early(cold_start: int, roomy: Any) -> None:
    ready = ready_in_each_step(simulated(ORACLE, cold_start, ramp(), roomy))
    assert short_steps(ready) == []
    # What the fleet starts with covers the first horizon; from then on each replica comes in the interval that needs it.
    assert ready == [needed(max(step, cold_start)) for step in range(NUM_STEPS)]


def test_a_forecast_one_interval_short_of_that_is_behind_all_the_way_up(roomy: Any) -> None:
    short = Forecast(**UNDAMPED, rate_window_s=INTERVAL_S, forecaster="oracle", horizon_s=5 * INTERVAL_S)
    ready = ready_in_each_step(simulated(short, 5, ramp(), roomy))
    assert short_steps(ready) == list(range(5, NUM_RISING + 1))


@pytest.mark.parametrize("cold_start", COLD_STARTS)
def test_a_naive_forecast_is_one_cold_start_and_one_measured_interval_behind(cold_start: int, roomy: Any) -> None:
    ready = ready_in_each_step(simulated(NAIVE, cold_start, ramp(), roomy))
    assert ready[cold_start + 1 :] == [needed(step - cold_start - 1) for step in range(cold_start + 1, NUM_STEPS)]


def test_the_bill_of_being_early_is_one_replica_for_each_interval_of_the_cold_start(roomy: Any) -> None:
    """Both ask for as many machines in the end; the forecast asks for each one cold start earlier."""
    cold_start = 5
    asked_at = {}
    for name, scaler in (("reactive", REACTIVE), ("forecast", ORACLE)):
        machines = simulated(scaler, cold_start, ramp(), roomy).simulation.machines
        assert len(machines) == needed(NUM_STEPS)
        asked_at[name] = [machine.requested_at_s / INTERVAL_S for machine in machines]
    late = np.array(asked_at["reactive"]) - np.array(asked_at["forecast"])
    assert late[needed(cold_start) :].tolist() == [cold_start] * (needed(NUM_STEPS) - needed(cold_start))


def test_users_of_an_engine_that_is_full_at_its_capacity_wait_for_the_reactive_fleet_and_not_for_the_forecast() -> None:
    """One sequence at a time, 1/PER_REPLICA s each: a replica serves exactly what it stands for, in turn.

    With enough replicas an evenly spaced arrival waits for one request at most, two as the turns shift when a replica
    comes. The reactive fleet sees its own queue; it is behind all the same, by the requests of a cold start's shortage.
    """
    full = engine(max_num_seqs=1, overhead_s=1 / PER_REPLICA, max_num_batched_tokens=10**8, num_usable_blocks=10**7)
    longest_s = {}
    for name, scaler in (("reactive", REACTIVE), ("forecast", ORACLE)):
        requests = simulated(scaler, 5, ramp(output_tokens=1), full).requests
        longest_s[name] = float((requests.scheduled_at_s - requests.arrived_at_s).max())
    assert longest_s["forecast"] <= 2 / PER_REPLICA
    assert longest_s["reactive"] > INTERVAL_S
