"""`least_loaded`: the fewest requests, waiting or running."""

from typing import Any

from routers.pick import pick_lowest, router
from sim.records import RouterState


@router
def choose(loads: Any, candidates: Any, request: Any, state: RouterState) -> int:
    """Sends each request to the replica with the fewest requests, however long they are; ties are drawn among."""
    for k in range(candidates.size):
        load = loads[candidates[k]]
        state.scores[k] = load.num_waiting + load.num_running
    return pick_lowest(candidates, state)
