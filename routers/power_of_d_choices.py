"""`power_of_d_choices`: the better of a few drawn at random, by outstanding tokens."""

from routers.least_tokens import outstanding_tokens
from routers.pick import random_below, router
from sim.compiled import verb
from sim.records import RouterView


@verb
def draw_another(view: RouterView, n: int, num_drawn: int) -> int:
    """Returns a draw from 0 to n - 1 that differs from the `num_drawn` earlier ones; `view.memory` has them."""
    drawn = -1
    while drawn < 0:
        drawn = random_below(view, n)
        for k in range(num_drawn):
            if view.memory[k] == drawn:
                drawn = -1
    view.memory[num_drawn] = drawn
    return drawn


@router
def choose(view: RouterView) -> int:
    """Draws `d` different replicas and sends the request to the one with the fewest outstanding tokens; O(d).

    Ties go to the one drawn first. Source: Mitzenmacher (2001), The power of two choices in randomized load balancing.
    """
    loads, candidates, request = view.loads, view.candidates, view.request
    d = min(view.options.d, candidates.size)
    best = draw_another(view, candidates.size, 0)
    for k in range(1, d):
        other = draw_another(view, candidates.size, k)
        if outstanding_tokens(loads[candidates[other]], request) < outstanding_tokens(loads[candidates[best]], request):
            best = other
    return candidates[best]
