"""Generated arrivals against the theory of point processes."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from traces import KINDS, Traffic
from traces.gaps import UnitRenewal
from traces.generated import Generated

LENGTHS = {"prompt": {"kind": "fixed", "tokens": 1}, "output": {"kind": "fixed", "tokens": 1}}
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
CROWD = {"at_s": 30_000.0, "height_per_s": 20.0, "width_s": 1_000.0}


def make(kind: str, **settings: Any) -> Traffic:
    return KINDS[kind](**settings)


def day(**settings: Any) -> Generated:
    traffic = make("diurnal", **{"peak_per_s": 20.0, "trough_per_s": 2.0, "lengths": LENGTHS} | settings)
    assert isinstance(traffic, Generated)
    return traffic


def instants_s(traffic: Generated, seed: int = 1) -> Any:
    return np.concatenate([rows["arrived_at_s"] for rows in traffic.stream(seed).chunks()])


DAYS = {
    "cosine": day(),
    "triangle": day(shape="triangle"),
    "square": day(shape="square", trough_per_s=0.0),
    "crowd": day(flash_crowds=[CROWD]),
    "weekend": day(weekend_factor=0.3, first_weekday="saturday"),
}


@pytest.mark.parametrize("name", DAYS)
@pytest.mark.parametrize("seed", range(3))
def test_counts_per_hour_lie_within_three_over_root_n(name: str, seed: int) -> None:
    traffic = DAYS[name]
    counts = np.bincount((instants_s(traffic, seed) // HOUR_S).astype(int), minlength=24)
    expected = np.array([HOUR_S * traffic.mean_rate_per_s(h * HOUR_S, (h + 1) * HOUR_S) for h in range(24)])
    # 360 hours in all, each beyond three deviations with chance 0.0027: one may be, four may not.
    deviations = np.abs(counts - expected) / np.sqrt(np.maximum(expected, 1))
    assert np.count_nonzero(deviations > 3) <= 1
    assert deviations.max() < 4.5
    assert counts.sum() == pytest.approx(expected.sum(), rel=3 / expected.sum() ** 0.5)


@pytest.mark.parametrize("name", DAYS)
def test_poisson_counts_vary_as_much_as_they_are_large(name: str) -> None:
    traffic = DAYS[name]
    ticks = traffic.rate(None).expected(instants_s(traffic))
    counts = np.bincount((ticks // 10).astype(int))[:-1]  # windows that expect ten each
    index = counts.var(ddof=1) / 10
    assert index == pytest.approx(1.0, abs=4 * (2 / len(counts)) ** 0.5)


@pytest.mark.parametrize("name", DAYS)
def test_rescaled_gaps_are_exponential(name: str) -> None:
    traffic = DAYS[name]
    gaps = np.diff(traffic.rate(None).expected(instants_s(traffic)))
    assert stats.kstest(gaps, "expon").pvalue > 0.001


def test_test_of_rescaled_gaps_notices_a_rate_that_is_constant_within_each_hour() -> None:
    at_s = instants_s(DAYS["cosine"])
    hours = HOUR_S * np.arange(25.0)
    ticks = np.interp(at_s, hours, DAYS["cosine"].rate(None).expected(hours))
    gaps = np.diff(ticks)
    # The first and the last ten minutes of each hour of the climb: a staircase is too high, then too low.
    climbing = (at_s[:-1] > 8 * HOUR_S) & (at_s[:-1] < 13 * HOUR_S)
    early = climbing & (at_s[:-1] % HOUR_S < 600)
    late = climbing & (at_s[:-1] % HOUR_S >= 3000)
    assert stats.kstest(gaps[early], "expon").pvalue < 0.001
    assert stats.kstest(gaps[late], "expon").pvalue < 0.001


@pytest.mark.parametrize("cv", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_gaps_have_mean_one_and_the_cv_asked_for(cv: float) -> None:
    gaps = np.diff(UnitRenewal(cv, np.random.default_rng(11)).ticks(1_000_000))
    assert gaps.mean() == pytest.approx(1.0, abs=4 * cv / 1e3)
    # Fourth central moment of a gamma law of shape k: (3 k^2 + 6 k) / k^4, here with k = 1/cv^2.
    fourth = 3 * cv**4 + 6 * cv**6
    assert gaps.var() == pytest.approx(cv**2, abs=4 * ((fourth - cv**4) / 1e6) ** 0.5)


@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0])
def test_any_unit_of_time_expects_one_arrival_from_the_first_on(cv: float) -> None:
    # An ordinary renewal process, started with a whole gap, would expect (cv^2 - 1)/2 more over a long time.
    counts = np.zeros((4000, 5))
    for i in range(len(counts)):
        ticks = UnitRenewal(cv, np.random.default_rng(i)).ticks(400)
        counts[i] = np.histogram(ticks, bins=np.arange(6.0))[0]
    standard_errors = counts.std(axis=0) / len(counts) ** 0.5
    assert (np.abs(counts.mean(axis=0) - 1) <= 4 * standard_errors).all()
    assert (standard_errors < 0.06).all()


@pytest.mark.parametrize("cv", [0.5, 2.0])
def test_counts_of_a_renewal_process_vary_by_cv_squared_in_the_long_run(cv: float) -> None:
    traffic = make("gamma", rate_per_s=100.0, cv=cv, duration_s=40_000.0, lengths=LENGTHS)
    assert isinstance(traffic, Generated)
    counts = np.bincount((instants_s(traffic) // 10).astype(int), minlength=4000)
    index = counts.var(ddof=1) / 1000
    assert index == pytest.approx(cv**2, rel=0.02 + 4 * (2 / len(counts)) ** 0.5)


def test_noise_makes_neighbouring_windows_vary_together() -> None:
    traffic = day(trough_per_s=20.0, noise=0.4, noise_interval_s=300.0)
    counts = np.bincount((instants_s(traffic) // 150).astype(int), minlength=576).reshape(288, 2)
    together = stats.pearsonr(counts[:, 0], counts[:, 1]).statistic
    apart = stats.pearsonr(counts[1:, 0], counts[:-1, 1]).statistic
    # Shared variance (20 * 150)^2 (exp(0.16) - 1) against a Poisson variance of 20 * 150: correlation 0.998.
    assert together > 0.99
    assert abs(apart) < 4 / 288**0.5


def test_same_ticks_in_another_shape_of_day_are_the_same_users() -> None:
    assert len(instants_s(DAYS["cosine"])) == len(instants_s(DAYS["triangle"]))
    np.testing.assert_allclose(
        DAYS["cosine"].rate(None).expected(instants_s(DAYS["cosine"])),
        DAYS["triangle"].rate(None).expected(instants_s(DAYS["triangle"])),
        atol=1e-6,
    )
