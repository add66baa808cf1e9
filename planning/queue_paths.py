"""First-come-first-served queues, path by path: what each request waits when arrivals and services are given."""

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.checks import check_whole

Floats = NDArray[np.float64]


def waits_s(gaps_s: Floats, services_s: Floats) -> Floats:
    """Returns the wait of each request at one server.

    Args:
        gaps_s: (n,) seconds since the arrival before; the first is not looked at.
        services_s: (n,) seconds of service.

    Source: Lindley (1952), unrolled to a running minimum as in docs/sources.md [1], Queues and headroom.

    >>> waits_s(np.array([0.0, 1.0, 1.0, 5.0]), np.array([3.0, 1.0, 1.0, 1.0])).tolist()
    [0.0, 2.0, 2.0, 0.0]
    """
    _check(gaps_s, services_s)
    walk = np.concatenate([[0.0], np.cumsum(services_s[:-1] - gaps_s[1:])])
    waits: Floats = walk - np.minimum.accumulate(walk)
    return waits


def waits_in_one_line_s(gaps_s: Floats, services_s: Floats, servers: int) -> Floats:
    """Returns the wait of each request where `servers` servers share one line.

    Source: Kiefer and Wolfowitz (1955).

    >>> waits_in_one_line_s(np.zeros(3), np.array([2.0, 2.0, 2.0]), 2).tolist()
    [0.0, 0.0, 2.0]
    """
    _check(gaps_s, services_s)
    check_whole("servers", servers)
    free_at_s, now_s, waits = [0.0] * servers, 0.0, []
    for gap_s, service_s in zip(gaps_s.tolist(), services_s.tolist(), strict=True):
        now_s += gap_s
        start_s = max(now_s, free_at_s[0])
        heapq.heapreplace(free_at_s, start_s + service_s)
        waits.append(start_s - now_s)
    return np.array(waits)


def waits_at_random_s(gaps_s: Floats, services_s: Floats, servers: int, rng: np.random.Generator) -> Floats:
    """Returns the wait of each request where every server has a line and requests choose one at random."""
    _check(gaps_s, services_s)
    check_whole("servers", servers)
    chosen, arrived_at_s = rng.integers(servers, size=len(gaps_s)), np.cumsum(gaps_s)
    waits = np.empty(len(gaps_s))
    for server in range(servers):
        mine = np.flatnonzero(chosen == server)
        if len(mine):
            waits[mine] = waits_s(np.diff(arrived_at_s[mine], prepend=0.0), services_s[mine])
    return waits


def _check(gaps_s: Any, services_s: Any) -> None:
    if gaps_s.shape != services_s.shape or not len(gaps_s):
        raise ValueError(
            f"gaps_s and services_s must be as long as each other and not empty, got {len(gaps_s)}, {len(services_s)}"
        )
    if not (np.isfinite(gaps_s).all() and np.isfinite(services_s).all() and gaps_s.min() >= 0 and services_s.min() >= 0):
        raise ValueError("gaps_s and services_s must be finite and not negative")
