"""`random`: any ready replica, with equal chances."""

from routers.pick import random_below, router
from sim.records import RouterView


@router
def choose(view: RouterView) -> int:
    """Sends each request anywhere: the baseline that every other router must beat."""
    return view.candidates[random_below(view, view.candidates.size)]
