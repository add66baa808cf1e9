"""Our scheduler against step traces recorded from vLLM 0.32: every step, every decision, exactly."""

import json
from pathlib import Path

import pytest

from tests.conformance.replay import compare, not_modelled
from tests.shared import shared


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder = metafunc.config.getoption("--recordings", default=None)
    if "workload" in metafunc.fixturenames:
        names = sorted(path.name for path in Path(folder).glob("*_workload.json")) if folder else RECORDED
        metafunc.parametrize("workload", names)


RECORDED = [
    f"{name}_workload.json"
    for name in ("async_mixed", "async_preempt", "burst_chunked", "no_chunk", "preempt", "steps_mixed", "watermark")
]


def test_every_step_equals_vllms(workload: str, request: pytest.FixtureRequest) -> None:
    folder = request.config.getoption("--recordings", default=None)
    path = Path(folder) / workload if folder else shared(f"data/conformance/{workload}")
    missing = not_modelled(json.loads(path.read_text())["engine_args"])
    if missing:
        pytest.skip(f"not modelled yet: {missing}")
    num_steps, mismatches, first = compare(path)
    assert num_steps > 0
    assert mismatches == 0, first
