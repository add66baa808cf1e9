"""The data plane: everything between two control events, in exact event order, in one compiled loop.

At equal times a step's end comes before a scrape, a scrape before an arrival, an arrival before an idle engine wakes, and
a control event before all of them.
"""

from typing import Any

import numba as nb
import numpy as np

from replicas.delivery import count_in_system, end
from replicas.engine import enqueue, turn
from replicas.events import next_to_end
from replicas.queues import append_unrouted, pop_unrouted, slot_of
from sim.compiled import loop, verb
from sim.records import (
    BAD_ROUTE,
    DRAINED,
    ENDED,
    FLEET_TYPE,
    NEEDS_ARRIVALS,
    NEEDS_ROUTE,
    NO_REASON,
    NONE,
    OVER_KV_CACHE,
    OVER_MAX_MODEL_LEN,
    REACHED,
    REJECTED,
    ROUTER_SIGNATURE,
    ROUTER_STATE_TYPE,
    UNROUTED,
    Fleet,
    RouterState,
)

CHOOSE_TYPE = nb.types.FunctionType(ROUTER_SIGNATURE)


@verb
def next_arrival_at_s(fleet: Fleet) -> float:
    """Returns when the next loaded request arrives; inf when there is none."""
    clock = fleet.clock[0]
    if clock.next_arrival == clock.num_loaded:
        return float("inf")
    return fleet.requests[slot_of(fleet, clock.next_arrival)].arrived_at_s


@verb
def set_now(clock: Any, now_s: float) -> None:
    """Moves the clock, and counts it if it had to go backwards (invariant 2)."""
    if now_s < clock.now_s:
        clock.num_time_reversals += 1
    clock.now_s = now_s
    clock.num_events += 1


@verb
def has_drained(fleet: Fleet, r: int) -> bool:
    """Tells whether a draining replica has served its last request."""
    return fleet.replicas[r].is_draining and not fleet.replicas[r].is_running


@verb
def scrape(fleet: Fleet) -> None:
    """Shows the router the present loads of the ready replicas; its own count of requests in flight is never stale."""
    clock = fleet.clock[0]
    for k in range(clock.num_ready):
        show(fleet, fleet.ready[k])
    clock.num_scrapes += 1
    clock.scraped_at_s = clock.now_s
    clock.next_scrape_at_s = (clock.num_scrapes + 1) * clock.scrape_interval_s


@verb
def show(fleet: Fleet, r: int) -> None:
    """Copies replica `r`'s live load to what the router sees."""
    load, seen = fleet.loads[r], fleet.seen[r]
    seen.num_waiting, seen.num_running = load.num_waiting, load.num_running
    seen.waiting_tokens, seen.running_tokens = load.waiting_tokens, load.running_tokens
    seen.num_free_blocks, seen.num_usable_blocks = load.num_free_blocks, load.num_usable_blocks


@verb
def must_ask_python(fleet: Fleet) -> bool:
    """Tells whether the arriving request waits for a router written in plain Python."""
    clock = fleet.clock[0]
    if not clock.routes_in_python or clock.chosen != NONE or clock.num_ready == 0:
        return False
    ask(fleet, clock.next_arrival)
    return refusal(fleet, clock.next_arrival) == NO_REASON


@verb
def arrive(fleet: Fleet, choose: Any, state: RouterState) -> bool:
    """Lets the next request in: refuses it, keeps it until a replica is ready, or sends it to one."""
    clock = fleet.clock[0]
    i = clock.next_arrival
    clock.next_arrival += 1
    count_in_system(clock, 1, clock.now_s)
    reason = refusal(fleet, i)
    if reason != NO_REASON:
        reject(fleet, i, reason)
        return True
    if clock.num_ready == 0:
        fleet.requests[slot_of(fleet, i)].phase = UNROUTED
        append_unrouted(fleet, i)
        return True
    return route(fleet, choose, state, i)


@verb
def refusal(fleet: Fleet, i: int) -> int:
    """Returns why no engine of the fleet could ever serve request `i`, or `NO_REASON`."""
    reason = NO_REASON
    for pool in range(fleet.engines.size):
        reason = engine_refusal(fleet, pool, i)
        if reason == NO_REASON:
            break
    return reason


