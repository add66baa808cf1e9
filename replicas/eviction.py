"""What becomes of a replica's requests when its machine goes before they are done."""

import numba as nb

from replicas import door
from replicas.batches import batch_of
from replicas.delivery import count_in_flight, leave
from replicas.events import set_next_end
from replicas.gateway import append_unrouted
from replicas.queues import slot_of
from sim.compiled import loop, verb
from sim.observing import note
from sim.records import CLEARED, ENDED_ON, FAILED, NONE, UNROUTED, Fleet
from sim.signatures import FLEET_TYPE


@verb
def send_away(fleet: Fleet, r: int, i: int, requeue: bool, reason: int) -> None:
    """Sends request `i`, which replica `r`'s engine has let go, back to the router, or fails it."""
    request = fleet.requests[slot_of(fleet, i)]
    request.num_computed_tokens = 0
    request.last_step = NONE
    if requeue:
        count_in_flight(fleet, r, i, -1)
        note(fleet, ENDED_ON, r, i, request.num_generated_tokens)
        request.phase = UNROUTED
        append_unrouted(fleet, i)
    else:
        request.reason = reason
        leave(fleet, r, i, FAILED, fleet.clock[0].now_s)


@verb
def empty(fleet: Fleet, r: int) -> None:
    """Empties replica `r`: no requests, no steps, all blocks free."""
    door.clear(fleet, r)
    note(fleet, CLEARED, r, NONE, 0)


@loop(nb.types.void(FLEET_TYPE, nb.types.int64))
def clear(fleet: Fleet, r: int) -> None:
    """Empties replica `r`, for Python."""
    empty(fleet, r)


@loop(nb.types.int64(FLEET_TYPE, nb.types.int64, nb.types.boolean, nb.types.int64))
def evict(fleet: Fleet, r: int, requeue: bool, reason: int) -> int:
    """Takes every request off replica `r`, sends it back to the router or fails it, and returns how many there were.

    A request that goes back keeps the tokens it has sent; the next replica recomputes them with its prompt.
    """
    replica = fleet.replicas[r]
    num_evicted = 0
    i = door.evict(fleet, r)
    while i != NONE:
        send_away(fleet, r, i, requeue, reason)
        num_evicted += 1
        i = door.evict(fleet, r)
    if num_evicted > 0 and replica.num_in_flight > 0 and fleet.engines[replica.pool].num_stages == 1:
        replica.busy_s -= max(batch_of(fleet, r, replica.num_steps - 1).ends_at_s - fleet.clock[0].now_s, 0.0)
    empty(fleet, r)
    set_next_end(fleet, r, float("inf"))
    return num_evicted
