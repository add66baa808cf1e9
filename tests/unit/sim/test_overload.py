"""More arrive than can be served: what a request costs does not grow with the queue, nor does a look at those that wait."""

import json
import subprocess
import sys
from typing import Any

import pytest

from experiments.contracts.fleets import arrivals, classes, engine, run
from sim.invariants import Audit
from sim.records import FAILED, FINISHED, Fleet
from tests.commands import ENVIRONMENT, ROOT
from tests.looks import FEW, MANY


def test_a_request_costs_as_much_in_a_queue_twice_as_long() -> None:
    """Within 10 %: the first and the last few see another queue. Where a queue is walked, it is 1.4 to 1.7 times as much."""
    assert MANY == 2 * FEW
    command = [sys.executable, "-m", "tests.looks"]
    looks = json.loads(subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, check=True, capture_output=True).stdout)
    assert min(few for few, _ in looks.values()) > 1
    grown = {case: many / few for case, (few, many) in looks.items()}
    assert {case: factor for case, factor in grown.items() if factor > 1.1} == {}


def test_a_count_of_those_that_wait_for_a_replica_is_what_a_walk_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines come late and fail; requests wait before the first, come back from the others, and some fit no longer.

    Invariant 4 compares the two at every look.
    """
    walked: list[list[int]] = []
    look = Audit.look

    def remembered(audit: Audit, fleet: Fleet, recounts: Any, unrouted: Any) -> None:
        walked.append(unrouted[0].tolist())
        look(audit, fleet, recounts, unrouted)

    monkeypatch.setattr(Audit, "look", remembered)
    rows = [(0.1 * i, 30 + i, 5 + i % 40, i % 2) for i in range(100)]
    lives = iter([3.0, 1.0, 4.0, 2.0, 5.0] + [1e6] * 50)
    ran = run(
        arrivals(rows),
        engine(max_num_seqs=3, num_usable_blocks=40, max_loras=1, overhead_s=0.05),
        classes=classes((0, 0, 0, 0.0), (0, 1, 50, 0.0)),
        replicas=2,
        warm_start=False,
        stages=lambda: [("ready_at_s", 1.5)],
        time_to_failure_s=lambda: next(lives),
        interval_s=0.5,
        timeline_interval_s=0.1,
    )
    assert set(ran.requests.status) <= {FINISHED, FAILED}
    assert [0, 0, 0] in walked
    assert any(num == num_new > 0 for num, _, num_new in walked)  # before the first machine is ready
    assert any(num > num_new for num, _, num_new in walked)  # after one failed
