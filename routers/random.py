"""`random`: any ready replica, with equal chances."""

from typing import Any

from routers.pick import random_below, router
from sim.records import RouterState


@router
def choose(loads: Any, candidates: Any, request: Any, state: RouterState) -> int:
    """Sends each request anywhere: the baseline that every other router must beat."""
    return candidates[random_below(state, candidates.size)]
