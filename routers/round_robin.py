"""`round_robin`: one after the other."""

from typing import Any

from routers.pick import router
from sim.records import RouterState


@router
def choose(loads: Any, candidates: Any, request: Any, state: RouterState) -> int:
    """Sends requests to the ready replicas in turn, in the order they became ready, whatever each request costs."""
    turn = state.memory[0]
    state.memory[0] += 1
    return candidates[turn % candidates.size]
