"""Our scheduler against a live vLLM's, on a few random workloads. `python -m tests.conformance.campaign` runs many."""

import os

import pytest

from tests.conformance import campaign

LIVE_PYTHON = os.environ.get("LIVE_PYTHON", "")


@pytest.mark.live
@pytest.mark.skipif(not LIVE_PYTHON, reason="LIVE_PYTHON names no interpreter with vLLM 0.32.0 or 0.30.0")
def test_every_step_of_random_workloads_equals_vllms() -> None:
    assert campaign.main(["--live", LIVE_PYTHON, "--workloads", "20"]) == 0
