"""What becomes of a replica's requests when its machine goes before they are done."""

import numba as nb
import numpy as np

from replicas.batches import batch_of, oldest_batch, oldest_step
from replicas.block_pool import fill_pool
from replicas.delivery import count_in_flight, leave
from replicas.events import set_next_end
from replicas.gateway import append_unrouted
from replicas.queues import look_from_the_front, next_waiting, own_line, sequence_of, slot_of
from replicas.speculation import forget_steps
from sim.compiled import loop, verb
from sim.observing import note
from sim.records import CLEARED, DECODING, ENDED_ON, FAILED, LAST_TOKEN, NONE, SURPLUS, UNROUTED, Fleet
from sim.signatures import FLEET_TYPE


@verb
def evict_one(fleet: Fleet, r: int, i: int, requeue: bool, reason: int) -> None:
    """Takes one request off replica `r`; tokens still on the device are lost."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    running_step = oldest_step(fleet, r)
    if request.phase == DECODING or request.phase == SURPLUS or request.phase == LAST_TOKEN:
        delivered = request.num_output_tokens - (request.last_step - (running_step - 1))
        if delivered > request.num_generated_tokens:
            request.num_generated_tokens = delivered
            request.last_token_at_s = replica.last_step_ended_at_s
    elif replica.num_in_flight > 0 and request.last_step == running_step:  # preempted or passed over, its token on the device
        request.num_generated_tokens -= 1
        if request.last_token_at_s == oldest_batch(fleet, r).ends_at_s:
            request.last_token_at_s = replica.last_step_ended_at_s
    request.num_computed_tokens = 0
    request.last_step = NONE
    forget_steps(fleet, i)
    sequence_of(fleet, i).last_planned_step = NONE
    if requeue:
        count_in_flight(fleet, r, i, -1)
        note(fleet, ENDED_ON, r, i, request.num_generated_tokens)
        request.phase = UNROUTED
        append_unrouted(fleet, i)
    else:
        request.reason = reason
        leave(fleet, r, i, FAILED, fleet.clock[0].now_s)


@loop(nb.types.void(FLEET_TYPE, nb.types.int64))
def clear(fleet: Fleet, r: int) -> None:
    """Empties replica `r`: no requests, no steps, all blocks free."""
    replica, load = fleet.replicas[r], fleet.loads[r]
    replica.running.head = replica.running.tail = NONE
    for k in range(fleet.lines.shape[1]):
        line = fleet.lines[r, k]
        line.queue.head = line.queue.tail = line.last_inserted = line.last_passed_by = NONE
        line.num_passed_by = 0
    replica.num_decoding = replica.decoding_context_tokens = replica.num_catching_up = replica.num_surplus = 0
    replica.num_masks = replica.is_saturated = replica.tokens_before_first = 0
    replica.num_in_flight = replica.num_empty = replica.num_plans = 0
    fleet.stages[r, :] = 0.0
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
    note(fleet, CLEARED, r, NONE, 0)


@loop(nb.types.int64(FLEET_TYPE, nb.types.int64, nb.types.boolean, nb.types.int64))
def evict(fleet: Fleet, r: int, requeue: bool, reason: int) -> int:
    """Takes every request off replica `r`, sends it back to the router or fails it, and returns how many there were.

    A request that goes back keeps the tokens it has sent; the next replica recomputes them with its prompt.
    """
    replica = fleet.replicas[r]
    num_evicted = 0
    i = replica.running.head
    while i != NONE:
        following = fleet.requests[slot_of(fleet, i)].next
        evict_one(fleet, r, i, requeue, reason)
        num_evicted += 1
        i = following
    look_from_the_front(fleet, r)
    i = next_waiting(fleet, r)
    while i != NONE:
        own_line(fleet, r, i).cursor = fleet.requests[slot_of(fleet, i)].next
        evict_one(fleet, r, i, requeue, reason)
        num_evicted += 1
        i = next_waiting(fleet, r)
    if num_evicted > 0 and replica.num_in_flight > 0 and fleet.engines[replica.pool].num_stages == 1:
        replica.busy_s -= max(batch_of(fleet, r, replica.num_steps - 1).ends_at_s - fleet.clock[0].now_s, 0.0)
    clear(fleet, r)
    set_next_end(fleet, r, float("inf"))
    return num_evicted
