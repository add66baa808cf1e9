"""From the door to a replica: who is refused, which replicas are offered to the router, and the sending."""

from typing import Any

import numba as nb
import numpy as np

from replicas import door
from replicas.block_keys import write_keys
from replicas.counters import count_arrived
from replicas.delivery import count_in_flight, end
from replicas.queues import append, client_of, remove, sequence_of, slot_of
from replicas.rate_limit import level_at, most_tokens, reserve
from sim.bundle_types import first_of
from sim.compiled import loop, rare, verb
from sim.observing import next_event, note
from sim.records import (
    FAILED,
    NO_REASON,
    NONE,
    OTHER_MODEL,
    OVER_QUEUED_REQS,
    OVER_QUEUED_TOKENS,
    OVER_RATE_LIMIT,
    OVER_TTFT,
    REJECTED,
    SENT,
    UNROUTED,
    Fleet,
    RouterView,
)
from sim.signatures import CHOOSE_SIGNATURE, FLEET_TYPE, OBSERVE_SIGNATURE, VIEW_TYPE

CHOOSE_TYPE, OBSERVE_TYPE = nb.types.FunctionType(CHOOSE_SIGNATURE), nb.types.FunctionType(OBSERVE_SIGNATURE)


@verb
def refusal(fleet: Fleet, i: int) -> int:
    """Returns why request `i` is turned away at the door, or `NO_REASON`.

    No engine of the fleet could ever serve it, or its class has used up what it may.
    """
    reason = OTHER_MODEL
    for pool in range(fleet.engines.size):
        found = engine_refusal(fleet, pool, i)
        reason = reason if found == OTHER_MODEL else found
        if found == NO_REASON:
            break
    request = fleet.requests[slot_of(fleet, i)]
    kind = fleet.classes[request.class_id]
    if reason == NO_REASON and kind.bucket.tokens_per_s > 0:
        has_room = most_tokens(kind, request) <= level_at(kind.bucket, fleet.clock[0].now_s)
        reason = NO_REASON if has_room else OVER_RATE_LIMIT
    return reason


@verb
def let_in(fleet: Fleet, i: int) -> None:
    """Lets request `i` in, at the cost of its class."""
    request = fleet.requests[slot_of(fleet, i)]
    request.phase = UNROUTED
    kind = fleet.classes[request.class_id]
    if kind.bucket.tokens_per_s > 0:
        reserve(kind.bucket, most_tokens(kind, request), fleet.clock[0].now_s)


@verb
def predicted_ttft_s(num_queued_tokens: int, num_prompt_tokens: int, prefill_tokens_per_s: float) -> float:
    """Returns the TTFT of a prompt behind others at a replica's prefill rate; decodes and caches are left out.

    Source: `admit` of docs/sources.md [2], Queueing.

    >>> predicted_ttft_s(8000, 2000, 10_000.0)
    1.0
    """
    return (num_queued_tokens + num_prompt_tokens) / prefill_tokens_per_s


@verb
def ttft_refusal(fleet: Fleet, r: int, i: int) -> int:
    """Returns `OVER_TTFT` if request `i` would miss its class's TTFT behind what the gateway knows to wait on slot `r`.

    Who was let in before, and comes back from a machine that went away, is not asked again.
    """
    request = fleet.requests[slot_of(fleet, i)]
    kind = fleet.classes[request.class_id]
    if kind.admitted_ttft_s > 0 and np.isnan(request.routed_at_s):
        num_queued_tokens = fleet.seen[r].waiting_tokens
        ttft_s = predicted_ttft_s(num_queued_tokens, request.num_prompt_tokens, kind.prefill_tokens_per_s)
        if ttft_s > kind.admitted_ttft_s:
            return OVER_TTFT
    return NO_REASON


@verb
def engine_refusal(fleet: Fleet, pool: int, i: int) -> int:
    """Returns why this pool's engine could never serve request `i`: it runs another model, or refuses it itself."""
    engine, request = fleet.engines[pool], fleet.requests[slot_of(fleet, i)]
    kind = fleet.classes[request.class_id]
    if kind.model not in (0, engine.model):
        return OTHER_MODEL
    return door.refuse(fleet, pool, i)


