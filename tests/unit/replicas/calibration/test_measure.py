"""Measuring step shapes: which, in what order, how often."""

import pytest

from replicas.calibration.measure import Patience, measure_all, median_error
from replicas.calibration.shapes import Shape, worth_measuring
from tests.engines import FakeEngine

LIMITS = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 4096, "num_kv_tokens": 100_000}


@pytest.mark.parametrize(
    "limits", [LIMITS, {**LIMITS, "max_num_seqs": 3, "num_kv_tokens": 5_000}, {**LIMITS, "max_model_len": 100}]
)
def test_every_shape_fits_the_engine(limits: dict[str, int]) -> None:
    shapes = worth_measuring(**limits)
    assert len(shapes) == len(set(shapes)) > 5
    for shape in shapes:
        assert 1 <= shape.num_requests <= limits["max_num_seqs"]
        assert shape.num_tokens <= limits["max_num_batched_tokens"]
        assert shape.kv_tokens <= limits["num_kv_tokens"]
        assert max(shape.decode_context, shape.cached + shape.chunk) <= limits["max_model_len"]


def test_all_four_kinds_of_step_are_among_them_up_to_the_limits() -> None:
    shapes = worth_measuring(**LIMITS, max_graph_tokens=128)
    assert {Shape(1, 128), Shape(64, 128)} <= set(shapes)  # decodes
    assert {Shape(chunk=16), Shape(chunk=2048), Shape(chunk=2048, cached=1024)} <= set(shapes)  # prefills
    assert any(shape.num_decodes and shape.chunk for shape in shapes)  # both
    assert Shape(9, 512) in shapes  # the first batch that is padded from 8 to 16
    assert Shape(9, 512) not in worth_measuring(**LIMITS)


def test_sums_of_a_shape() -> None:
    """Two decodes on 10 tokens each beside a chunk of 4 on 6: n (c + n/2) is 10.5 twice and 4 x 8."""
    shape = Shape(2, 10, chunk=4, cached=6)
    assert (shape.num_requests, shape.num_tokens, shape.kv_tokens, shape.attended_tokens) == (3, 6, 32, 53)


def test_a_quiet_shape_is_repeated_the_least_and_a_noisy_one_until_patience_ends() -> None:
    engine = FakeEngine(noise=0.001, noise_of_decodes=0.5)
    quiet, noisy = Shape(chunk=64), Shape(4, 128)
    measured = measure_all(engine, [quiet, noisy], seed=1, patience=Patience(min_repeats=5, max_repeats=20))
    counts = measured.steps["num_prefills"].value_counts()
    assert (counts[1], counts[0]) == (5, 20)
    ((shape, error),) = measured.loose
    assert shape == noisy
    assert error > 0.01


def test_the_first_round_is_not_counted_and_rounds_are_shuffled() -> None:
    engine = FakeEngine(noise=0.0)
    shapes = worth_measuring(*engine.limits())
    measured = measure_all(engine, shapes, seed=1, patience=Patience(min_repeats=2, max_repeats=9))
    rounds = [engine._asked[start : start + len(shapes)] for start in range(0, len(engine._asked), len(shapes))]
    assert len(rounds) == 3
    assert len(measured.steps) == 2 * len(shapes)
    assert all(set(one) == set(shapes) for one in rounds)
    assert rounds[0] != rounds[1] != rounds[2]


def test_the_same_seed_measures_in_the_same_order() -> None:
    one, other = FakeEngine(), FakeEngine()
    for engine in (one, other):
        measure_all(engine, worth_measuring(*engine.limits()), seed=5, patience=Patience(max_repeats=5))
    assert one._asked == other._asked


def test_median_error_of_equal_values_is_0() -> None:
    assert median_error([2.0, 2.0, 2.0]) == 0.0
