"""Rates, their integrals, and the inverse of those."""

import numpy as np
import pytest

from traces.rates import DAY_S, Daily, Flat, Pulse, Rate, Scaled, Sum
from traces.rescaling import Rescaling
from traces.shapes import SHAPES

HOUR_S = 3600.0


def daily(shape: str, trough_per_s: float = 40.0) -> Daily:
    return Daily(200.0, trough_per_s, 14 * HOUR_S, SHAPES[shape])


RATES: dict[str, Rate] = {
    "flat": Flat(3.0),
    "cosine": daily("cosine"),
    "triangle": daily("triangle"),
    "square": daily("square"),
    "dead trough": daily("cosine", trough_per_s=0.0),
    "dead night": daily("square", trough_per_s=0.0),
    "pulse": Pulse(1000.0, 50.0, 600.0),
    "weekend off": Scaled(daily("cosine"), np.array([1.0, 0.0, 1.0]), DAY_S),
    "noise": Scaled(daily("cosine"), np.linspace(0.2, 3.0, 577), 300.0),
    "needle": Sum([daily("cosine"), Pulse(40_000.0, 1e5, 0.01)]),
}


@pytest.mark.parametrize("name", RATES)
def test_expected_count_is_the_integral_of_the_rate(name: str) -> None:
    rate = RATES[name]
    edges_s = np.unique(np.concatenate([np.linspace(0, 2 * DAY_S, 20_001), rate.breaks_s(2 * DAY_S)]))
    edges_s = edges_s[(edges_s >= 0) & (edges_s <= 2 * DAY_S)]
    # Gauss's rule with three points on each piece; no piece straddles a jump.
    points, weights = np.polynomial.legendre.leggauss(3)
    halves_s = np.diff(edges_s) / 2
    inside_s = (edges_s[1:] + edges_s[:-1])[:, None] / 2 + halves_s[:, None] * points
    by_sum = np.cumsum(halves_s * (rate.per_s(inside_s.ravel()).reshape(-1, 3) @ weights))
    np.testing.assert_allclose(rate.expected(edges_s)[1:], by_sum, rtol=1e-6, atol=1e-3)
    assert rate.expected(np.zeros(1))[0] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_day_touches_peak_and_trough_and_has_the_mean_half_way(shape: str) -> None:
    rate = daily(shape)
    at_s = HOUR_S * np.array([14.0, 2.0])
    np.testing.assert_allclose(rate.per_s(at_s), [200.0, 40.0])
    assert rate.expected(np.array([DAY_S]))[0] / DAY_S == pytest.approx(
        120.0
    )  # docs/textbook.md, T22: load 200 by day, a fifth by night


def test_pulse_holds_half_its_box() -> None:
    pulse = Pulse(at_s=500.0, height_per_s=30.0, width_s=100.0)
    assert pulse.per_s(np.array([449.0, 475.0, 500.0, 551.0])) == pytest.approx([0.0, 15.0, 30.0, 0.0])
    assert pulse.expected(np.array([1000.0]))[0] == pytest.approx(30.0 * 100.0 / 2)


def test_pulse_that_begins_before_time_0_counts_from_0() -> None:
    pulse = Pulse(at_s=0.0, height_per_s=30.0, width_s=100.0)
    assert pulse.expected(np.array([0.0, 1000.0])) == pytest.approx([0.0, 30.0 * 100.0 / 4])


@pytest.mark.parametrize("name", RATES)
def test_instants_have_the_expected_count_of_their_tick_to_float_precision(name: str) -> None:
    rate = RATES[name]
    rescaling = Rescaling(rate, 2 * DAY_S)
    ticks = np.sort(np.random.default_rng(1).random(20_000)) * rescaling.total
    at_s = rescaling.instants(ticks)
    assert ((at_s >= 0) & (at_s < 2 * DAY_S)).all()
    resolution = 1e-15 * (rescaling.total + 1e5 * 2 * DAY_S if name == "needle" else rescaling.total + 200 * 2 * DAY_S)
    assert np.abs(rate.expected(at_s) - ticks).max() <= resolution


def test_no_arrival_in_a_night_without_traffic() -> None:
    at_s = Rescaling(daily("square", trough_per_s=0.0), 2 * DAY_S).instants(np.arange(0.0, 1000.0))
    hours = at_s / HOUR_S % 24
    assert ((hours >= 8 - 1e-9) & (hours < 20)).all()
    assert at_s[0] == pytest.approx(8 * HOUR_S)  # the first tick, at 0, waits for the first traffic


# Edges: each instant belongs to the interval that it begins


def test_a_factor_holds_from_its_own_instant_on_and_the_last_for_ever() -> None:
    rate = Scaled(Flat(2.0), np.array([1.0, 5.0, 0.0]), 10.0)
    before = np.nextafter(10.0, 0.0)
    assert rate.per_s(np.array([0.0, before, 10.0, 19.9, 20.0, 1e6])).tolist() == [2.0, 2.0, 10.0, 10.0, 0.0, 0.0]
    assert rate.expected(np.array([0.0, 10.0, 15.0, 20.0, 1e6])).tolist() == [0.0, 20.0, 70.0, 120.0, 120.0]


def test_a_square_day_is_at_its_peak_from_six_hours_before_to_six_hours_after() -> None:
    rate = daily("square")
    at_s = HOUR_S * np.array([8.0, 20.0, 32.0, 44.0])
    assert rate.per_s(at_s).tolist() == [200.0, 40.0, 200.0, 40.0]
    assert rate.per_s(np.nextafter(at_s, 0.0) - 1e-6).tolist() == [40.0, 200.0, 40.0, 200.0]


def test_a_tick_at_which_the_count_rests_is_the_end_of_the_rest() -> None:
    rate = Scaled(Flat(1.0), np.array([1.0, 0.0, 1.0]), 10.0)
    at_s = Rescaling(rate, 30.0).instants(np.array([5.0, np.nextafter(10.0, 0.0), 10.0 + 1e-9, 15.0]))
    assert at_s == pytest.approx([5.0, 10.0, 20.0, 25.0], abs=1e-6)
