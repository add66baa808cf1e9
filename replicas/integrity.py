"""Counts again, the slow way, what the verbs keep in running sums."""

from typing import Any

import numba as nb

from replicas.kv_blocks import blocks_for, computed_tokens
from replicas.queues import slot_of
from sim.compiled import loop
from sim.records import FLEET_TYPE, NONE, Fleet

LONGEST_QUEUE = 10_000


@loop(nb.types.void(FLEET_TYPE, nb.types.int64, nb.types.int64[::1]))
def recount(fleet: Fleet, r: int, counts: Any) -> None:
    """Walks replica `r`'s lists and fills `counts`, (5,): running, waiting, held blocks, held tokens, waiting tokens.

    A queue of more than `LONGEST_QUEUE` is taken at its word: in an overload, recounting it would take longer than the run.
    """
    replica = fleet.replicas[r]
    counts[:] = 0
    i = replica.running.head
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        num_tokens = computed_tokens(request, replica.num_steps - 1)
        counts[0] += 1
        counts[2] += blocks_for(num_tokens, fleet.engines[replica.pool].block_size)
        counts[3] += num_tokens
        i = request.next
    load = fleet.loads[r]
    if load.num_waiting > LONGEST_QUEUE:
        counts[1], counts[4] = load.num_waiting, load.waiting_tokens
        return
    i = replica.waiting.head
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        counts[1] += 1
        counts[4] += request.num_prompt_tokens + request.num_generated_tokens
        i = request.next