@verb
def engine_refusal(fleet: Fleet, pool: int, i: int) -> int:
    """Returns why this pool's engine could never serve request `i`: its context, or the KV of all but its last token."""
    engine, request = fleet.engines[pool], fleet.requests[slot_of(fleet, i)]
    num_tokens = request.num_prompt_tokens + request.num_output_tokens
    if num_tokens > engine.max_model_len:
        return OVER_MAX_MODEL_LEN
    if num_tokens - 1 > engine.num_usable_blocks * engine.block_size:
        return OVER_KV_CACHE
    return NO_REASON


@verb
def reject(fleet: Fleet, i: int, reason: int) -> None:
    """Turns request `i` away at the door."""
    fleet.requests[slot_of(fleet, i)].reason = reason
    end(fleet, i, REJECTED, fleet.clock[0].now_s)


@verb
def ask(fleet: Fleet, i: int) -> None:
    """Shows the router request `i`, without how long its answer will be."""
    asking, request = fleet.asking[0], fleet.requests[slot_of(fleet, i)]
    asking.id, asking.arrived_at_s = i, request.arrived_at_s
    asking.num_prompt_tokens, asking.class_id = request.num_prompt_tokens, request.class_id


@verb
def route(fleet: Fleet, choose: Any, state: RouterState, i: int) -> bool:
    """Has the router choose among the ready replicas and sends request `i` there; False if the choice is none of them."""
    clock = fleet.clock[0]
    if clock.routes_in_python:
        r = clock.chosen
        clock.chosen = NONE
    else:
        ask(fleet, i)
        r = choose(fleet.seen, fleet.ready[: clock.num_ready], fleet.asking, state)
    if r < 0 or r >= fleet.replicas.size or not fleet.replicas[r].is_open:
        return False
    send(fleet, r, i)
    return True


@verb
def send(fleet: Fleet, r: int, i: int) -> None:
    """Sends request `i` to replica `r`, and counts it in what the router sees before the next scrape shows it."""
    clock, seen, request = fleet.clock[0], fleet.seen[r], fleet.requests[slot_of(fleet, i)]
    reason = engine_refusal(fleet, fleet.replicas[r].pool, i)
    if reason != NO_REASON:
        reject(fleet, i, reason)
        return
    if np.isnan(request.routed_at_s):
        request.routed_at_s = clock.now_s
    seen.num_inflight += 1
    fleet.sent[fleet.replicas[r].pool] += 1
    if clock.scrape_interval_s > 0:
        seen.num_waiting += 1
        seen.waiting_tokens += request.num_prompt_tokens + request.num_generated_tokens
    enqueue(fleet, r, i, clock.now_s)


@loop(nb.types.int64(FLEET_TYPE, CHOOSE_TYPE, ROUTER_STATE_TYPE, nb.types.float64))
def run_until(fleet: Fleet, choose: Any, state: RouterState, until_s: float) -> int:
    """Runs every step, scrape and arrival before `until_s`; returns early, with the reason, when Python has to act."""
    clock = fleet.clock[0]
    while True:
        if clock.next_arrival == clock.num_loaded:
            if not clock.is_exhausted:
                return NEEDS_ARRIVALS
            if clock.num_ended == clock.num_loaded:
                return ENDED
        r = next_to_end(fleet)
        step_ends_at_s, arrives_at_s = fleet.next_end_at_s[r], next_arrival_at_s(fleet)
        now_s = min(step_ends_at_s, arrives_at_s, clock.next_scrape_at_s)
        if now_s >= until_s:
            clock.now_s = until_s
            return REACHED
        set_now(clock, now_s)
        if step_ends_at_s == now_s and (fleet.replicas[r].is_running or arrives_at_s > now_s):
            turn(fleet, r)
            if has_drained(fleet, r):
                clock.drained = r
                return DRAINED
        elif clock.next_scrape_at_s == now_s:
            scrape(fleet)
        elif must_ask_python(fleet):
            return NEEDS_ROUTE
        elif not arrive(fleet, choose, state):
            return BAD_ROUTE


@loop(nb.types.boolean(FLEET_TYPE, CHOOSE_TYPE, ROUTER_STATE_TYPE))
def route_unrouted(fleet: Fleet, choose: Any, state: RouterState) -> bool:
    """Sends the requests that found no ready replica, oldest first; a Python router is asked for one at a time."""
    clock = fleet.clock[0]
    while clock.num_unrouted > 0 and clock.num_ready > 0:
        if clock.routes_in_python and clock.chosen == NONE:
            ask(fleet, clock.unrouted_head)
            return True
        if not route(fleet, choose, state, pop_unrouted(fleet)):
            return False
    return True
