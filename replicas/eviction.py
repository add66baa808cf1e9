"""What becomes of a replica's requests when its machine goes before they are done."""

import numba as nb

from replicas.delivery import leave
from replicas.events import set_next_end
from replicas.queues import append_unrouted, slot_of
from sim.compiled import loop, verb
from sim.records import DECODING, DRAIN_TIMEOUT, FAILED, FLEET_TYPE, LAST_TOKEN, NONE, UNROUTED, WAITING, Fleet


@verb
def evict_one(fleet: Fleet, r: int, i: int, requeue: bool) -> None:
    """Takes one request off replica `r`; tokens still on the device are lost."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    running_step = replica.num_steps - 1 - replica.is_planned
    if request.phase == DECODING or request.phase == LAST_TOKEN:
        delivered = request.num_output_tokens - (request.last_step - (running_step - replica.is_running))
        if delivered > request.num_generated_tokens:
            request.num_generated_tokens = delivered
            request.last_token_at_s = replica.last_step_ended_at_s
    elif request.phase == WAITING and replica.is_running and request.last_step == running_step:
        request.num_generated_tokens -= 1
        if request.last_token_at_s == fleet.batches[r, running_step & 1].ends_at_s:
            request.last_token_at_s = replica.last_step_ended_at_s
    request.num_computed_tokens = 0
    request.last_step = NONE
    if requeue:
        fleet.seen[r].num_inflight -= 1
        request.phase = UNROUTED
        append_unrouted(fleet, i)
    else:
        request.reason = DRAIN_TIMEOUT
        leave(fleet, r, i, FAILED, fleet.clock[0].now_s)


@verb
def clear(fleet: Fleet, r: int) -> None:
    """Empties replica `r`: no requests, no steps, all blocks free."""
    replica, load = fleet.replicas[r], fleet.loads[r]
    replica.running.head = replica.running.tail = replica.waiting.head = replica.waiting.tail = NONE
    replica.prefilling = NONE
    replica.num_decoding = replica.decoding_context_tokens = 0
    replica.is_running = replica.is_planned = 0
    load.num_waiting = load.num_running = load.waiting_tokens = load.running_tokens = 0
    load.num_free_blocks = load.num_usable_blocks
    fleet.due[r, :] = NONE
    fleet.growing[r, :] = 0
    set_next_end(fleet, r, float("inf"))


@loop(nb.types.int64(FLEET_TYPE, nb.types.int64, nb.types.boolean))
def evict(fleet: Fleet, r: int, requeue: bool) -> int:
    """Takes every request off replica `r`, sends it back to the router or fails it, and returns how many there were.

    A request that goes back keeps the tokens it has sent; the next replica recomputes them with its prompt.
    """
    replica = fleet.replicas[r]
    num_evicted = 0
    for i in (replica.running.head, replica.waiting.head):
        while i != NONE:
            following = fleet.requests[slot_of(fleet, i)].next
            evict_one(fleet, r, i, requeue)
            num_evicted += 1
            i = following
    clear(fleet, r)
    return num_evicted
