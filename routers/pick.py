"""What routers share: their decorator, their random numbers, and the pick of the lowest score.

A router scores the candidates and picks. Equal scores are settled by a seeded draw, and only then is one made, so a
policy without ties is the same function of the loads in every run.
"""

from collections.abc import Callable
from typing import Any

from sim.compiled import loop, verb
from sim.records import ROUTER_SIGNATURE, RouterState

Choose = Callable[[Any, Any, Any, RouterState], int]


def router(function: Choose) -> Choose:
    """Compiles a router with the one signature that the data plane calls; its cache serves every process."""
    return loop(ROUTER_SIGNATURE)(function)


@verb
def random_below(state: RouterState, n: int) -> int:
    """Returns a seeded draw from 0 to n - 1.

    Source: L'Ecuyer (1988), Efficient and portable combined random number generators, CACM 31(6): period 2.3e18, and
    nothing overflows 64 bits, compiled or not.
    """
    state.random[0] = 40014 * state.random[0] % 2147483563
    state.random[1] = 40692 * state.random[1] % 2147483399
    return (state.random[0] - state.random[1]) % 2147483562 % n


@verb
def pick_lowest(candidates: Any, state: RouterState) -> int:
    """Returns the candidate whose `state.scores` entry is lowest; ties are drawn among."""
    best, num_ties = 0, 1
    for k in range(1, candidates.size):
        if state.scores[k] < state.scores[best]:
            best, num_ties = k, 1
        elif state.scores[k] == state.scores[best]:
            num_ties += 1
    if num_ties > 1:
        best = nth_tie(state, best, random_below(state, num_ties))
    return candidates[best]


@verb
def nth_tie(state: RouterState, first: int, n: int) -> int:
    """Returns the place of the n-th score, counted from `first`, that equals the one at `first`."""
    k = first
    for _ in range(n):
        k += 1
        while state.scores[k] != state.scores[first]:
            k += 1
    return k
