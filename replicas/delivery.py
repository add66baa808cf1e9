"""What a step's end brings: tokens to the users, gaps to the histogram, and the finished out of the engine."""

from typing import Any

import numba as nb
import numpy as np

from replicas.batches import batch_of, oldest_batch
from replicas.counters import count_finished, count_first_token
from replicas.decodes import stop_decoding
from replicas.kv_blocks import free_blocks
from replicas.prefix_cache import register_blocks
from replicas.queues import client_of, leave_waiting, remove, sequence_of, slot_of
from replicas.rate_limit import settle
from replicas.speculation import count_accepted, count_forced, grows_unevenly, leave_batch
from sim.coming import note_end
from sim.compiled import loop, rare, verb
from sim.metrics import itl_bin
from sim.records import CALENDAR, CATCHING_UP, EXPECTED, FINISHED, GONE, NONE, SURPLUS, WAITING, Fleet
from sim.signatures import FLEET_TYPE


@verb
def deliver(fleet: Fleet, r: int, now_s: float) -> None:
    """Ends the oldest step in flight and hands out its tokens."""
    replica = fleet.replicas[r]
    batch = oldest_batch(fleet, r)
    replica.num_delivered_tokens += batch.num_decodes - batch.num_surplus
    count_gaps(fleet, replica.pool, now_s - replica.last_step_ended_at_s, batch.num_decodes - batch.num_surplus)
    if grows_unevenly(fleet.engines[replica.pool]):
        deliver_checked(fleet, r, now_s)
    else:
        i = batch.first_head
        while i != NONE:
            deliver_first(fleet, r, i, now_s)
            i = fleet.requests[slot_of(fleet, i)].first_next
    slot = batch.step & (CALENDAR - 1)
    if fleet.engines[replica.pool].enable_prefix_caching:
        sort_due(fleet, r, slot)
    i = fleet.due[r, slot]
    fleet.due[r, slot] = NONE
    while i != NONE:
        following = fleet.requests[slot_of(fleet, i)].due_next
        finish(fleet, r, i, now_s)
        i = following
    replica.last_step_ended_at_s = now_s
    replica.num_in_flight -= 1


@verb
def deliver_first(fleet: Fleet, r: int, i: int, now_s: float) -> None:
    """Delivers the token with which a request has caught up: its first, or the first after a preemption or a pass-over."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    replica.num_delivered_tokens += 1
    if np.isnan(request.first_token_at_s):
        request.first_token_at_s = now_s
        replica.tokens_before_first -= request.num_prompt_tokens
        count_first_token(fleet, replica.pool, request)
    else:
        count_gaps(fleet, replica.pool, now_s - request.last_token_at_s, 1)
    request.last_token_at_s = now_s


@verb
def count_gaps(fleet: Fleet, pool: int, gap_s: float, num_gaps: int) -> None:
    """Adds `num_gaps` equal gaps between tokens to the pool's histogram and sums."""
    if num_gaps > 0:
        fleet.itl_counts[pool, itl_bin(gap_s)] += num_gaps
        fleet.itl_sums[pool, 0] += num_gaps * gap_s
        fleet.itl_sums[pool, 1] += num_gaps * gap_s * gap_s
        fleet.itl_sums[pool, 2] = max(fleet.itl_sums[pool, 2], gap_s)


@rare
def sort_due(fleet: Fleet, r: int, slot: int) -> None:
    """Sorts those that end together in order of admission, as vLLM frees them: their blocks will be reused in that order."""
    i, fleet.due[r, slot] = fleet.due[r, slot], NONE
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        following, before, after = request.due_next, NONE, fleet.due[r, slot]
        while after != NONE and sequence_of(fleet, after).admission < sequence_of(fleet, i).admission:
            before, after = after, fleet.requests[slot_of(fleet, after)].due_next
        request.due_next = after
        if before == NONE:
            fleet.due[r, slot] = i
        else:
            fleet.requests[slot_of(fleet, before)].due_next = i
        i = following


@rare
def deliver_checked(fleet: Fleet, r: int, now_s: float) -> None:
    """Delivers what the ended step yields: for each request the drafts that hold, a token, and what that one forces."""
    replica = fleet.replicas[r]
    batch = oldest_batch(fleet, r)
    i = batch.first_head
    while i != NONE:
        following = sequence_of(fleet, i).caught_up_next[batch.half]
        settle_drafts(fleet, r, i, batch.half, now_s)
        if fleet.requests[slot_of(fleet, i)].num_generated_tokens == fleet.requests[slot_of(fleet, i)].num_output_tokens:
            for step in range(batch.step + 1, replica.num_steps):
                leave_batch(fleet, r, i, batch_of(fleet, r, step))
            finish(fleet, r, i, now_s)
        i = following


