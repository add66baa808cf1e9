"""The data plane: everything between two control events, in exact event order, in one compiled loop.

At equal times a step's end comes before a scrape, that before a client that gives up, that before an arrival, an arrival
before an idle engine wakes, and a control event before all of them. A request that waits for another's end arrives, where
nothing else delays it, at that very instant, so after the end of that step, and after the next one is planned.
"""

from typing import Any

import numba as nb

from replicas import door
from replicas.delivery import count_in_system
from replicas.events import next_to_end
from replicas.gateway import CHOOSE_TYPE, OBSERVE_TYPE, append_unrouted, ask, let_in, offer, refusal, reject, route, tell
from replicas.timeouts import expect_timeout, give_up
from replicas.together import first_together
from sim.coming import appear, count_arrival, next_arrival_at_s
from sim.compiled import loop, verb
from sim.observing import has_room
from sim.records import (
    BAD_ROUTE,
    DRAINED,
    ENDED,
    NEEDS_ARRIVALS,
    NEEDS_OBSERVER,
    NEEDS_ROUTE,
    NO_REASON,
    NONE,
    REACHED,
    Fleet,
    RouterView,
)
from sim.signatures import FLEET_TYPE, VIEW_TYPE


@verb
def set_now(clock: Any, now_s: float) -> None:
    """Moves the clock, and counts it if it had to go backwards (invariant 2)."""
    if now_s < clock.now_s:
        clock.num_time_reversals += 1
    clock.now_s = now_s


@verb
def has_drained(fleet: Fleet, r: int) -> bool:
    """Tells whether a draining replica, and all that step together with it, have served their last request."""
    if not fleet.replicas[r].is_draining:
        return False
    first = first_together(fleet, r)
    for k in range(first, first + fleet.engines[fleet.replicas[r].pool].num_together):
        if not fleet.replicas[k].is_draining or fleet.replicas[k].num_in_flight or fleet.loads[k].num_waiting > 0:
            return False
    return True


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
    for c in range(fleet.clients.shape[1]):
        fleet.clients[r, c].num_new = 0


@verb
def must_ask_python(fleet: Fleet, i: int) -> bool:
    """Tells whether request `i`, which arrives, waits for a router written in plain Python, and shows it to it."""
    clock = fleet.clock[0]
    if not clock.routes_in_python or clock.chosen != NONE or refusal(fleet, i) != NO_REASON:
        return False
    ask(fleet, i)
    offer(fleet, i)
    return clock.num_offered > 0


@verb
def arrive(fleet: Fleet, choose: Any, observe: Any, view: RouterView, i: int) -> bool:
    """Lets request `i` in: refuses it, keeps it until a replica is ready, or sends it to one."""
    clock = fleet.clock[0]
    count_arrival(fleet)
    count_in_system(clock, 1, clock.now_s)
    reason = refusal(fleet, i)
    if reason != NO_REASON:
        reject(fleet, i, reason)
        return True
    let_in(fleet, i)
    expect_timeout(fleet, i)
    offer(fleet, i)
    if clock.num_offered == 0:
        append_unrouted(fleet, i)
        return True
    return route(fleet, choose, observe, view, i)


@loop(nb.types.int64(FLEET_TYPE, CHOOSE_TYPE, OBSERVE_TYPE, VIEW_TYPE, nb.types.float64))
def run_until(fleet: Fleet, choose: Any, observe: Any, view: RouterView, until_s: float) -> int:
    """Runs every step, scrape, timeout and arrival before `until_s`; returns early, with the reason, when Python has to act."""
    clock = fleet.clock[0]
    while True:
        if clock.next_arrival == clock.num_loaded:
            if not clock.is_exhausted:
                return NEEDS_ARRIVALS
            if clock.num_to_come + clock.num_in_system == 0:
                return ENDED
        if clock.observes and not has_room(fleet, clock.most_noted):
            if clock.routes_in_python:
                return NEEDS_OBSERVER
            tell(fleet, observe, view)
        r = next_to_end(fleet)
        step_ends_at_s, arrives_at_s = fleet.next_end_at_s[r], next_arrival_at_s(fleet)
        now_s = min(step_ends_at_s, arrives_at_s, clock.next_scrape_at_s, clock.times_out_at_s)
        if now_s >= until_s:
            set_now(clock, until_s)
            return REACHED
        set_now(clock, now_s)
        clock.num_events += 1
        if step_ends_at_s == now_s:
            door.turn(fleet, r)
            if has_drained(fleet, r):
                clock.drained = first_together(fleet, r)
                return DRAINED
        elif clock.next_scrape_at_s == now_s:
            scrape(fleet)
        elif clock.times_out_at_s == now_s:
            r = give_up(fleet)
            if r != NONE and has_drained(fleet, r):
                clock.drained = first_together(fleet, r)
                return DRAINED
        else:
            i = appear(fleet)
            if must_ask_python(fleet, i):
                return NEEDS_ROUTE
            if not arrive(fleet, choose, observe, view, i):
                return BAD_ROUTE
