"""The lists a request can be in, linked through the requests themselves: no memory of their own, every change O(1)."""

from typing import Any

from sim.compiled import rare, verb
from sim.records import CALENDAR, NONE, Fleet


@verb
def slot_of(fleet: Fleet, i: int) -> int:
    """Returns where request `i` lives in the ring."""
    return i & (fleet.requests.size - 1)


@verb
def client_of(fleet: Fleet, i: int) -> int:
    """Returns which of the API servers request `i` came through: a load balancer before them deals requests out in turn."""
    return i % fleet.clients.shape[1]


@verb
def sequence_of(fleet: Fleet, i: int) -> Any:
    """Returns what is kept of request `i`'s tokens; one record serves all where nothing needs it."""
    return fleet.sequences[i & (fleet.sequences.size - 1)]


@verb
def insert_after(fleet: Fleet, queue: Any, i: int, before: int) -> None:
    """Puts request `i` into a queue right behind request `before`; `NONE` stands for the front."""
    request = fleet.requests[slot_of(fleet, i)]
    after = queue.head if before == NONE else fleet.requests[slot_of(fleet, before)].next
    request.previous, request.next = before, after
    if before == NONE:
        queue.head = i
    else:
        fleet.requests[slot_of(fleet, before)].next = i
    if after == NONE:
        queue.tail = i
    else:
        fleet.requests[slot_of(fleet, after)].previous = i


@verb
def append(fleet: Fleet, queue: Any, i: int) -> None:
    """Puts request `i` at the back of a queue: of a replica's `waiting` or `running`, or of the unrouted."""
    insert_after(fleet, queue, i, queue.tail)


@verb
def insert_by_priority(fleet: Fleet, queue: Any, i: int) -> None:
    """Puts request `i` into a queue in order of priority, then arrival; looks from both ends at once."""
    front, back = queue.head, queue.tail
    while front != NONE and not goes_before(fleet, i, front):
        if not goes_before(fleet, i, back):
            insert_after(fleet, queue, i, back)
            return
        front, back = fleet.requests[slot_of(fleet, front)].next, fleet.requests[slot_of(fleet, back)].previous
    insert_after(fleet, queue, i, queue.tail if front == NONE else fleet.requests[slot_of(fleet, front)].previous)


@verb
def goes_before(fleet: Fleet, i: int, j: int) -> bool:
    """Tells whether request `i` goes before request `j` under priority scheduling; ids are in order of arrival."""
    ours = fleet.classes[fleet.requests[slot_of(fleet, i)].class_id].priority
    theirs = fleet.classes[fleet.requests[slot_of(fleet, j)].class_id].priority
    return ours < theirs or (ours == theirs and i < j)


@verb
def add_waiting(fleet: Fleet, r: int, i: int) -> None:
    """Puts a new request into replica `r`'s queue: at its back, or where its priority says.

    One with structured output counts as passed by from the start, whether its grammar is compiled or not.
    """
    engine, waiting = fleet.engines[fleet.replicas[r].pool], fleet.replicas[r].waiting
    if engine.schedules_by_priority:
        insert_by_priority(fleet, waiting, i)
    else:
        goes_first = engine.passed_by_go_first and fleet.requests[slot_of(fleet, i)].was_passed_by
        insert_after(fleet, waiting, i, last_passed_by(fleet, r) if goes_first else waiting.tail)


@verb
def return_to_waiting(fleet: Fleet, r: int, i: int) -> None:
    """Puts a preempted request back into replica `r`'s queue: at its front, or where its priority says."""
    engine, waiting = fleet.engines[fleet.replicas[r].pool], fleet.replicas[r].waiting
    if engine.schedules_by_priority:
        insert_by_priority(fleet, waiting, i)
    else:
        insert_after(fleet, waiting, i, last_passed_by(fleet, r) if engine.passed_by_go_first else NONE)


@rare
def last_passed_by(fleet: Fleet, r: int) -> int:
    """Returns the last of those in replica `r`'s queue that were passed by, or `NONE`; they are its first part.

    vLLM 0.30 moves whom it passes by into a queue of their own (`Scheduler.skipped_waiting`), which goes first and which they
    leave when they are admitted. As they are passed by in order, the two are one list whose first part is marked.
    """
    last, i = NONE, fleet.replicas[r].waiting.head
    while i != NONE and fleet.requests[slot_of(fleet, i)].was_passed_by:
        last, i = i, fleet.requests[slot_of(fleet, i)].next
    return last


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