@rare
def queue_refusal(fleet: Fleet, r: int) -> int:
    """Returns why the API server before slot `r` answers 503 for now, or `NO_REASON`; it counts all ranks of the machine.

    Source: `AsyncLLM.check_admission` of vLLM 0.32.0, where prompts count whole until their first token.
    """
    engine = fleet.engines[fleet.replicas[r].pool]
    first = r - (r - engine.first_slot) % engine.data_parallel_size
    num_requests = num_tokens = 0
    for rank in range(first, first + engine.data_parallel_size):
        num_requests += fleet.loads[rank].num_waiting + fleet.loads[rank].num_running
        num_tokens += fleet.replicas[rank].tokens_before_first
    if 0 < engine.max_num_queued_reqs <= num_requests:
        return OVER_QUEUED_REQS
    if 0 < engine.max_num_queued_tokens <= num_tokens:
        return OVER_QUEUED_TOKENS
    return NO_REASON


@verb
def reject(fleet: Fleet, i: int, reason: int) -> None:
    """Turns request `i` away: at the door, or, if it comes from a machine that went away, halfway."""
    request = fleet.requests[slot_of(fleet, i)]
    request.reason = reason
    end(fleet, i, REJECTED if request.num_generated_tokens == 0 else FAILED, fleet.clock[0].now_s)


@verb
def offer(fleet: Fleet, i: int) -> None:
    """Lists the ready replicas whose engine can serve request `i` as the router's candidates.

    In a fleet of one pool those are all ready ones: `offered` and `ready` are then the same array.
    """
    clock = fleet.clock[0]
    clock.num_offered = clock.num_ready
    if fleet.engines.size > 1:
        clock.num_offered = 0
        for k in range(clock.num_ready):
            r = fleet.ready[k]
            if engine_refusal(fleet, fleet.replicas[r].pool, i) == NO_REASON:
                fleet.offered[clock.num_offered] = r
                clock.num_offered += 1


@verb
def ask(fleet: Fleet, i: int) -> None:
    """Shows the router request `i`, without how long its answer will be."""
    asking, request, clock = fleet.asking, fleet.requests[slot_of(fleet, i)], fleet.clock[0]
    kind = fleet.classes[request.class_id]
    asking.id, asking.arrived_at_s = i, request.arrived_at_s
    asking.num_prompt_tokens, asking.class_id = request.num_prompt_tokens, request.class_id
    asking.priority, asking.adapter, asking.model, asking.max_tokens = kind.priority, kind.adapter, kind.model, kind.max_tokens
    fleet.times.now_s = clock.now_s
    fleet.times.scraped_at_s = clock.scraped_at_s if clock.scrape_interval_s > 0 else clock.now_s
    if clock.sees_sessions:
        asking.session = sequence_of(fleet, i).session
    if clock.key_block_size > 0:
        clock.num_keys = write_keys(fleet, i, clock.key_block_size, fleet.keys)


@rare
def tell(fleet: Fleet, observe: Any, view: RouterView) -> None:
    """Tells the router all that it has not been told yet."""
    while fleet.clock[0].num_told < fleet.clock[0].num_noted:
        next_event(fleet)
        observe(view)


@loop(CHOOSE_SIGNATURE)
def choose_in_python(view: RouterView) -> int:
    """Stands where a compiled router would, and is never asked."""
    return NONE


@loop(OBSERVE_SIGNATURE)
def observe_nothing(view: RouterView) -> None:
    """Stands where what observes for a compiled router would."""


@verb
def route(fleet: Fleet, choose: Any, observe: Any, view: RouterView, i: int) -> bool:
    """Has the router choose among the offered replicas and sends request `i` there, which may answer that it is full.

    Returns:
        False if the router chose none of them.
    """
    clock = fleet.clock[0]
    if clock.routes_in_python:
        r = clock.chosen
        clock.chosen = NONE
    else:
        ask(fleet, i)
        if clock.num_told < clock.num_noted:
            tell(fleet, observe, view)
        r = choose(first_of(first_of(view, "candidates", clock.num_offered), "keys", clock.num_keys))
    if not is_candidate(fleet, r, i):
        clock.chosen = r
        return False
    pool = fleet.replicas[r].pool
    count_arrived(fleet, pool, fleet.requests[slot_of(fleet, i)], 1)
    engine, reason = fleet.engines[pool], ttft_refusal(fleet, r, i)
    if reason == NO_REASON and engine.max_num_queued_reqs + engine.max_num_queued_tokens > 0:
        reason = queue_refusal(fleet, r)
    if reason == NO_REASON:
        send(fleet, r, i)
    else:
        reject(fleet, i, reason)
    return True


