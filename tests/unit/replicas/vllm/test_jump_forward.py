"""Jump-forward decoding: text that a grammar forces costs one step, not one a token."""

import pytest

from experiments.contracts.fleets import arrivals, classes, engine, run
from replicas.surrogate import Surrogate

FORCED = (0, 0, 0, 0.0, 2, 3)  # after every two tokens that the grammar leaves open, three are forced


def test_forced_tokens_come_at_once_and_cost_one_step() -> None:
    """Ten tokens, steps of 1 s: oo, fff, oo, fff come at 1, 2 (with its three), 3, 4 (with its three)."""
    ran = run(arrivals([(0.0, 4, 10, 0)]), engine(overhead_s=1.0, jump_forward=1), classes=classes(FORCED))
    request = ran.requests[0]
    assert (request.first_token_at_s, request.finished_at_s) == (1.0, 4.0)
    assert ran.plane.fleet.replicas[0].num_steps == 4
    assert ran.plane.fleet.itl_sums[0].tolist() == [3.0, 3.0, 1.0]  # nine gaps: three of a second, six of nothing
    assert ran.plane.fleet.itl_counts.sum() == 9


def test_without_it_each_forced_token_costs_a_step() -> None:
    ran = run(arrivals([(0.0, 4, 10, 0)]), engine(overhead_s=1.0), classes=classes(FORCED))
    assert ran.requests[0].finished_at_s == 10.0


def test_the_forced_tokens_are_computed_like_a_short_prefill() -> None:
    """A token of the batch costs 1 s: prefill 4, then 1, then 1 + 3 forced, then 1; the last three need no KV."""
    limits = engine(overhead_s=0.0, flops_per_token=1.0, flops_per_s=1.0, jump_forward=1)
    ran = run(arrivals([(0.0, 4, 10, 0)]), limits, classes=classes(FORCED))
    assert ran.requests[0].finished_at_s == 4 + 1 + 4 + 1


def test_free_text_beside_it_is_not_touched() -> None:
    rows = arrivals([(0.0, 4, 10, 0), (0.0, 4, 10, 1)])
    ran = run(rows, engine(overhead_s=1.0, jump_forward=1), classes=classes(FORCED, (0, 0, 0, 0.0)))
    assert ran.requests.finished_at_s.tolist() == [4.0, 10.0]


def test_async_scheduling_is_refused() -> None:
    with pytest.raises(ValueError, match="jump_forward needs async_scheduling false"):
        Surrogate(jump_forward=True)
