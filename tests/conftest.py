"""Options of the tests."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--recordings", default=None, metavar="DIR", help="step traces of vLLM to check (tests/conformance)")
