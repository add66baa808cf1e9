"""Clients that give up: a request that has not ended in time after it was sent is aborted, wherever it is.

All requests of a class have the same time and are sent in the order of their ids, so the next of a class to time out is the
oldest that has not ended. No list of them is kept: each class looks down the ids once. Ties go to the lower id.
"""

import numpy as np

from replicas import door
from replicas.counters import count_arrived
from replicas.delivery import end, leave
from replicas.gateway import engine_refusal, leave_unrouted
from replicas.queues import slot_of
from sim.compiled import rare, verb
from sim.records import CLIENT_TIMEOUT, GONE, NO_REASON, NONE, TIMED_OUT, UNROUTED, Fleet


@verb
def expect_timeout(fleet: Fleet, i: int) -> None:
    """Notes when the client of request `i`, which has just been sent, gives up."""
    clock = fleet.clock[0]
    timeout_s = fleet.classes[fleet.requests[slot_of(fleet, i)].class_id].timeout_s
    if timeout_s > 0:
        clock.times_out_at_s = min(clock.times_out_at_s, clock.now_s + timeout_s)


@rare
def give_up(fleet: Fleet) -> int:
    """Aborts the next request whose client has waited too long, and returns the replica that it was on.

    Returns:
        `NONE` if it was on none, or if none has waited too long: the one that would have has ended in time.
    """
    clock = fleet.clock[0]
    i = next_to_time_out(fleet)
    if i == NONE or clock.times_out_at_s > clock.now_s:
        return NONE
    request = fleet.requests[slot_of(fleet, i)]
    request.reason = CLIENT_TIMEOUT
    if request.phase == UNROUTED:
        give_up_unrouted(fleet, i)
        return NONE
    r = request.replica
    if np.isnan(request.first_token_at_s):
        fleet.replicas[r].tokens_before_first -= request.num_prompt_tokens
    door.abort(fleet, r, i)
    leave(fleet, r, i, TIMED_OUT, clock.now_s)
    return r


@verb
def next_to_time_out(fleet: Fleet) -> int:
    """Returns the request that times out first, or `NONE`, and notes when that is."""
    clock, found = fleet.clock[0], NONE
    clock.times_out_at_s = np.inf
    for class_id in range(fleet.classes.size):
        timeout_s = fleet.classes[class_id].timeout_s
        i = oldest_of(fleet, class_id) if timeout_s > 0 else NONE
        if i != NONE:
            at_s = fleet.requests[slot_of(fleet, i)].arrived_at_s + timeout_s
            if at_s < clock.times_out_at_s or (at_s == clock.times_out_at_s and i < found):
                clock.times_out_at_s, found = at_s, i
    return found


@verb
def oldest_of(fleet: Fleet, class_id: int) -> int:
    """Returns the oldest request of a class that has not ended, or `NONE`; O(ids since the last one), so amortised O(1)."""
    clock, kind = fleet.clock[0], fleet.classes[class_id]
    i = max(kind.num_passed, clock.num_taken)
    while i < clock.num_arrived:
        request = fleet.requests[slot_of(fleet, i)]
        if request.class_id == class_id and request.phase != GONE:
            break
        i += 1
    kind.num_passed = i
    return i if i < clock.num_arrived else NONE


@verb
def give_up_unrouted(fleet: Fleet, i: int) -> None:
    """Ends request `i`, which waits for a replica; the pools that it could have had still count it among their arrivals."""
    leave_unrouted(fleet, i)
    for pool in range(fleet.engines.size):
        if engine_refusal(fleet, pool, i) == NO_REASON:
            count_arrived(fleet, pool, fleet.requests[slot_of(fleet, i)], 1)
    end(fleet, i, TIMED_OUT, fleet.clock[0].now_s)
