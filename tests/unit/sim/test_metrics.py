"""The definitions of sim/metrics.py, on requests whose every instant is written out."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import metrics
from sim.records import FAILED, REJECTED, TIMED_OUT
from tests import synthetic


def one(**given):
    """A request that arrives at 100 s, is scheduled at 100.02, and gives 4 tokens at 100.05, .06, .07, .08."""
    row = synthetic.finished([100.0], ttft_s=0.05, tpot_s=0.01, num_output_tokens=4, queue_s=0.02)
    for name, value in given.items():
        row[name] = value
    return row


def test_four_tokens_have_three_gaps_and_e2e_ends_with_the_last():
    np.testing.assert_allclose(metrics.e2e_s(one()), 0.08)
    np.testing.assert_allclose(metrics.tpot_s(one()), 0.01)


def test_ttft_counts_from_arrival_and_includes_the_queue():
    np.testing.assert_allclose(metrics.ttft_s(one()), 0.05)
    np.testing.assert_allclose(metrics.queue_s(one()), 0.02)


def test_a_one_token_output_has_no_tpot_rather_than_zero():
    assert np.isnan(metrics.tpot_s(synthetic.finished([0.0], 0.05, 0.0, num_output_tokens=1)))


@pytest.mark.parametrize("status", [REJECTED, TIMED_OUT, FAILED])
def test_a_request_that_did_not_finish_has_neither_e2e_nor_tpot(status):
    assert np.isnan(metrics.e2e_s(one(status=status)))
    assert np.isnan(metrics.tpot_s(one(status=status)))


def test_a_request_without_first_token_has_no_ttft_rather_than_zero():
    assert np.isnan(metrics.ttft_s(synthetic.requests(1)))


def test_a_limit_is_met_when_reached_exactly():
    values = {"ttft_s": np.array([1.0, np.nextafter(1.0, 2.0)])}
    assert metrics.meets(values, np.array([1, 1]), {"ttft_s": 1.0}).tolist() == [True, False]


@given(st.floats(2.0**-20, 2.0**20, exclude_max=True))
def test_every_gap_lies_in_its_bin_and_bins_are_a_thousandth_wide(gap_s):
    b = metrics.itl_bin(gap_s)
    low, high = metrics.ITL_EDGES_S[b], metrics.ITL_EDGES_S[b + 1]
    assert low <= gap_s < high
    assert (high - low) / low <= 1 / 1024


@pytest.mark.parametrize(("gap_s", "bin_"), [(0.0, 0), (1e-9, 0), (1e9, metrics.NUM_ITL_BINS - 1)])
def test_gaps_beyond_the_range_go_to_the_outermost_bins(gap_s, bin_):
    assert metrics.itl_bin(gap_s) == bin_


@given(st.lists(st.floats(1e-4, 100.0), min_size=1, max_size=200))
def test_itl_percentiles_are_within_half_a_bin_of_the_exact_ones(gaps_s):
    totals = synthetic.totals(1.0, gaps_s)
    found = metrics.itl_percentiles(totals["itl_counts"][0], [0, 50, 90, 99, 100], max(gaps_s))
    np.testing.assert_allclose(found, np.percentile(gaps_s, [0, 50, 90, 99, 100]), rtol=1 / 2048)


def test_no_itl_percentile_exceeds_the_largest_gap():
    totals = synthetic.totals(1.0, [5.001] * 100)
    found = metrics.itl_percentiles(totals["itl_counts"][0], [50, 99.9], 5.001)
    assert (found <= 5.001).all()
    np.testing.assert_allclose(found, 5.001, rtol=1 / 2048)


def test_no_gaps_have_no_percentiles():
    assert math.isnan(metrics.itl_percentiles(synthetic.totals(1.0)["itl_counts"][0], [50])[0])


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.lists(st.floats(0, 100), min_size=1, max_size=5))
def test_a_percentile_is_numpys_linear_one_to_the_bit(values, percents):
    n, found = metrics.percentiles(np.array(values), percents)
    assert n == len(values)
    assert found.tolist() == np.percentile(values, percents).tolist()


def test_a_percentile_half_way_between_two_values_is_numpys_to_the_bit():
    """Reckoned from below, the middle of 0.13 and 8.47 is 4.3; from above, as NumPy does, it is a rounding more."""
    _, found = metrics.percentiles(np.array([8.47, 0.13]), [50])
    assert found.tolist() == [4.300000000000001] == [np.percentile([8.47, 0.13], 50)]
