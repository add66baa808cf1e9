"""What a step's end brings: tokens to the users, gaps to the histogram, and the finished out of the engine."""

from typing import Any

import numpy as np

from replicas.kv_blocks import free_blocks
from replicas.queues import remove, slot_of
from sim.compiled import verb
from sim.metrics import itl_bin
from sim.records import CALENDAR, FINISHED, GONE, NONE, WAITING, Fleet


@verb
def deliver(fleet: Fleet, r: int, now_s: float) -> None:
    """Hands out the tokens of the running step."""
    replica = fleet.replicas[r]
    batch = fleet.batches[r, (replica.num_steps - 1 - replica.is_planned) & 1]
    replica.num_delivered_tokens += batch.num_decodes
    count_gaps(fleet, replica.pool, now_s - replica.last_step_ended_at_s, batch.num_decodes)
    i = batch.first_head
    while i != NONE:
        deliver_first(fleet, r, i, now_s)
        i = fleet.requests[slot_of(fleet, i)].first_next
    slot = batch.step & (CALENDAR - 1)
    i = fleet.due[r, slot]
    fleet.due[r, slot] = NONE
    while i != NONE:
        following = fleet.requests[slot_of(fleet, i)].due_next
        finish(fleet, r, i, now_s)
        i = following
    replica.last_step_ended_at_s = now_s


@verb
def deliver_first(fleet: Fleet, r: int, i: int, now_s: float) -> None:
    """Delivers the token that ends a prefill: the first of all, or the first after a preemption, seen as one long gap."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    replica.num_delivered_tokens += 1
    if np.isnan(request.first_token_at_s):
        request.first_token_at_s = now_s
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
def finish(fleet: Fleet, r: int, i: int, now_s: float) -> None:
    """Ends request `i` with its last token; its slot and blocks are free from here on."""
    load, request = fleet.loads[r], fleet.requests[slot_of(fleet, i)]
    if request.phase == WAITING:  # preempted with its last token already on the device
        remove(fleet, fleet.replicas[r].waiting, i)
        load.num_waiting -= 1
        load.waiting_tokens -= request.num_prompt_tokens + request.num_generated_tokens
    else:
        free_blocks(fleet, r, request)
        remove(fleet, fleet.replicas[r].running, i)
        load.num_running -= 1
    request.num_generated_tokens = request.num_output_tokens
    request.last_token_at_s = now_s
    leave(fleet, r, i, FINISHED, now_s)


@verb
def leave(fleet: Fleet, r: int, i: int, status: int, now_s: float) -> None:
    """Takes request `i` off replica `r` for good."""
    fleet.seen[r].num_inflight -= 1
    end(fleet, i, status, now_s)


@verb
def end(fleet: Fleet, i: int, status: int, now_s: float) -> None:
    """Ends request `i`, which is on no replica, and counts it out of the system."""
    clock, request = fleet.clock[0], fleet.requests[slot_of(fleet, i)]
    request.phase, request.status, request.finished_at_s = GONE, status, now_s
    clock.num_ended += 1
    count_in_system(clock, -1, now_s)


@verb
def count_in_system(clock: Any, change: int, now_s: float) -> None:
    """Changes the number of requests in the system and carries its integral over time forward."""
    clock.in_system_request_s += clock.num_in_system * (now_s - clock.in_system_since_s)
    clock.in_system_since_s = now_s
    clock.num_in_system += change
