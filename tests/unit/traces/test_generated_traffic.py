"""Generated traffic: what users of other generators met, and what each setting does."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from traces import KINDS, Traffic
from traces.generated import Generated
from traces.segments import named

LENGTHS = {"prompt": {"kind": "fixed", "tokens": 100}, "output": {"kind": "fixed", "tokens": 10}}


def make(kind: str, **settings: Any) -> Traffic:
    return KINDS[kind](**settings)


def traffic(kind: str, **settings: Any) -> Traffic:
    return KINDS[kind](**{"lengths": LENGTHS, **settings})


def arrivals(source: Traffic, seed: int = 1) -> Any:
    return np.concatenate(list(source.stream(seed).chunks()))


@pytest.mark.parametrize("kind", ["poisson", "constant"])
@pytest.mark.parametrize("rate_per_s", [0.0, -1.0, float("inf"), float("nan")])
def test_rate_0_is_refused_and_does_not_loop(kind: str, rate_per_s: float) -> None:
    with pytest.raises(ValidationError, match="rate_per_s"):
        traffic(kind, rate_per_s=rate_per_s, duration_s=10.0)


def test_trough_of_0_is_a_night_without_arrivals() -> None:
    day = traffic("diurnal", peak_per_s=1.0, trough_per_s=0.0, shape="square", peak_hour=14)
    hours = arrivals(day)["arrived_at_s"] / 3600
    assert ((hours >= 8) & (hours < 20)).all()
    assert len(hours) == pytest.approx(12 * 3600, abs=4 * (12 * 3600) ** 0.5)


def test_no_burst_at_all_gives_even_gaps() -> None:
    at_s = arrivals(traffic("gamma", rate_per_s=10.0, cv=0.0, duration_s=100.0))["arrived_at_s"]
    np.testing.assert_allclose(at_s, 0.1 * np.arange(1000), atol=1e-9)


@pytest.mark.parametrize("cv", [float("inf"), float("nan"), -1.0])
def test_endless_burst_is_refused(cv: float) -> None:
    with pytest.raises(ValidationError, match="cv"):
        traffic("gamma", rate_per_s=10.0, cv=cv, duration_s=100.0)


def test_ten_thousand_requests_hold_their_rate() -> None:
    at_s = arrivals(traffic("poisson", rate_per_s=200.0, duration_s=1000.0, limit=10_000))["arrived_at_s"]
    assert len(at_s) == 10_000
    assert 10_000 / at_s[-1] == pytest.approx(200.0, rel=3 / 100)


def test_evenly_spaced_requests_do_not_drift() -> None:
    at_s = arrivals(traffic("constant", rate_per_s=200.0, duration_s=50_000.0))["arrived_at_s"]
    assert len(at_s) == 10_000_000
    np.testing.assert_allclose(at_s[-1000:], np.arange(10_000_000 - 1000, 10_000_000) / 200, rtol=1e-14)


def test_slow_traffic_is_not_lost_between_windows() -> None:
    # 1440 windows of 60 s, one factor each, at 0.01 requests/s: 864 requests, in windows that mostly hold none.
    day = traffic("diurnal", peak_per_s=0.01, trough_per_s=0.01, noise=1e-9, noise_interval_s=60.0)
    assert len(arrivals(day)) == pytest.approx(864, abs=4 * 864**0.5)


def test_short_traffic_is_empty_as_often_as_it_should_be() -> None:
    short = traffic("poisson", rate_per_s=0.5, duration_s=1.0)
    num_empty = sum(not list(short.stream(seed).chunks()) for seed in range(400))
    p = float(np.exp(-0.5))
    assert num_empty == pytest.approx(400 * p, abs=4 * (400 * p * (1 - p)) ** 0.5)


def test_rates_below_one_are_rates() -> None:
    found = [len(arrivals(traffic("poisson", rate_per_s=0.425 * i / 10, duration_s=1e5))) for i in range(1, 11)]
    expected = 0.425e5 * np.arange(1, 11) / 10
    assert (np.abs(found - expected) <= 4 * expected**0.5).all()


def test_same_seed_same_requests_and_another_seed_others() -> None:
    day = traffic("diurnal", peak_per_s=1.0, trough_per_s=0.1, noise=0.3, duration_s=7200.0)
    assert arrivals(day, 7).tobytes() == arrivals(day, 7).tobytes()
    assert arrivals(day, 7).tobytes() != arrivals(day, 8).tobytes()


def test_lengths_do_not_move_the_arrivals_and_rates_do_not_move_the_lengths() -> None:
    long = {"prompt": {"kind": "lognormal", "mean": 900.0, "p99": 5000.0}, "output": LENGTHS["output"]}
    short = {"prompt": {"kind": "uniform", "low": 1, "high": 9}, "output": LENGTHS["output"]}
    slow = arrivals(traffic("poisson", rate_per_s=1.0, duration_s=500.0, lengths=long))
    other = arrivals(traffic("poisson", rate_per_s=1.0, duration_s=500.0, lengths=short))
    fast = arrivals(traffic("poisson", rate_per_s=2.0, duration_s=500.0, lengths=long))
    np.testing.assert_array_equal(slow["arrived_at_s"], other["arrived_at_s"])
    np.testing.assert_array_equal(slow["num_prompt_tokens"], fast["num_prompt_tokens"][: len(slow)])


def test_nobody_comes_on_a_weekend_that_is_factored_out() -> None:
    fields: dict[str, Any] = {"peak_per_s": 1.0, "trough_per_s": 1.0, "duration_s": 2 * 86_400.0}
    made = traffic("diurnal", weekend_factor=0.0, first_weekday="sunday", **fields)
    assert made.mean_rate_per_s(0.0, 86_400.0) == 0
    assert made.mean_rate_per_s(86_400.0, 2 * 86_400.0) == pytest.approx(1.0)


def test_weekend_is_quieter_from_the_weekday_that_time_starts_on() -> None:
    week = traffic(
        "diurnal",
        peak_per_s=0.2,
        trough_per_s=0.1,
        weekend_factor=0.25,
        first_weekday="friday",
        duration_s=4 * 86_400.0,
    )
    by_day = np.bincount((arrivals(week)["arrived_at_s"] // 86_400).astype(int))
    expected = 0.15 * 86_400 * np.array([1, 0.25, 0.25, 1])
    assert (np.abs(by_day - expected) <= 4 * expected**0.5).all()
    assert week.mean_rate_per_s(86_400, 2 * 86_400) == pytest.approx(0.15 * 0.25)


def test_flash_crowd_adds_its_own_requests_at_its_own_time() -> None:
    crowd = {"at_s": 3000.0, "height_per_s": 20.0, "width_s": 600.0}
    day = traffic("diurnal", peak_per_s=1.0, trough_per_s=1.0, duration_s=6000.0, flash_crowds=[crowd])
    at_s = arrivals(day)["arrived_at_s"]
    during = np.count_nonzero(np.abs(at_s - 3000) < 300)
    assert during == pytest.approx(600 + 6000, abs=4 * 6600**0.5)
    assert len(at_s) - during == pytest.approx(5400, abs=4 * 5400**0.5)
    assert day.mean_rate_per_s(2700, 3300) == pytest.approx(11.0)


def test_noise_lasts_to_the_end_and_leaves_crowds_alone() -> None:
    """Factors of 300 s each: the second of 450 s is its own. A crowd on top is as high as it is given."""
    settings = {"peak_per_s": 1.0, "trough_per_s": 1.0, "duration_s": 450.0, "noise": 0.5}
    plain = traffic("diurnal", **settings).rate(1)
    first, second, last = plain.per_s(np.array([0.0, 300.0, 449.0]))
    assert first != second == last
    crowd = {"at_s": 150.0, "height_per_s": 20.0, "width_s": 60.0}
    crowded = traffic("diurnal", **settings, flash_crowds=[crowd]).rate(1)
    assert crowded.per_s(np.array([150.0, 449.0])) == pytest.approx(np.array([first + 20.0, last]))


def test_noise_has_mean_one_and_stays_hidden_from_the_known_rate() -> None:
    settings = {"peak_per_s": 1.0, "trough_per_s": 1.0, "duration_s": 86_400.0, "noise_interval_s": 300.0}
    noisy, plain = traffic("diurnal", noise=0.5, **settings), traffic("diurnal", **settings)
    assert noisy.mean_rate_per_s(0, 3600) == plain.mean_rate_per_s(0, 3600)
    at_s = np.concatenate([arrivals(noisy, seed)["arrived_at_s"] for seed in range(20)])
    variance_of_factor = np.exp(0.5**2) - 1
    standard_error = (20 * 288 * 300**2 * variance_of_factor + 20 * 86_400) ** 0.5
    assert len(at_s) == pytest.approx(20 * 86_400, abs=4 * standard_error)
    counts = np.bincount((arrivals(noisy, 0)["arrived_at_s"] // 300).astype(int))
    assert counts.var() / counts.mean() > 20  # 1 + 300 * variance_of_factor = 86 expected; 1 without noise


def test_rate_scale_multiplies_rates() -> None:
    day = traffic("diurnal", peak_per_s=2.0, trough_per_s=1.0, rate_scale=10.0, duration_s=1000.0)
    plain = traffic("diurnal", peak_per_s=2.0, trough_per_s=1.0, duration_s=1000.0)
    assert day.mean_rate_per_s(0, 1000) == pytest.approx(10 * plain.mean_rate_per_s(0, 1000))


def test_limit_stops_early_and_counts_only_what_came() -> None:
    stream = traffic("poisson", rate_per_s=100.0, duration_s=1e6, limit=1234).stream(1, chunk_rows=500)
    assert [len(rows) for rows in stream.chunks()] == [500, 500, 234]
    assert stream.counts == {"read": 1234, "kept": 1234}


def test_limit_takes_the_first_of_the_same_requests() -> None:
    all_of_them = arrivals(traffic("gamma", cv=2.0, rate_per_s=100.0, duration_s=100.0))
    some = arrivals(traffic("gamma", cv=2.0, rate_per_s=100.0, duration_s=100.0, limit=321))
    np.testing.assert_array_equal(some, all_of_them[:321])


def test_nothing_is_known_or_arrives_outside_the_duration() -> None:
    day = traffic("poisson", rate_per_s=3.0, duration_s=100.0)
    assert day.mean_rate_per_s(90.0, 110.0) == pytest.approx(1.5)
    assert day.mean_rate_per_s(100.0, 200.0) == 0.0
    assert day.mean_rate_per_s(50.0, 50.0) == 3.0
    assert day.ends_at_s == 100.0


def test_classes_are_named_and_their_means_weighted_by_share() -> None:
    classes = [
        {"name": "a", "share": 3, "lengths": LENGTHS},
        {"name": "b", "share": 1, "lengths": LENGTHS | {"prompt": {"kind": "fixed", "tokens": 500}}},
    ]
    mixed = make("poisson", rate_per_s=1.0, duration_s=10.0, classes=classes)
    assert mixed.class_names == ("a", "b")
    assert mixed.mean_prompt_tokens == 200.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peak_per_s": 1.0, "trough_per_s": 2.0}, "trough_per_s 2 is above peak_per_s 1"),
        ({"peak_per_s": 1.0, "trough_per_s": 0.0, "lengths": None}, "give either `lengths` or `classes`"),
        ({"peak_per_s": 1.0, "trough_per_s": 0.0, "peak_hour": 24}, "peak_hour"),
        ({"peak_per_s": 1.0, "trough_per_s": 0.0, "peak_per_minute": 3}, "peak_per_minute"),
        (
            {
                "peak_per_s": 1.0,
                "trough_per_s": 0.0,
                "flash_crowds": [{"at_s": 86_400.0, "height_per_s": 1.0, "width_s": 1.0}],
            },
            r"flash_crowds\[0\].at_s 86400 is not before duration_s 86400",
        ),
        (
            {
                "peak_per_s": 1.0,
                "trough_per_s": 0.0,
                "lengths": None,
                "classes": [{"name": "a", "share": 1, "lengths": LENGTHS}] * 2,
            },
            "classes: two are named 'a'; names must differ",
        ),
    ],
)
def test_impossible_day_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        traffic("diurnal", **settings)


@pytest.mark.parametrize("chunk_rows", [7, 1000, 65_536])
def test_a_fixed_count_is_kept_and_ends_at_the_end(chunk_rows: int) -> None:
    """As inference-perf and vllm bench serve stretch their exponential gaps: 60 requests at 1/s always end after 60 s."""
    load = traffic("poisson", rate_per_s=31.41, duration_s=60.0, fixed_count=True)
    for seed in range(20):  # the last request of one seed in ten was lost to a rounding
        at_s = np.concatenate([*load.stream(seed, chunk_rows=chunk_rows).chunks()])["arrived_at_s"]
        assert len(at_s) == 1885  # of 1,884.6
        assert at_s[-1] == pytest.approx(60.0, rel=1e-12)
        assert at_s[-1] < 60.0
        assert (np.diff(at_s) > 0).all()


def test_gaps_of_a_fixed_count_are_exponential() -> None:
    """Given n arrivals, the first n - 1 are uniform on the whole: the share below any instant is that instant's."""
    at_s = arrivals(traffic("poisson", rate_per_s=100.0, duration_s=100.0, fixed_count=True))["arrived_at_s"]
    gaps = np.diff(at_s)
    # The variance of n exponential gaps of mean 1 is 1 with a standard error of sqrt(8 / n).
    assert np.var(gaps * 100) == pytest.approx(1.0, abs=4 * (8 / 1e4) ** 0.5)
    for share in (0.1, 0.5, 0.9):
        assert np.mean(at_s < 100 * share) == pytest.approx(share, abs=4 * (share * (1 - share) / 1e4) ** 0.5)


