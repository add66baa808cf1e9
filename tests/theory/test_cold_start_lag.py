"""On a rising load reaction is exactly one cold start behind; a forecast that far ahead is never behind.

The theorem of row T36 of docs/textbook.md.

Time goes in steps of one interval. Replicas become ready at the start of a step, then the autoscaler decides; what it
asks for is ready `cold_start` steps later. The load of a step is one number, and every replica serves PER_REPLICA of it.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest

from autoscalers import Autoscaler, Forecast, QueueTarget
from sim.views import PoolView

INTERVAL_S = 60.0
PER_REPLICA = 5.0
UNDAMPED: dict[str, Any] = {
    "interval_s": INTERVAL_S,
    "rate_window_s": INTERVAL_S,
    "target_utilization": 1.0,
    "max_replicas": None,
    "scale_down_tolerance": 0.0,
    "scale_down_stabilization_s": 0.0,
}
COLD_STARTS = [0, 1, 3, 10]  # steps

Load = Callable[[int], float]


def ramp(step: int) -> float:
    """5 requests/s more in every step, from 10 up to 200."""
    return min(10.0 + 5.0 * step, 200.0)


def day(step: int) -> float:
    """40 to 200 requests/s, lowest at step 0, over 1,440 steps of a minute."""
    return 120.0 - 80.0 * math.cos(2 * math.pi * step / 1440)


def needed(load: Load, step: int) -> int:
    return math.ceil(load(step) / PER_REPLICA * (1 - 1e-12))


def ready_replicas(scaler: Autoscaler, load: Load, cold_start: int, num_steps: int) -> list[int]:
    """What is ready in each step. Scaling down takes effect at once, starting replicas first."""
    controller = scaler.start(lambda start_s, end_s: load(round(start_s / INTERVAL_S)), seed=1)
    num_ready, starting, num_arrived, history = 0, list[int](), 0, []
    for step in range(num_steps):
        num_ready += starting.count(step)
        starting = [at for at in starting if at > step]
        tokens = round(load(step) * 1000)  # in flight, by Little's law: one second of 1,000 tokens a request
        view = PoolView(
            step * INTERVAL_S,
            num_ready,
            len(starting),
            0,
            0,
            0,
            0,
            tokens,
            num_arrived,
            0.0,
            cold_start * INTERVAL_S,
            PER_REPLICA,
            PER_REPLICA * 1000,
        )
        change = controller.decide(view).desired - num_ready - len(starting)
        if step == 0 or cold_start == 0:
            num_ready += change  # the fleet starts warm
        elif change >= 0:
            starting += [step + cold_start] * change
        else:
            num_ready -= max(0, -change - len(starting))
            starting = starting[: max(0, len(starting) + change)]
        num_arrived += round(load(step) * INTERVAL_S)
        history.append(num_ready)
    return history


def short_steps(ready: list[int], load: Load) -> list[int]:
    return [step for step, n in enumerate(ready) if n * PER_REPLICA < load(step) * (1 - 1e-12)]


@pytest.mark.parametrize("cold_start", COLD_STARTS)
def test_reaction_is_exactly_one_cold_start_behind_a_ramp(cold_start: int) -> None:
    fields = {name: value for name, value in UNDAMPED.items() if name != "rate_window_s"}
    scaler = QueueTarget(**fields, warm_buffer=0)
    ready = ready_replicas(scaler, ramp, cold_start, num_steps=80)
    assert ready == [needed(ramp, max(0, step - cold_start)) for step in range(80)]
    rising = 38  # steps 1 to 38; every one needs one replica more
    assert short_steps(ready, ramp) == (list(range(1, rising + cold_start)) if cold_start else [])


@pytest.mark.parametrize("cold_start", COLD_STARTS)
def test_after_a_single_rise_reaction_is_short_for_one_cold_start(cold_start: int) -> None:
    def rise(step: int) -> float:
        return 10.0 if step < 20 else 15.0

    fields = {name: value for name, value in UNDAMPED.items() if name != "rate_window_s"}
    ready = ready_replicas(QueueTarget(**fields, warm_buffer=0), rise, cold_start, num_steps=60)
    assert len(short_steps(ready, rise)) == cold_start


@pytest.mark.parametrize("load", [ramp, day])
@pytest.mark.parametrize("cold_start", COLD_STARTS)
def test_forecast_one_cold_start_ahead_is_never_behind(cold_start: int, load: Load) -> None:
    ready = ready_replicas(Forecast(**UNDAMPED, forecaster="oracle"), load, cold_start, num_steps=1440)
    assert short_steps(ready, load) == []


@pytest.mark.parametrize("cold_start", COLD_STARTS)
def test_forecast_holds_no_more_than_the_highest_need_within_its_horizon(cold_start: int) -> None:
    ready = ready_replicas(Forecast(**UNDAMPED, forecaster="oracle"), day, cold_start, num_steps=1440)
    for step, number in enumerate(ready):
        assert number <= max(needed(day, step + ahead) for ahead in range(cold_start + 1))


def test_forecast_one_step_short_of_the_cold_start_is_behind() -> None:
    """The horizon's teeth: one interval less, and every rising step is short."""
    short = Forecast(**UNDAMPED, forecaster="oracle", horizon_s=10 * INTERVAL_S)
    ready = ready_replicas(short, ramp, cold_start=10, num_steps=80)
    assert short_steps(ready, ramp) == list(range(10, 39))


@pytest.mark.parametrize("cold_start", COLD_STARTS)
def test_naive_forecast_is_one_cold_start_and_one_measured_interval_behind(cold_start: int) -> None:
    scaler = Forecast(**UNDAMPED, forecaster="naive", initial_replicas=2)
    ready = ready_replicas(scaler, ramp, cold_start, num_steps=80)
    assert ready[cold_start + 1 :] == [needed(ramp, step - cold_start - 1) for step in range(cold_start + 1, 80)]


@pytest.mark.parametrize("num_rising", [1, 38])
@pytest.mark.parametrize("window", [1, 2, 5, 30, 120])
@pytest.mark.parametrize("cold_start", [1, 3, 10])
def test_seasonal_naive_is_in_time_for_a_rise_however_long_its_rate_window_is(
    cold_start: int, window: int, num_rising: int
) -> None:
    """A rise at the same hour of two days, slow or sudden: on the second, each replica is there by the step that needs it.

    A mean over a window that begins now and is longer than the cold start would still be half of the quiet before it.
    """

    def rises(step: int) -> float:
        return 10.0 + 190.0 * min(max(step % 1440 - 600, 0), num_rising) / num_rising

    scaler = Forecast(**(UNDAMPED | {"rate_window_s": window * INTERVAL_S}), forecaster="seasonal_naive")
    ready = ready_replicas(scaler, rises, cold_start, num_steps=1440 + 1000)
    short = short_steps(ready, rises)
    assert short
    assert all(step < 1440 for step in short)
    assert ready[1440 + 400] == needed(rises, 400)  # and none is there hours too early


def test_seasonal_naive_is_never_behind_on_the_second_of_two_equal_days() -> None:
    def two_days(step: int) -> float:
        return round(day(step) * INTERVAL_S) / INTERVAL_S  # whole requests, so that what it measures is the load

    ready = ready_replicas(Forecast(**UNDAMPED, forecaster="seasonal_naive"), two_days, 10, num_steps=2880)
    short = short_steps(ready, two_days)
    assert any(step < 1440 for step in short)  # the first day it can only react
    assert not any(step >= 1440 + 10 for step in short)
