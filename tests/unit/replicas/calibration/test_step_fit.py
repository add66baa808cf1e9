"""Fitting step times: known coefficients are found again, through noise, outliers, drift and padding."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from replicas.calibration.device_fit import NAMES, device_s, gradient
from replicas.calibration.fit import features_of, fit
from replicas.calibration.measure import Patience, measure_all
from replicas.calibration.shapes import Shape, worth_measuring
from replicas.calibration.steps import COLUMNS
from replicas.step_time import padded_tokens
from tests.engines import SCHEDULE_S, SCHEDULE_S_PER_REQUEST, FakeEngine, true_s, truth

FIVE = ("s_per_token", "s_per_attended_token", "weights_s", "s_per_kv_token", "s_per_request")


def measured(engine: FakeEngine) -> pd.DataFrame:
    shapes = worth_measuring(*engine.limits())
    return measure_all(engine, shapes, seed=1, patience=Patience(min_repeats=10, max_repeats=10)).steps


def steps_of(shapes: list[Shape], seconds: Any) -> pd.DataFrame:
    """One step after the other, as fast as the device can."""
    rows = [
        {
            "num_requests": shape.num_requests,
            "num_prefills": int(shape.chunk > 0),
            "num_tokens": shape.num_tokens,
            "attended_tokens": shape.attended_tokens,
            "kv_tokens": shape.kv_tokens,
        }
        for shape in shapes
    ]
    table = pd.DataFrame(rows).assign(device_s=seconds, at_s=np.cumsum(seconds) - seconds)
    return table.reindex(columns=[*COLUMNS])


def test_without_noise_the_coefficients_are_found_exactly() -> None:
    found = fit(measured(FakeEngine(noise=0.0)))
    for name in FIVE:
        # the solver stops at 1e-8 of its cost, whose square root is 1e-4
        assert getattr(found.device_time, name) == pytest.approx(getattr(truth(), name), rel=1e-3), name
    assert found.residuals.p99 < 1e-3
    assert (found.device_time.serial_share, found.device_time.fixed_s) == (1.0, 0.0)


def test_through_noise_every_coefficient_is_within_four_of_its_standard_errors() -> None:
    """2 % noise: also in the small terms, and the standard errors have teeth: the large terms' are below 2 %."""
    found = fit(measured(FakeEngine(noise=0.02)))
    for name in FIVE:
        error = found.relative_errors[name]
        assert abs(getattr(found.device_time, name) / getattr(truth(), name) - 1) < 4 * error + 1e-3, name
    assert max(found.relative_errors[name] for name in ("s_per_token", "weights_s")) < 0.02
    # |normal| has its median at 0.674 and its 90th percentile at 1.645 standard deviations
    assert found.residuals.p50 == pytest.approx(0.674 * 0.02, rel=0.15)
    # of ten repeats, and of their own median: a tenth less, and known to some 5 % from 70 shapes
    assert found.repeat_spread.p50 == pytest.approx(0.9 * 0.674 * 0.02, rel=0.15)


def test_one_step_in_twenty_that_takes_twice_as_long_moves_no_large_coefficient_by_2_percent() -> None:
    found = fit(measured(FakeEngine(noise=0.02, outlier_share=0.05)))
    for name in ("s_per_token", "weights_s"):  # least squares would be 5 % off: an outlier in twenty, each by 100 %
        assert getattr(found.device_time, name) == pytest.approx(getattr(truth(), name), rel=0.02), name


@pytest.mark.parametrize("serial_share", [0.0, 0.4])
def test_arithmetic_that_hides_behind_memory_is_seen(serial_share: float) -> None:
    shapes = worth_measuring(256, 2048, 4096, 500_000) * 3
    device = truth(serial_share=serial_share, fixed_s=2e-3)
    rng = np.random.default_rng(3)
    found = fit(steps_of(shapes, true_s(shapes, device) * np.exp(rng.normal(0, 0.01, len(shapes)))))
    assert found.device_time.serial_share == pytest.approx(serial_share, abs=0.1)
    assert found.device_time.s_per_token == pytest.approx(device.s_per_token, rel=0.03)
    # what every step takes: the weights and the fixed part, each of which the steps tell less well
    whole_s = device.weights_s + device.fixed_s
    assert found.device_time.weights_s + found.device_time.fixed_s == pytest.approx(whole_s, rel=0.03)


