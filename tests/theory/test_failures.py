"""Machines that fail: how often they do, and how many are left."""

import numpy as np
import pytest

from experiments.contracts.fleets import arrivals, run
from replicas.lifecycle import Lifecycle

MEAN_S, NUM, SPAN_S = 100.0, 10, 6000.0


def test_machines_fail_at_the_stated_rate_and_are_replaced_at_the_next_look() -> None:
    """Failures are a Poisson process over the machines' ready time: n of them in T say 1 / mean to 1 / sqrt(n).

    A failed one is missed at the next look, every second, and its successor takes 9 s: 9.5 s in all on average, so a share
    100 / 109.5 of the time is ready. The share's standard error follows from the count of failures.
    """
    draw = Lifecycle(mean_time_to_failure_s=MEAN_S).time_to_failure_s(np.random.default_rng(5))
    ran = run(
        arrivals([(0.0, 10, 1)]),
        replicas=NUM,
        interval_s=1.0,
        stages=lambda: [("ready_at_s", 9.0)],
        time_to_failure_s=draw,
        ends_at_s=SPAN_S,
    )
    machines = ran.simulation.machines
    ready_s = sum((one.released_at_s or SPAN_S) - one.ready_at_s for one in machines if one.ready_at_s is not None)
    num_failed = sum(one.reason == "failed" for one in machines)
    error = 1 / np.sqrt(num_failed)
    assert error < 0.05
    assert num_failed / ready_s == pytest.approx(1 / MEAN_S, rel=4 * error)
    away_share = 9.5 / (MEAN_S + 9.5)
    assert 1 - ready_s / (NUM * SPAN_S) == pytest.approx(away_share, rel=4 * error)


def test_none_fails_unless_asked() -> None:
    assert Lifecycle().time_to_failure_s(np.random.default_rng(1)) is None
