"""`forecast` and its forecasters, by hand."""

import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from autoscalers import FORECASTERS, Forecast
from autoscalers.arrivals import Arrivals
from autoscalers.controller import Decision
from tests.pools import view


def nobody_knows(start_s: float, end_s: float) -> float:
    raise AssertionError("the future was looked at")


def decisions(
    autoscaler: Forecast,
    counts: Iterable[int],
    known_rate: Callable[[float, float], float] = nobody_knows,
    **seen: Any,
) -> list[Decision]:
    """Decisions at every interval, `counts` being the requests that have arrived by then."""
    controller = autoscaler.start(known_rate, seed=1)
    interval_s = autoscaler.interval_s
    return [controller.decide(view(i * interval_s, num_arrived=n, **seen)) for i, n in enumerate(counts)]


def forecast(**changes: Any) -> Forecast:
    plain: dict[str, Any] = {
        "forecaster": "naive",
        "interval_s": 10.0,
        "rate_window_s": 10.0,
        "target_utilization": 1.0,
        "scale_down_tolerance": 0.0,
        "scale_down_stabilization_s": 0.0,
        "min_replicas": 0,
    }
    return Forecast(**(plain | changes))


def cumulated(rates: Iterable[float], interval_s: float) -> list[int]:
    counts = [0]
    for rate in rates:
        counts.append(counts[-1] + round(rate * interval_s))
    return counts


def wanted(decided: list[Decision]) -> list[int]:
    return [decision.desired for decision in decided]


# --- naive ------------------------------------------------------------------------------------------------------


def test_naive_follows_the_rate_of_the_last_window() -> None:
    assert wanted(decisions(forecast(), cumulated([5, 20, 12, 0], 10.0))) == [0, 1, 4, 3, 0]


def test_naive_averages_over_its_window() -> None:
    # 30 s windows over 5, 20, 20, 20 requests/s: 5, 12.5, 15, 20
    assert wanted(decisions(forecast(rate_window_s=30.0), cumulated([5, 20, 20, 20], 10.0))) == [0, 1, 3, 3, 4]


def test_target_utilization_leaves_headroom() -> None:
    # 15 requests/s on replicas of 5 are three when they are full
    assert wanted(decisions(forecast(target_utilization=0.8), cumulated([15], 10.0)))[-1] == 4


def test_demand_is_arrivals_not_completions() -> None:
    # one replica completes 4.5 of the 8 requests/s offered
    assert wanted(decisions(forecast(replica_requests_per_s=4.5), cumulated([8] * 5, 10.0)))[1:] == [2] * 5


def test_backlog_is_cleared_when_asked_for() -> None:
    # 8 requests/s and 300 waiting, to be served within 60 s: 13 requests/s
    scaler = forecast(replica_requests_per_s=4.5, clear_backlog_s=60.0)
    assert wanted(decisions(scaler, cumulated([8], 10.0), num_waiting=300))[-1] == 3


def test_queue_of_a_cold_start_is_not_read_as_a_forecasts_error() -> None:
    scaler = forecast(clear_backlog_s=60.0)
    assert wanted(decisions(scaler, cumulated([10], 10.0), num_waiting=10_000, num_starting=3))[-1] == 2


def test_idle_hours_before_the_traffic_are_no_data() -> None:
    idle, busy = [0] * 360, [10] * 2
    assert wanted(decisions(forecast(rate_window_s=3600.0), cumulated(idle + busy, 10.0)))[-2:] == [2, 2]


def test_a_quiet_hour_after_traffic_is_data() -> None:
    assert wanted(decisions(forecast(), cumulated([10, 0, 0], 10.0))) == [0, 2, 0, 0]


def test_before_any_traffic_the_pool_is_at_its_floor() -> None:
    decided = decisions(forecast(min_replicas=2), [0, 0])
    assert wanted(decided) == [2, 2]
    assert "no traffic seen yet" in decided[0].reason


def test_two_looks_at_one_instant_are_one() -> None:
    seen = Arrivals(memory_s=100.0)
    for now_s, num_arrived in [(0.0, 0), (0.0, 0), (10.0, 5), (10.0, 20)]:
        seen.observe(now_s, num_arrived)
    assert seen.rate_per_s(0.0, 10.0) == 2.0


def test_a_rate_is_that_of_the_part_of_a_span_that_is_remembered() -> None:
    """10 requests in the first 10 s and 30 in the next; nothing is known from before 0 or after 20."""
    seen = Arrivals(memory_s=100.0)
    for now_s, num_arrived in [(0.0, 0), (10.0, 10), (20.0, 40)]:
        seen.observe(now_s, num_arrived)
    assert seen.rate_per_s(-10.0, 10.0) == 1.0
    assert seen.rate_per_s(0.0, 40.0) == 2.0
    assert seen.rate_per_s(-20.0, -10.0) == seen.rate_per_s(20.0, 30.0) == 0.0