@verb
def settle_drafts(fleet: Fleet, r: int, i: int, half: int, now_s: float) -> None:
    """Delivers a request's tokens at one instant, and takes back what was computed for drafts that do not hold."""
    replica, load = fleet.replicas[r], fleet.loads[r]
    request, sequence = fleet.requests[slot_of(fleet, i)], sequence_of(fleet, i)
    engine = fleet.engines[replica.pool]
    num_accepted = count_accepted(fleet, r, i, sequence.num_real_drafts[half])
    num_rejected = sequence.num_scheduled_drafts[half] - num_accepted
    num_tokens = num_accepted + 1
    if engine.jump_forward:
        num_tokens += count_forced(fleet, i, request.num_generated_tokens + num_tokens)
    num_tokens = min(num_tokens, request.num_output_tokens - request.num_generated_tokens)
    deliver_first(fleet, r, i, now_s)
    replica.num_delivered_tokens += num_tokens - 1
    count_gaps(fleet, replica.pool, 0.0, num_tokens - 1)
    request.num_generated_tokens += num_tokens
    if request.phase == WAITING:  # preempted while this step was on the device
        load.waiting_tokens += num_tokens
        return
    request.num_computed_tokens -= num_rejected
    load.running_tokens -= num_rejected
    if engine.async_scheduling:
        sequence.num_placeholders -= num_rejected + num_tokens
        if engine.enable_prefix_caching:
            register_blocks(fleet, r, i, request.num_computed_tokens - sequence.num_placeholders)
    else:
        sequence.num_drafts = engine.num_speculative_tokens


@verb
def finish(fleet: Fleet, r: int, i: int, now_s: float) -> None:
    """Ends request `i` with its last token; its slot and blocks are free from here on."""
    replica, load, request = fleet.replicas[r], fleet.loads[r], fleet.requests[slot_of(fleet, i)]
    engine = fleet.engines[replica.pool]
    if request.phase == WAITING:  # preempted with its last token already on the device
        leave_waiting(fleet, r, i)
        load.num_waiting -= 1
        load.waiting_tokens -= request.num_prompt_tokens + request.num_generated_tokens
    else:
        if engine.enable_prefix_caching and engine.async_scheduling and not grows_unevenly(engine):
            register_blocks(fleet, r, i, request.num_prompt_tokens + request.num_output_tokens - 1)
        free_blocks(fleet, r, i, replica.num_steps - 1)
        if request.phase == SURPLUS:
            stop_decoding(fleet, r, i)
        elif request.phase == CATCHING_UP:
            replica.num_catching_up -= 1
        if fleet.classes[request.class_id].grammar_s > 0:
            replica.num_masks -= 1
        remove(fleet, replica.running, i)
        load.num_running -= 1
    request.num_generated_tokens = request.num_output_tokens
    request.last_token_at_s = now_s
    leave(fleet, r, i, FINISHED, now_s)


@verb
def leave(fleet: Fleet, r: int, i: int, status: int, now_s: float) -> None:
    """Takes request `i` off replica `r` for good."""
    count_in_flight(fleet, r, i, -1)
    if status == FINISHED:
        count_finished(fleet, fleet.replicas[r].pool, fleet.requests[slot_of(fleet, i)], now_s)
    end(fleet, i, status, now_s)


@verb
def count_in_flight(fleet: Fleet, r: int, i: int, change: int) -> None:
    """Changes the number of requests in flight on replica `r` that the router counts itself, and that of `i`'s client."""
    fleet.seen[r].num_inflight += change
    fleet.clients[r, client_of(fleet, i)].num_inflight += change


@verb
def end(fleet: Fleet, i: int, status: int, now_s: float) -> None:
    """Ends request `i`, which is on no replica, counts it out of the system, and lets those come that waited for this."""
    clock, request = fleet.clock[0], fleet.requests[slot_of(fleet, i)]
    if request.phase != EXPECTED:
        settle(fleet.classes[request.class_id], request, status, now_s)
    request.phase, request.status, request.finished_at_s = GONE, status, now_s
    clock.num_ended += 1
    count_in_system(clock, -1, now_s)
    if clock.max_follows > 0:
        note_end(fleet, i, status, now_s)


@verb
def count_in_system(clock: Any, change: int, now_s: float) -> None:
    """Changes the number of requests in the system and carries its integral over time forward."""
    clock.in_system_request_s += clock.num_in_system * (now_s - clock.in_system_since_s)
    clock.in_system_since_s = now_s
    clock.num_in_system += change
    clock.peak_in_system = max(clock.peak_in_system, clock.num_in_system)


@loop(nb.types.void(FLEET_TYPE, nb.types.int64, nb.types.int64, nb.types.int64, nb.types.float64))
def leave_live(fleet: Fleet, r: int, i: int, status: int, now_s: float) -> None:
    """Takes request `i` off a live replica for good; its lists and gauges know of it no more."""
    leave(fleet, r, i, status, now_s)
