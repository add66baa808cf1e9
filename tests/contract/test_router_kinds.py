"""Every router of the table keeps the contract, and a choice that is none is one clear line."""

from typing import Any

import pytest

import routers
from experiments.contracts import RouterContract
from experiments.contracts.fleets import Script, arrivals, run
from experiments.contracts.router import NUM_REPLICAS
from routers.pick import router
from sim.errors import ConfigError
from sim.records import RouterView

OPTIONS = {"power_of_d_choices": {"d": NUM_REPLICAS}}
"""With as many choices as replicas it sees them all, and has to balance as well as the others."""


class TestEveryRouter(RouterContract):
    @pytest.fixture(autouse=True, params=sorted(routers.KINDS))
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.router = routers.KINDS[request.param]
        self.options = self.router.options(**OPTIONS.get(request.param, {}))


@router
def choose_99(view: RouterView) -> int:
    """A compiled router that is wrong."""
    return 99


WRONG_CHOICES = [99, -1, None, "main", 0.5, 1.0, [0], {}]


@pytest.mark.parametrize("choice", WRONG_CHOICES)
def test_a_choice_that_is_no_candidate_is_one_clear_line(choice: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        run(arrivals([(0.0, 10, 1)]), replicas=2, router=lambda view: choice)
    name = "test_a_choice_that_is_no_candidate_is_one_clear_line.<locals>.<lambda>"
    said = f"chose {choice!r} for request 0; the candidates are [0, 1]"
    assert str(raised.value) == f"router {__name__}:{name}: {said}"


def test_a_compiled_choice_that_is_no_candidate_is_the_same_line() -> None:
    with pytest.raises(ConfigError, match=r"^router \S+:choose_99: chose 99 for request 0; the candidates are \[0, 1\]$"):
        run(arrivals([(0.0, 10, 1)]), replicas=2, router=choose_99)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_wrong_choice_for_a_request_that_had_to_wait_is_the_same_line(is_compiled: bool) -> None:
    """No replica is ready before 60 s; the router is asked then."""
    wrong: Any = choose_99 if is_compiled else lambda view: 99
    with pytest.raises(ConfigError, match=r"^router \S+: chose 99 for request 0; the candidates are \[0\]$"):
        run(arrivals([(0.0, 10, 1)]), router=wrong, warm_start=False)


def test_a_closed_replica_is_no_candidate() -> None:
    """Slot 1 drains from 2 s on; a router that goes on choosing it is told so."""
    with pytest.raises(ConfigError, match=r"^router \S+: chose 1 for request \d+; the candidates are \[0\]$"):
        run(
            arrivals([(0.5 * i, 10, 10) for i in range(20)]),
            router=lambda view: 1,
            max_replicas=2,
            autoscaler=Script([2, 1]),
            interval_s=2.0,
        )
