"""`power_of_d_choices`: the better of a few drawn at random, by outstanding tokens."""

from typing import Any

from routers.least_tokens import outstanding_tokens
from routers.pick import random_below, router
from sim.compiled import verb
from sim.records import RouterState


@verb
def draw_another(state: RouterState, n: int, num_drawn: int) -> int:
    """Returns a draw from 0 to n - 1 that differs from the `num_drawn` earlier ones; `state.drawn` remembers them."""
    drawn = -1
    while drawn < 0:
        drawn = random_below(state, n)
        for k in range(num_drawn):
            if state.drawn[k] == drawn:
                drawn = -1
    state.drawn[num_drawn] = drawn
    return drawn


@router
def choose(loads: Any, candidates: Any, request: Any, state: RouterState) -> int:
    """Draws `d` different replicas and sends the request to the one with the fewest outstanding tokens; O(d).

    Ties go to the one drawn first. Source: Mitzenmacher (2001), The power of two choices in randomized load balancing.
    """
    d = min(int(state.options[0]), candidates.size)
    best = draw_another(state, candidates.size, 0)
    for k in range(1, d):
        other = draw_another(state, candidates.size, k)
        if outstanding_tokens(loads[candidates[other]], request) < outstanding_tokens(loads[candidates[best]], request):
            best = other
    return candidates[best]