def test_nothing_arrives_at_the_very_end() -> None:
    """The end belongs to what comes after: an even load of 1/s over 10 s has 10 requests, at 0 to 9 s."""
    assert arrivals(traffic("constant", rate_per_s=1.0, duration_s=10.0))["arrived_at_s"].tolist() == list(range(10))


def test_noise_changes_at_the_instants_of_its_intervals_and_a_seed_has_its_own() -> None:
    day = traffic("diurnal", peak_per_s=1.0, trough_per_s=1.0, noise=0.5, noise_interval_s=300.0, duration_s=1500.0)
    assert isinstance(day, Generated)
    edges_s = 300.0 * np.arange(1, 5)
    at, before, later = (day.rate(1).per_s(edges_s + shift_s) for shift_s in (0.0, -1e-6, 299.0))
    assert at.tolist() == later.tolist()
    assert before.tolist()[1:] == at.tolist()[:-1]
    assert len({*at.tolist(), *day.rate(2).per_s(edges_s).tolist()}) == 8


def test_noise_factors_are_lognormal_of_mean_one() -> None:
    day = traffic("diurnal", peak_per_s=1.0, trough_per_s=1.0, noise=0.8, noise_interval_s=1.0, duration_s=40_000.0)
    assert isinstance(day, Generated)
    logs = np.log(day.rate(3).per_s(np.arange(40_000.0)))
    assert logs.std() == pytest.approx(0.8, abs=4 * 0.8 / 80_000**0.5)
    assert logs.mean() == pytest.approx(-(0.8**2) / 2, abs=4 * 0.8 / 200)


