"""Counts again, the slow way, what the verbs keep in running sums."""

from typing import Any

import numba as nb
import numpy as np

from replicas import door
from replicas.gateway import engine_refusal
from replicas.queues import slot_of
from sim.compiled import loop, verb
from sim.records import NO_REASON, NONE, Fleet
from sim.signatures import FLEET_TYPE

LONGEST_QUEUE = 10_000


@verb
def before_first(request: Any) -> int:
    """Returns a request's prompt tokens, 0 once it has a token."""
    return request.num_prompt_tokens if np.isnan(request.first_token_at_s) else 0


@loop(nb.types.void(FLEET_TYPE, nb.types.int64, nb.types.int64[::1]))
def recount(fleet: Fleet, r: int, counts: Any) -> None:
    """Walks replica `r`'s lists and fills `counts`, (6,), as `DataPlane.recounts` says.

    A queue of more than `LONGEST_QUEUE` is taken at its word: in an overload, recounting it would take longer than the run.
    """
    replica, load = fleet.replicas[r], fleet.loads[r]
    counts[:] = 0
    i = replica.running.head
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        counts[0] += 1
        counts[5] += before_first(request)
        i = request.next
    door.recount(fleet, r, counts)
    if load.num_waiting > LONGEST_QUEUE:
        counts[1], counts[4], counts[5] = load.num_waiting, load.waiting_tokens, replica.tokens_before_first
        return
    for k in range(fleet.lines.shape[1]):
        i = fleet.lines[r, k].queue.head
        while i != NONE:
            request = fleet.requests[slot_of(fleet, i)]
            counts[1] += 1
            counts[4] += request.num_prompt_tokens + request.num_generated_tokens
            counts[5] += before_first(request)
            i = request.next


@loop(nb.types.void(FLEET_TYPE, nb.types.int64[:, ::1]))
def recount_unrouted(fleet: Fleet, counts: Any) -> None:
    """Walks those that no replica could take, and adds them to `counts`, (num_pools, 3), as `fleet.unrouted` is."""
    i = fleet.clock[0].unrouted.head
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        for pool in range(fleet.engines.size):
            if engine_refusal(fleet, pool, i) == NO_REASON:
                counts[pool, 0] += 1
                counts[pool, 1] += request.num_prompt_tokens + request.num_generated_tokens
                counts[pool, 2] += np.isnan(request.routed_at_s)
        i = request.next
