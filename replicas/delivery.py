"""What a step's end brings: tokens to the users, gaps to the histogram, and the finished out of the engine."""

from typing import Any

import numba as nb
import numpy as np

from replicas.batches import oldest_batch
from replicas.counters import count_finished, count_first_token
from replicas.queues import client_of, slot_of
from replicas.rate_limit import settle
from sim.coming import note_end
from sim.compiled import loop, verb
from sim.metrics import itl_bin
from sim.observing import note
from sim.records import ENDED_ON, EXPECTED, FINISHED, FIRST_TOKEN, GONE, NONE, Fleet
from sim.signatures import FLEET_TYPE


@verb
def deliver_decodes(fleet: Fleet, r: int, now_s: float) -> None:
    """Delivers the tokens of the steady decodes of replica `r`'s oldest step, which has ended."""
    replica = fleet.replicas[r]
    batch = oldest_batch(fleet, r)
    replica.num_delivered_tokens += batch.num_decodes - batch.num_surplus
    count_gaps(fleet, replica.pool, now_s - replica.last_step_ended_at_s, batch.num_decodes - batch.num_surplus)


@verb
def deliver_firsts(fleet: Fleet, r: int, now_s: float) -> None:
    """Delivers the tokens of those that have caught up in that step."""
    i = oldest_batch(fleet, r).first_head
    while i != NONE:
        deliver_first(fleet, r, i, now_s)
        i = fleet.requests[slot_of(fleet, i)].first_next


@verb
def deliver_first(fleet: Fleet, r: int, i: int, now_s: float) -> None:
    """Delivers the token with which a request has caught up: its first, or the first after a preemption or a pass-over."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    replica.num_delivered_tokens += 1
    if np.isnan(request.first_token_at_s):
        request.first_token_at_s = now_s
        replica.tokens_before_first -= request.num_prompt_tokens
        note(fleet, FIRST_TOKEN, r, i, request.num_cached_tokens)
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


@verb
def take_due(fleet: Fleet, r: int, slot: int) -> int:
    """Takes out of the calendar whose last tokens stand in `slot`, and returns the first; `due_next` leads to the others."""
    i = fleet.due[r, slot]
    fleet.due[r, slot] = NONE
    return i


@verb
def end_step(fleet: Fleet, r: int, now_s: float) -> None:
    """Ends replica `r`'s oldest step, whose tokens have been delivered."""
    fleet.replicas[r].last_step_ended_at_s = now_s
    fleet.replicas[r].num_in_flight -= 1


@verb
def leave_finished(fleet: Fleet, r: int, i: int, now_s: float) -> None:
    """Takes request `i` off replica `r` with its last token."""
    request = fleet.requests[slot_of(fleet, i)]
    request.num_generated_tokens = request.num_output_tokens
    request.last_token_at_s = now_s
    leave(fleet, r, i, FINISHED, now_s)


@verb
def leave(fleet: Fleet, r: int, i: int, status: int, now_s: float) -> None:
    """Takes request `i` off replica `r` for good."""
    count_in_flight(fleet, r, i, -1)
    note(fleet, ENDED_ON, r, i, fleet.requests[slot_of(fleet, i)].num_generated_tokens, status)
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
