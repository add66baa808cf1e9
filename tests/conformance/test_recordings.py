"""Our scheduler against step traces recorded from vLLM 0.32.0: every step, every decision, exactly."""

import json
from pathlib import Path

import pytest

from tests.conformance.replay import compare, not_modelled
from tests.conformance.workloads import text_of
from tests.shared import FOLDER

OURS = Path(__file__).parent / "recorded"
SHARED = FOLDER / "data/conformance"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder = metafunc.config.getoption("--recordings", default=None)
    folders = [Path(folder)] if folder else [OURS, SHARED]
    if "workload" in metafunc.fixturenames:
        paths = [path for one in folders for path in sorted(one.glob("*_workload.json*"))]
        metafunc.parametrize("workload", paths, ids=[path.name.partition("_workload")[0] for path in paths])


def test_every_step_equals_vllms(workload: Path) -> None:
    assert not_modelled(json.loads(text_of(workload))["engine_args"]) == ""
    num_steps, mismatches, first = compare(workload)
    assert num_steps > 0
    assert mismatches == 0, first


def test_the_shared_recordings_are_there() -> None:
    """Eleven, of real runs of vLLM's engine; ours are of its scheduler alone."""
    if not SHARED.exists():
        pytest.skip("needs ../shared/data/conformance")
    assert len(list(SHARED.glob("*_workload.json"))) >= 11
