"""The lists a request can be in, linked through the requests themselves: no memory of their own, every change O(1)."""

from typing import Any

from sim.compiled import verb
from sim.records import CALENDAR, NONE, Fleet


@verb
def slot_of(fleet: Fleet, i: int) -> int:
    """Returns where request `i` lives in the ring."""
    return i & (fleet.requests.size - 1)


@verb
def append(fleet: Fleet, queue: Any, i: int) -> None:
    """Puts request `i` at the back of a queue: of a replica's `waiting` or `running`, or of the unrouted."""
    request = fleet.requests[slot_of(fleet, i)]
    request.previous, request.next = queue.tail, NONE
    if queue.tail == NONE:
        queue.head = i
    else:
        fleet.requests[slot_of(fleet, queue.tail)].next = i
    queue.tail = i


@verb
def prepend(fleet: Fleet, queue: Any, i: int) -> None:
    """Puts request `i` at the front of a queue, as vLLM does with a preempted one."""
    request = fleet.requests[slot_of(fleet, i)]
    request.previous, request.next = NONE, queue.head
    if queue.head == NONE:
        queue.tail = i
    else:
        fleet.requests[slot_of(fleet, queue.head)].previous = i
    queue.head = i


@verb
def remove(fleet: Fleet, queue: Any, i: int) -> None:
    """Takes request `i` out of the queue that it is in, wherever it stands."""
    request = fleet.requests[slot_of(fleet, i)]
    if request.previous == NONE:
        queue.head = request.next
    else:
        fleet.requests[slot_of(fleet, request.previous)].next = request.next
    if request.next == NONE:
        queue.tail = request.previous
    else:
        fleet.requests[slot_of(fleet, request.next)].previous = request.previous


@verb
def file_due(fleet: Fleet, r: int, i: int, step: int) -> None:
    """Files request `i` under the step of its last token, or, if that is too far, as far from `step` as the calendar reaches.

    The reach is two short of the calendar's length: with async scheduling the slot of the step before `step` is still in use.
    """
    request = fleet.requests[slot_of(fleet, i)]
    slot = min(request.last_step, step + CALENDAR - 2) & (CALENDAR - 1)
    head = fleet.due[r, slot]
    request.due_slot, request.due_previous, request.due_next = slot, NONE, head
    if head != NONE:
        fleet.requests[slot_of(fleet, head)].due_previous = i
    fleet.due[r, slot] = i


@verb
def remove_due(fleet: Fleet, r: int, i: int) -> None:
    """Takes request `i` out of the calendar."""
    request = fleet.requests[slot_of(fleet, i)]
    if request.due_previous == NONE:
        fleet.due[r, request.due_slot] = request.due_next
    else:
        fleet.requests[slot_of(fleet, request.due_previous)].due_next = request.due_next
    if request.due_next != NONE:
        fleet.requests[slot_of(fleet, request.due_next)].due_previous = request.due_previous


@verb
def append_unrouted(fleet: Fleet, i: int) -> None:
    """Puts request `i` at the back of those that no replica could take yet."""
    clock = fleet.clock[0]
    append(fleet, clock.unrouted, i)
    clock.num_unrouted += 1


@verb
def pop_unrouted(fleet: Fleet) -> int:
    """Takes the first of those that no replica could take yet; there must be one."""
    clock = fleet.clock[0]
    i = clock.unrouted.head
    remove(fleet, clock.unrouted, i)
    clock.num_unrouted -= 1
    return i