def test_memory_of_arrivals_is_bounded() -> None:
    seen = Arrivals(memory_s=100.0)
    for i in range(10_000):
        seen.observe(10.0 * i, i)
    assert seen.last_s - seen.first_s == 100.0


# --- seasonal_naive ---------------------------------------------------------------------------------------------

DAY = [10, 10, 40, 40, 20, 10]  # requests/s in intervals of 10 s: a "day" of 60 s


def seasonal(num_seasons: int = 1, **changes: Any) -> Forecast:
    return forecast(forecaster={"kind": "seasonal_naive", "num_seasons": num_seasons}, season_s=60.0, **changes)


def test_seasonal_naive_is_naive_until_a_season_has_been_seen_and_says_so() -> None:
    days = decisions(seasonal(), cumulated(DAY * 2, 10.0), cold_start_s=10.0)
    same = decisions(forecast(), cumulated(DAY * 2, 10.0), cold_start_s=10.0)
    assert wanted(days)[:6] == wanted(same)[:6]
    assert all("no full season seen yet" in d.reason for d in days[:6])
    assert not any("no full season seen yet" in d.reason for d in days[6:])


def test_seasonal_naive_asks_for_yesterdays_peak_one_cold_start_ahead() -> None:
    # Ticks at 60, 70, ... s look 20 s ahead (cold start + interval): the highest of this interval, the next one, and
    # the last one seen, which keeps 8 at 100 s.
    decided = wanted(decisions(seasonal(), cumulated(DAY * 2, 10.0), cold_start_s=10.0))
    assert decided[6:12] == [2, 8, 8, 8, 8, 4]


def test_seasonal_naive_meets_a_busier_day_as_naive_would() -> None:
    twice = [2 * rate for rate in DAY]
    decided = decisions(seasonal(), cumulated(DAY + twice, 10.0), cold_start_s=10.0)
    assert wanted(decided)[9:11] == [16, 16]  # 80 requests/s seen, 40 a day ago
    assert "busier than past seasons" in decided[9].reason


def test_seasonal_naive_averages_past_seasons() -> None:
    days = [20] * 6 + [40] * 6 + [10] * 6
    decided = decisions(seasonal(num_seasons=2), cumulated(days, 10.0))
    assert wanted(decided)[-3] == 6  # mean of 20 and 40 over 5
    assert "seasonal_naive over 2" in decided[-3].reason


def test_a_horizon_shorter_than_an_interval_begins_now() -> None:
    """At 80 s, with 5 s to look ahead: yesterday's rate from 20 s on was 40, and 10 up to then."""
    decided = wanted(decisions(seasonal(horizon_s=5.0), cumulated(DAY * 2, 10.0)))
    assert decided[8] == 8


def test_windows_cover_all_of_the_time_until_what_is_asked_for_is_ready() -> None:
    """At 70 s it is ready 15 s on: windows of 10 s from 70, 80 and 85 s; yesterday's only peak is in the second."""
    day = [10, 10, 40, 10, 10, 10]
    decided = wanted(decisions(seasonal(), cumulated(day * 2, 10.0), cold_start_s=15.0))
    assert decided[7] == 8


def test_past_rates_are_means_over_the_window_not_the_interval() -> None:
    """At 60 s, windows of 20 s: yesterday's from 10 s on held 10 and 40 requests/s."""
    day = [10, 10, 40, 10, 10, 10]
    decided = wanted(decisions(seasonal(rate_window_s=20.0), cumulated(day * 2, 10.0), cold_start_s=10.0))
    assert decided[6] == 5


def test_horizon_longer_than_a_season_is_refused() -> None:
    assert seasonal(horizon_s=60.0).horizon_s == 60.0
    with pytest.raises(ValidationError, match="horizon_s 100 looks further ahead than season_s 60"):
        seasonal(horizon_s=100.0)


# --- oracle -----------------------------------------------------------------------------------------------------


def test_oracle_sizes_for_the_highest_rate_within_a_cold_start_and_an_interval() -> None:
    def known_rate(start_s: float, end_s: float) -> float:
        assert end_s - start_s == 10.0
        return 50.0 if start_s == 80.0 else 5.0

    # looks 70 s ahead, so the interval [80, 90] is first seen from 20 s, last at 80 s
    decided = wanted(decisions(forecast(forecaster="oracle"), [0] * 12, known_rate))
    assert decided == [1, 1] + [10] * 7 + [1] * 3


def test_oracle_looks_at_an_interval_that_the_horizon_only_touches() -> None:
    decided = decisions(forecast(forecaster="oracle", horizon_s=25.0), [0], lambda start_s, end_s: start_s)
    assert wanted(decided) == [4]  # [20, 30] holds 20 requests/s


