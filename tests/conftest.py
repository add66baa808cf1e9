"""Options of the tests. HYPOTHESIS_PROFILE=hunt looks for new examples; by default every run tries the same ones."""

import os

import pytest
from hypothesis import HealthCheck, settings

collect_ignore = ["mutants"]  # a tool, which needs cosmic-ray

settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("hunt", deadline=None, suppress_health_check=[HealthCheck.too_slow])
os.environ["COLUMNS"] = "120"  # tables are as wide as the terminal
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--recordings", default=None, metavar="DIR", help="step traces of vLLM to check (tests/conformance)")
