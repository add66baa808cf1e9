"""What becomes of a replica's requests when its machine goes before they are done."""

import numba as nb
import numpy as np

from replicas.block_pool import fill_pool
from replicas.delivery import leave
from replicas.events import set_next_end
from replicas.queues import append_unrouted, sequence_of, slot_of
from sim.compiled import loop, verb
from sim.records import DECODING, DRAIN_TIMEOUT, FAILED, FLEET_TYPE, LAST_TOKEN, NONE, SURPLUS, UNROUTED, Fleet


@verb
def evict_one(fleet: Fleet, r: int, i: int, requeue: bool) -> None:
    """Takes one request off replica `r`; tokens still on the device are lost."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    running_step = replica.num_steps - 1 - replica.is_planned
    if request.phase == DECODING or request.phase == SURPLUS or request.phase == LAST_TOKEN:
        delivered = request.num_output_tokens - (request.last_step - (running_step - replica.is_running))
        if delivered > request.num_generated_tokens:
            request.num_generated_tokens = delivered
            request.last_token_at_s = replica.last_step_ended_at_s
    elif replica.is_running and request.last_step == running_step:  # preempted or passed over, its token on the device
        request.num_generated_tokens -= 1
        if request.last_token_at_s == fleet.batches[r, running_step & 1].ends_at_s:
            request.last_token_at_s = replica.last_step_ended_at_s
    request.num_computed_tokens = request.is_skipped = 0
    request.last_step = NONE
    sequence_of(fleet, i).num_drafts = sequence_of(fleet, i).num_placeholders = 0
    if requeue:
        fleet.seen[r].num_inflight -= 1
        request.phase = UNROUTED
        append_unrouted(fleet, i)
    else:
        request.reason = DRAIN_TIMEOUT
        leave(fleet, r, i, FAILED, fleet.clock[0].now_s)


@loop(nb.types.void(FLEET_TYPE, nb.types.int64))
def clear(fleet: Fleet, r: int) -> None:
    """Empties replica `r`: no requests, no steps, all blocks free."""
    replica, load = fleet.replicas[r], fleet.loads[r]
    replica.running.head = replica.running.tail = replica.waiting.head = replica.waiting.tail = NONE
    replica.num_decoding = replica.decoding_context_tokens = replica.num_catching_up = replica.num_surplus = 0
    replica.num_masks = 0
    replica.is_running = replica.is_planned = 0
    load.num_waiting = load.num_running = load.waiting_tokens = load.running_tokens = 0
    load.num_free_blocks = load.num_usable_blocks
    fleet.due[r, :] = NONE
    for residue in range(fleet.growing.shape[1]):
        growing = fleet.growing[r, residue]
        growing.num_decodes, growing.head, growing.tail = 0, NONE, NONE
    for k in range(fleet.lore.shape[1]):
        fleet.lore[r, k].grammar_ready_at_s, fleet.lore[r, k].adapter_step = np.inf, NONE
    if fleet.engines[replica.pool].enable_prefix_caching:
        fill_pool(fleet, r)
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