def drifting(num_rounds: int) -> tuple[list[Shape], Any]:
    """Decodes all the time, prefills only while the machine takes 1.3 times as long, in the second half."""
    shapes = []
    for part in range(2 * num_rounds):
        shapes += [Shape(batch, 512) for batch in (1, 4, 16, 64)] * 3
        shapes += [Shape(chunk=chunk) for chunk in (64, 256, 1024, 2048)] * (part >= num_rounds)
    half = shapes.index(Shape(chunk=64)) - 12
    return shapes, np.where(np.arange(len(shapes)) < half, 1.0, 1.3)


def test_drift_of_the_machine_is_not_taken_for_the_cost_of_a_prefill() -> None:
    shapes, slowness = drifting(num_rounds=10)
    table = steps_of(shapes, true_s(shapes, truth()) * slowness)
    span_s = float(table["at_s"].max())
    blind, seeing = (fit(table, drift_window_s=window) for window in (None, span_s / 30))
    ratio = truth().s_per_token / truth().weights_s  # the level is free: was the machine fast before, or slow after?
    errors = [abs(one.device_time.s_per_token / one.device_time.weights_s / ratio - 1) for one in (blind, seeing)]
    assert errors[0] > 0.08
    assert errors[1] < 0.03
    assert seeing.drift is not None
    assert seeing.drift.slowest / seeing.drift.fastest == pytest.approx(1.3, rel=0.1)


def test_the_cpus_parts_are_found_and_what_was_not_measured_is_said() -> None:
    found = fit(measured(FakeEngine()))
    assert found.cpu_time.schedule.s == pytest.approx(SCHEDULE_S, rel=1e-3)
    assert found.cpu_time.schedule.s_per_request == pytest.approx(SCHEDULE_S_PER_REQUEST, rel=1e-3)
    assert [line for line in found.not_identified if "not measured" in line] == [
        "cpu_time.update: not measured, taken as 0",
        "cpu_time.front_end: not measured, taken as 0",
    ]


def test_what_the_steps_cannot_tell_is_named() -> None:
    """Single decodes only: a request is a token, so one of the two costs is anyone's guess."""
    shapes = [Shape(1, context) for context in (64, 512, 2048, 4000)] * 10
    found = fit(steps_of(shapes, true_s(shapes, truth())))
    assert any(line.startswith(("s_per_token", "s_per_request")) for line in found.not_identified)


def test_the_range_is_that_of_the_steps() -> None:
    shapes = worth_measuring(8, 512, 2048, 50_000)
    found = fit(steps_of(shapes, true_s(shapes, truth())))
    assert found.range.num_requests == [1, 8]
    assert found.range.num_tokens == [1, 512]
    assert found.range.kv_tokens == [16, 8 * 2048]


@pytest.mark.parametrize("serial_share", [0.0, 0.4, 1.0])
def test_the_gradient_is_that_of_the_form(serial_share: float) -> None:
    """Against central differences, which are good to about the square of a step of 1e-6."""
    shapes = worth_measuring(64, 2048, 4096, 200_000)
    features = features_of(steps_of(shapes, np.ones(len(shapes))))
    values = np.array([getattr(truth(serial_share=serial_share, fixed_s=1e-3), name) for name in NAMES])
    for place in range(len(NAMES)):
        change = np.zeros(len(NAMES))
        change[place] = 1e-6 * max(values[place], 1e-3)
        slope = (device_s(features, values + change) - device_s(features, values - change)) / (2 * change[place])
        np.testing.assert_allclose(gradient(features, values)[:, place], slope, rtol=1e-6, atol=1e-9)


def test_padding_is_in_the_arithmetic() -> None:
    shapes = [Shape(9, 100), Shape(300, 100), Shape(600, 100)]
    padded = features_of(steps_of(shapes, np.ones(3)), max_graph_tokens=512)[:, 0]
    assert padded.tolist() == [padded_tokens(9, 512), padded_tokens(300, 512), 600] == [16, 304, 600]


@pytest.mark.parametrize(("seconds", "said"), [([1.0] * 3, "3 steps are too few"), ([1.0] * 9 + [0.0], "step 9 is 0")])
def test_steps_that_cannot_be_fitted_are_refused(seconds: list[float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fit(steps_of([Shape(1, 100)] * len(seconds), np.array(seconds)))