@pytest.mark.parametrize("first_weekday", ["monday", "saturday", "sunday"])
def test_saturday_and_sunday_are_the_weekend_and_begin_at_midnight(first_weekday: str) -> None:
    days = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
    week = traffic(
        "diurnal", peak_per_s=1.0, trough_per_s=1.0, weekend_factor=0.5, first_weekday=first_weekday, duration_s=14 * 86_400.0
    )
    assert isinstance(week, Generated)
    names = [days[(days.index(first_weekday) + i) % 7] for i in range(14)]
    expected = [0.5 if name in ("saturday", "sunday") else 1.0 for name in names]
    assert week.rate(None).per_s(86_400.0 * np.arange(14)).tolist() == expected
    assert week.rate(None).per_s(86_400.0 * np.arange(1, 15) - 1e-3).tolist() == expected


def test_classes_come_in_their_shares_and_each_with_its_own_lengths() -> None:
    classes = [
        {"name": name, "share": share, "lengths": LENGTHS | {"prompt": {"kind": "fixed", "tokens": tokens}}}
        for name, share, tokens in (("a", 1, 10), ("b", 5, 20), ("c", 4, 30))
    ]
    rows = arrivals(make("concurrent", limit=20_000, classes=classes))
    assert (rows["num_prompt_tokens"] == 10 * (rows["class_id"] + 1)).all()
    shares = np.bincount(rows["class_id"]) / 20_000
    assert np.abs(shares - [0.1, 0.5, 0.4]).max() < 4 * 0.5 / 20_000**0.5


