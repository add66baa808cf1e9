"""`least_tokens`: the least outstanding work, counted in tokens."""

from typing import Any

from routers.pick import pick_lowest, router
from sim.compiled import verb
from sim.records import RouterView


@verb
def outstanding_tokens(load: Any, request: Any) -> int:
    """Returns twice the queued tokens plus the running ones, whose prefill is already paid.

    Source: docs/sources.md [2], "Replica selection": `effective_load` is queued + running / 2, here doubled to stay whole.
    """
    return 2 * load.waiting_tokens + load.running_tokens


@router
def choose(view: RouterView) -> int:
    """Sends each request where the fewest tokens are outstanding; ties are drawn among."""
    return pick_lowest(outstanding_tokens, view)
