"""`round_robin`: one after the other."""

from routers.pick import router
from sim.records import RouterView


@router
def choose(view: RouterView) -> int:
    """Sends requests to the ready replicas in turn, in the order they became ready, whatever each request costs."""
    turn = view.memory[0]
    view.memory[0] += 1
    return view.candidates[turn % view.candidates.size]
