"""Exact percentiles by repeated reading, against NumPy on values held in memory."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim import percentiles as exact
from sim.metrics import between, percentile_ranks
from sim.percentiles import OrderStatistics, Tally

PERCENTS = [0.0, 50.0, 90.0, 95.0, 99.0, 99.9, 100.0]
seconds = st.one_of(st.floats(1e-9, 1e9), st.just(0.0), st.just(np.nan), st.sampled_from([0.02, 0.020000000000000004]))


def percentiles(values, cells, scopes, num_chunks=1):
    """All percentiles of each scope, reading the values in chunks."""
    chunks = list(zip(np.array_split(values, num_chunks), np.array_split(cells, num_chunks), strict=True))
    tally = Tally(scopes.shape[1])
    for chunk in chunks:
        tally.add(*chunk)
    found = []
    counts = [tally.moments(scope)[0] for scope in scopes]
    places = [percentile_ranks(n, PERCENTS) if n else (np.empty(0, int),) * 3 for n in counts]
    statistics = OrderStatistics(tally, scopes, [np.concatenate([low, high]) for low, high, _ in places])
    while not statistics.is_done:
        for chunk in chunks:
            statistics.observe(*chunk)
        statistics.narrow()
    for ordered, (_, _, weight) in zip(statistics.values, places, strict=True):
        low, high = np.split(ordered, 2)
        found.append(between(low, high, weight))
    return found, [tally.moments(scope) for scope in scopes]


@pytest.mark.parametrize("few", [0, 3, 1 << 20], ids=["counted_to_the_end", "counted_then_collected", "collected"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(seconds, st.integers(-1, 2)), max_size=60), num_chunks=st.integers(1, 4))
def test_percentiles_equal_numpys_to_the_bit_however_the_values_are_chunked(monkeypatch, few, rows, num_chunks):
    monkeypatch.setattr(exact, "_FEW", few)
    values = np.array([value for value, _ in rows], dtype=np.float64)
    cells = np.array([cell for _, cell in rows], dtype=np.int64)
    scopes = np.array([[True, True, True], [True, False, False], [False, True, True]])
    found, moments = percentiles(values, cells, scopes, num_chunks)
    for scope, answer, (n, mean, std) in zip(scopes, found, moments, strict=True):
        members = values[np.isin(cells, np.flatnonzero(scope)) & ~np.isnan(values)]
        assert n == members.size
        if n:
            assert answer.tolist() == np.percentile(members, PERCENTS).tolist()
            np.testing.assert_allclose([mean, std], [members.mean(), members.std()], rtol=1e-9, atol=1e-12 * mean)


def test_mean_and_percentiles_are_of_the_same_values_when_one_is_absent():
    (answer,), ((n, mean, _),) = percentiles(np.array([np.nan, 20, 20]), np.zeros(3, int), np.ones((1, 1), bool))
    assert (n, mean, answer[1]) == (2, 20.0, 20.0)


def test_constant_values_give_exactly_that_percentile():
    (answer,), _ = percentiles(np.full(100, 5.001), np.zeros(100, int), np.ones((1, 1), bool))
    assert answer.tolist() == [5.001] * len(PERCENTS)


def test_a_standard_deviation_survives_a_large_mean():
    values = 86_400 + np.array([0.0, 0.001] * 5_000)
    _, ((_, _, std),) = percentiles(values, np.zeros(values.size, int), np.ones((1, 1), bool))
    np.testing.assert_allclose(std, 0.0005, rtol=1e-6)


def test_a_cell_may_be_in_more_scopes_than_a_scope_has_cells():
    found, _ = percentiles(np.array([1.0, 2.0, 3.0]), np.array([0, 0, 1]), np.array([[True, False]] * 3))
    assert [answer[1] for answer in found] == [1.5] * 3  # the median


@pytest.mark.parametrize("few", [0, 5], ids=["counted_to_the_end", "counted_then_collected"])
def test_the_value_just_below_a_bin_is_not_in_it(monkeypatch, few):
    """29 bits lie below a bin of the second reading: of two neighbouring floats the upper begins one, and is wanted."""
    monkeypatch.setattr(exact, "_FEW", few)
    upper = (np.array([0.02]).view(np.int64) >> 29 << 29).view(np.float64)[0]
    values = np.array([*[0.019999] * 10, np.nextafter(upper, 0.0), upper, *[0.020001] * 10])
    cells, tally = np.zeros(values.size, dtype=np.int64), Tally(1)
    tally.add(values, cells)
    statistics = OrderStatistics(tally, np.array([[True]]), [np.array([11])])
    while not statistics.is_done:
        statistics.observe(values, cells)
        statistics.narrow()
    assert statistics.values[0].tolist() == [upper]
