"""What routers share: their decorator, their random numbers, and the pick of the lowest score.

Most routers are a score and `pick_lowest`. Equal scores are settled by a seeded draw, and only then is one made, so a
policy without ties is the same function of the loads in every run.
"""

from typing import Any

from sim.compiled import F, loop, verb
from sim.records import RouterView


def router(function: F) -> F:
    """Has a router, or what observes for it, compiled when it is first needed, for the memory and options that it declares.

    Its cache serves every process.
    """
    return loop()(function)


@verb
def random_below(view: RouterView, n: int) -> int:
    """Returns a seeded draw from 0 to n - 1.

    Source: L'Ecuyer (1988), Efficient and portable combined random number generators, CACM 31(6): period 2.3e18, and
    nothing overflows 64 bits, compiled or not.
    """
    random = view.random
    random[0] = 40014 * random[0] % 2147483563
    random[1] = 40692 * random[1] % 2147483399
    return (random[0] - random[1]) % 2147483562 % n


@verb
def pick_lowest(score: Any, view: RouterView) -> int:
    """Returns the candidate whose `score(load, request)` is lowest; ties are drawn among. O(candidates), in one pass."""
    loads, candidates, request = view.loads, view.candidates, view.request
    best, num_ties = 0, 1
    lowest = score(load_of(loads, candidates[0]), request)
    for k in range(1, candidates.size):
        found = score(load_of(loads, candidates[k]), request)
        if found <= lowest:
            num_ties = num_ties + 1 if found == lowest else 1
            if num_ties == 1:
                best, lowest = k, found
    for _ in range(random_below(view, num_ties) if num_ties > 1 else 0):
        best += 1
        while score(load_of(loads, candidates[best]), request) != lowest:
            best += 1
    return candidates[best]


@verb
def is_candidate(view: RouterView, r: int) -> bool:
    """Tells whether replica `r` takes the request that is to be routed. O(candidates)."""
    num_found = 0
    for candidate in view.candidates:
        num_found += candidate == r
    return num_found > 0


@verb
def load_of(loads: Any, r: int) -> Any:
    """Returns the load of replica `r`. That a slot is never negative, which the mask says, makes the pass a sixth faster."""
    return loads[r & 0x7FFFFFFF]
