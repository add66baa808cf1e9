"""`least_loaded`: the fewest requests, waiting or running."""

from typing import Any

from routers.pick import pick_lowest, router
from sim.compiled import verb
from sim.records import RouterView


@verb
def num_requests(load: Any, request: Any) -> int:
    """Returns the requests on a replica, waiting or running."""
    return load.num_waiting + load.num_running


@router
def choose(view: RouterView) -> int:
    """Sends each request to the replica with the fewest requests, however long they are; ties are drawn among."""
    return pick_lowest(num_requests, view)