def test_oracle_asks_for_each_interval_once() -> None:
    asked: list[float] = []

    def known_rate(start_s: float, end_s: float) -> float:
        asked.append(start_s)
        return 5.0

    decisions(forecast(forecaster="oracle"), [0] * 100, known_rate)
    assert asked == [10.0 * k for k in range(106)]


def test_given_horizon_replaces_the_cold_start() -> None:
    def known_rate(start_s: float, end_s: float) -> float:
        return start_s

    assert wanted(decisions(forecast(forecaster="oracle", horizon_s=30.0), [0], known_rate)) == [4]  # 20 / 5


def test_negative_forecast_is_no_negative_demand() -> None:
    falling = [100, 80, 60, 40, 20, 10, 0, 0, -10, -20]
    scaler = forecast(forecaster="oracle", horizon_s=10.0)
    decided = decisions(scaler, [0] * 10, lambda start_s, end_s: falling[round(start_s / 10)])
    assert wanted(decided) == [20, 16, 12, 8, 4, 2, 0, 0, 0, 0]
    assert [d.wanted for d in decided] == wanted(decided)


def test_infinite_forecast_is_dropped_and_told() -> None:
    rates = [10, math.inf, 10, 10]
    scaler = forecast(forecaster="oracle", horizon_s=20.0)
    decided = decisions(scaler, [0] * 2, lambda start_s, end_s: rates[round(start_s / 10)])
    assert wanted(decided) == [2, 2]
    assert "dropped 1 that is no number" in decided[0].reason


def test_nothing_but_infinite_holds_the_pool() -> None:
    rates = [10, math.inf, 15]
    scaler = forecast(forecaster="oracle", horizon_s=10.0)
    decided = decisions(scaler, [0] * 3, lambda start_s, end_s: rates[round(start_s / 10)])
    assert wanted(decided) == [2, 2, 3]


def test_only_the_oracle_is_told_the_future() -> None:
    assert [name for name in FORECASTERS if forecast(forecaster=name).is_oracle] == ["oracle"]
    for name in ("naive", "seasonal_naive"):
        decisions(forecast(forecaster=name), cumulated([5] * 20, 10.0), nobody_knows)


def test_pool_without_a_capacity_figure_is_an_error() -> None:
    with pytest.raises(ValueError, match="capacity must be a positive number"):
        decisions(forecast(), cumulated([5], 10.0), replica_requests_per_s=0.0)


# --- one's own --------------------------------------------------------------------------------------------------

HOLT_WINTERS = """
from pydantic import Field
from autoscalers.forecaster import Forecaster, Peak, highest

class HoltWinters(Forecaster):
    level_share: float = Field(default=0.5, gt=0, le=1, description="Weight of the newest rate in the level.")
    trend_share: float = Field(default=0.3, ge=0, le=1, description="Weight of the newest change in the trend.")

    def start(self, outlook):
        level, trend = None, 0.0

        def peak(arrivals, now_s, end_s):
            nonlocal level, trend
            if arrivals.is_empty:
                return Peak(0.0, "no traffic seen yet")
            before, rate = level, arrivals.rate_per_s(now_s - outlook.window_s, now_s)
            level = rate if before is None else self.level_share * rate + (1 - self.level_share) * (before + trend)
            trend += 0 if before is None else self.trend_share * (level - before - trend)
            ahead = (end_s - now_s) / outlook.interval_s
            return highest([level, level + ahead * trend], "holt_winters")

        return peak
"""


@pytest.fixture
def own_forecaster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_forecasts.py").write_text(HOLT_WINTERS)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_forecasts:HoltWinters"
    sys.modules.pop("my_forecasts", None)


def test_a_forecaster_of_ones_own_is_one_file(own_forecaster: str) -> None:
    """Rates 10, 20, 30, 40 a second, all of the newest in level and trend: 20 s ahead there will be 60, and 5 a replica."""
    options = {"kind": own_forecaster, "level_share": 1.0, "trend_share": 1.0}
    decided = decisions(forecast(forecaster=options), cumulated([10, 20, 30, 40], 10.0), cold_start_s=10.0)
    assert wanted(decided)[-1] == 12
    assert "holt_winters" in decided[-1].reason


def test_options_of_a_forecaster_of_ones_own_are_checked_by_name(own_forecaster: str) -> None:
    with pytest.raises(ValidationError, match="level_share"):
        forecast(forecaster={"kind": own_forecaster, "level_share": 2.0})
    with pytest.raises(ValidationError, match=r"no forecaster named 'my_forecasts:HoltWinters'.*kind: package\.module:name"):
        forecast(forecaster=own_forecaster)