def test_prefixes_are_as_popular_as_zipf_says_and_begin_their_share_of_the_prompts() -> None:
    prefixes = {"num": 3, "tokens": 50, "zipf": 1.0, "share": 0.6}
    stream = traffic("concurrent", limit=30_000, prefixes=prefixes).stream(1)
    (rows,) = stream.chunks()
    contents = [int(named("prefix", np.array([i]))[0]) for i in range(3)]
    segments = stream.segments_of(rows)
    assert (segments["num_tokens"] == 50).all()
    counts = np.array([np.count_nonzero(segments["content"] == content) for content in contents]) / 30_000
    assert np.abs(counts - 0.6 * np.array([6, 3, 2]) / 11).max() < 4 * 0.5 / 30_000**0.5
    assert rows["num_segments"].mean() == pytest.approx(0.6, abs=4 * 0.5 / 30_000**0.5)


def test_rate_scale_multiplies_crowds_too() -> None:
    crowd = {"at_s": 3000.0, "height_per_s": 20.0, "width_s": 600.0}
    day = traffic("diurnal", peak_per_s=1.0, trough_per_s=1.0, duration_s=6000.0, flash_crowds=[crowd], rate_scale=3.0)
    assert day.mean_rate_per_s(2700, 3300) == pytest.approx(3 * 11.0)
    assert day.mean_rate_per_s(3000, 3000) == pytest.approx(3 * 21.0)


def test_the_rate_at_an_instant_is_known_up_to_the_end_and_not_at_it() -> None:
    load = traffic("constant", rate_per_s=2.0, duration_s=10.0)
    at_s = [-1e-9, 0.0, np.nextafter(10.0, 0.0), 10.0]
    assert [load.mean_rate_per_s(one, one) for one in at_s] == [0.0, 2.0, 2.0, 0.0]
