"""Our scheduler against runs that vLLM 0.32.0 served in real time: who enters when, with nothing told but the instants.

Every request enters the queue before the first step that was planned after its arrival. Given when the steps were planned,
all contents of all steps have to follow, and with them every queue time.
"""

from typing import Any

import numpy as np
import pytest

from accuracy.measured.recordings import Recording
from tests.conformance.replay import Replay, recorded_steps
from tests.shared import shared

COMPARED = ("reqs", "new", "resumed", "preempted", "finished", "running", "waiting", "free_blocks")
STAMPS_S = 1e-6
"""The stamps are rounded to microseconds."""


def workload_of(recording: Recording, planned_at_s: Any) -> dict[str, Any]:
    """Returns a recorded run in the form of a workload; each request arrives before the first step planned after it did."""
    table = recording.requests.sort_values("arrival_s", kind="stable")
    steps = np.searchsorted(planned_at_s, table["arrival_s"].to_numpy() - STAMPS_S)
    fresh = iter(range(10**6, 10**9))  # tokens that nobody shares
    requests = []
    for (place, row), step in zip(table.iterrows(), steps.tolist(), strict=True):
        prompt = recording.prompts[int(str(place))] if recording.prompts else [next(fresh) for _ in range(row["prompt_len"])]
        output = [next(fresh) for _ in range(row["output_len"])]
        request = {"id": row["id"], "arrival_step": step, "prompt": prompt, "output_len": len(output), "output_ids": output}
        requests.append(request)
    return {**recording.meta, "requests": requests}


@pytest.mark.parametrize("name", ["poisson_low", "poisson_mid", "poisson_high", "prefix"])
def test_a_request_is_scheduled_in_the_step_in_which_it_really_was(name: str) -> None:
    recording = Recording(shared("data/live_cpu"), name)
    theirs = list(recorded_steps(recording.steps_path))
    planned_at_s = np.array([step["t0"] for step in theirs])
    ours = list(Replay(workload_of(recording, planned_at_s)).steps())
    assert len(ours) == len(theirs) > 900
    for number, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        assert {key: our[key] for key in COMPARED} == {key: their[key] for key in COMPARED}, f"step {number}"
    table = recording.requests.set_index("id")
    for step in theirs:
        for request in step["new"]:  # the recorded queue time ends where planning begins, as ours does
            assert float(table.at[request, "first_sched_s"]) == pytest.approx(step["t0"], abs=STAMPS_S)