@verb
def is_candidate(fleet: Fleet, r: int, i: int) -> bool:
    """Tells whether slot `r` was offered for request `i`: it exists, takes requests, and its engine can serve this one."""
    if r < 0 or r >= fleet.replicas.size or not fleet.replicas[r].is_open:
        return False
    return engine_refusal(fleet, fleet.replicas[r].pool, i) == NO_REASON


@verb
def send(fleet: Fleet, r: int, i: int) -> None:
    """Sends request `i` to replica `r`, and counts it in what the router sees before the next scrape shows it."""
    clock, seen, request = fleet.clock[0], fleet.seen[r], fleet.requests[slot_of(fleet, i)]
    if np.isnan(request.routed_at_s):
        request.routed_at_s = clock.now_s
    count_in_flight(fleet, r, i, 1)
    note(fleet, SENT, r, i, request.num_prompt_tokens)
    if clock.scrape_interval_s > 0:
        fleet.clients[r, client_of(fleet, i)].num_new += 1
        seen.num_waiting += 1
        seen.waiting_tokens += request.num_prompt_tokens + request.num_generated_tokens
    door.enqueue(fleet, r, i, clock.now_s)


@verb
def append_unrouted(fleet: Fleet, i: int) -> None:
    """Puts request `i` at the back of those that no replica could take yet."""
    clock = fleet.clock[0]
    append(fleet, clock.unrouted, i)
    clock.num_unrouted += 1
    count_unrouted(fleet, i, 1)


@verb
def pop_unrouted(fleet: Fleet) -> int:
    """Takes the first of those that no replica could take yet; there must be one."""
    i = fleet.clock[0].unrouted.head
    leave_unrouted(fleet, i)
    return i


@verb
def leave_unrouted(fleet: Fleet, i: int) -> None:
    """Takes request `i` out of those that no replica could take yet, wherever it stands."""
    clock = fleet.clock[0]
    remove(fleet, clock.unrouted, i)
    clock.num_unrouted -= 1
    count_unrouted(fleet, i, -1)


@rare
def count_unrouted(fleet: Fleet, i: int, change: int) -> None:
    """Counts request `i` among, or no longer among, those that wait for a replica of each pool that could serve it."""
    request = fleet.requests[slot_of(fleet, i)]
    for pool in range(fleet.engines.size):
        if engine_refusal(fleet, pool, i) == NO_REASON:
            fleet.unrouted[pool, 0] += change
            fleet.unrouted[pool, 1] += change * (request.num_prompt_tokens + request.num_generated_tokens)
            fleet.unrouted[pool, 2] += change * np.isnan(request.routed_at_s)
            count_arrived(fleet, pool, request, change)


@loop(nb.types.int64(FLEET_TYPE, CHOOSE_TYPE, OBSERVE_TYPE, VIEW_TYPE, nb.types.int64))
def route_unrouted(fleet: Fleet, choose: Any, observe: Any, view: RouterView, num_left: int) -> int:
    """Takes the next `num_left` requests that found no replica, oldest first, and sends those that one can serve now.

    Returns:
        0 when done, -1 when the router chose none of the candidates; else a Python router must choose for the oldest, and
        the number is what to come back with.
    """
    clock = fleet.clock[0]
    while num_left > 0:
        offer(fleet, clock.unrouted.head)
        if clock.num_offered == 0:
            append_unrouted(fleet, pop_unrouted(fleet))
        elif clock.routes_in_python and clock.chosen == NONE:
            ask(fleet, clock.unrouted.head)
            return num_left
        elif not route(fleet, choose, observe, view, pop_unrouted(fleet)):
            return -1
        num_left -= 1
    return 0
