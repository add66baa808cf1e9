"""What a router is told of: noted where it happens, told in order before the router next has to choose."""

from typing import Any

import numba as nb

from sim.compiled import loop, rare, verb
from sim.records import FIRST_TOKEN, IN_FLIGHT, Fleet
from sim.signatures import FLEET_TYPE


@verb
def note(fleet: Fleet, what: int, r: int, i: int, num_tokens: int, status: int = IN_FLIGHT) -> None:
    """Notes that something happened to request `i` at replica `r`, if the router observes that."""
    if fleet.clock[0].observes & what:
        write_event(fleet, what, r, i, num_tokens, status, 0)


@verb
def note_block(fleet: Fleet, what: int, r: int, key: Any) -> None:
    """Notes that a block of replica `r` is, or is no longer, in its cache, if the router observes that."""
    if fleet.clock[0].observes & what:
        write_event(fleet, what, r, -1, 0, IN_FLIGHT, key)


@verb
def has_room(fleet: Fleet, num_more: int) -> bool:
    """Tells whether the ring takes so many events more."""
    return fleet.clock[0].num_noted - fleet.clock[0].num_told + num_more <= fleet.events.size


@rare
def write_event(fleet: Fleet, what: int, r: int, i: int, num_tokens: int, status: int, key: Any) -> None:
    """Puts an event at the end of the ring, which should have room; one that is lost is counted."""
    clock = fleet.clock[0]
    if not has_room(fleet, 1):
        clock.num_lost_events += 1
        return
    event = fleet.events[clock.num_noted & (fleet.events.size - 1)]
    event.at_s, event.what, event.replica, event.request = clock.now_s, what, r, i
    event.num_tokens, event.status, event.key = num_tokens, status, key
    clock.num_noted += 1


@verb
def next_event(fleet: Fleet) -> None:
    """Shows the router the oldest event of which it has not been told; there must be one."""
    clock, event = fleet.clock[0], fleet.event
    noted = fleet.events[clock.num_told & (fleet.events.size - 1)]
    event.at_s, event.what, event.replica, event.request = noted.at_s, noted.what, noted.replica, noted.request
    event.num_tokens, event.status, event.key = noted.num_tokens, noted.status, noted.key
    clock.num_told += 1


@loop(nb.types.boolean(FLEET_TYPE))
def take_event(fleet: Fleet) -> bool:
    """Shows the next event for a router in plain Python; returns whether there was one."""
    has_one: bool = fleet.clock[0].num_told < fleet.clock[0].num_noted
    if has_one:
        next_event(fleet)
    return has_one


@loop(nb.types.void(FLEET_TYPE, nb.types.int64, nb.types.int64, nb.types.int64))
def note_first_token(fleet: Fleet, r: int, i: int, num_cached_tokens: int) -> None:
    """Notes the first token of a request on a live replica."""
    note(fleet, FIRST_TOKEN, r, i, num_cached_tokens)
