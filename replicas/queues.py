"""The lists a request can be in, linked through the requests themselves: no memory of their own, every change O(1).

Waiting requests stand in lines, those that are held up alike in one (`sim.records.LINE`). Where a replica has several, who goes
next is the first of their heads, O(lines): by priority the most urgent, else the one in the lowest place.
"""

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
def goes_before(fleet: Fleet, i: int, j: int) -> bool:
    """Tells whether request `i` goes before request `j` under priority scheduling; ids are in order of arrival."""
    ours = fleet.classes[fleet.requests[slot_of(fleet, i)].class_id].priority
    theirs = fleet.classes[fleet.requests[slot_of(fleet, j)].class_id].priority
    return ours < theirs or (ours == theirs and i < j)


@verb
def own_line(fleet: Fleet, r: int, i: int) -> Any:
    """Returns the line of replica `r` in which request `i` waits."""
    return fleet.lines[r, fleet.line_of[fleet.requests[slot_of(fleet, i)].class_id]]


@verb
def next_place(fleet: Fleet) -> int:
    """Counts, and returns, how often a request took a place in a queue."""
    fleet.clock[0].num_queued += 1
    return fleet.clock[0].num_queued


@verb
def lets_passed_by_go_first(fleet: Fleet, r: int) -> bool:
    """Tells whether requests that were passed by go ahead of all others.

    vLLM 0.30 moves them into a queue of their own (`Scheduler.skipped_waiting`), which goes first and which they leave when
    they are admitted. As they are passed by in order, the two are one queue whose first part is marked. SGLang's has no such
    part, whatever version of vLLM is named.
    """
    engine = fleet.engines[fleet.replicas[r].pool]
    return engine.passed_by_go_first > 0 and engine.schedules_by_priority == 0 and engine.schedules_by_prefix == 0


@verb
def insert_by_priority(fleet: Fleet, line: Any, i: int) -> None:
    """Puts request `i` into its line in order of arrival: at an end, or near where the last one went that belonged at none.

    Those that come back from a machine that failed come one after the other, so this is O(1) too, amortised.
    """
    queue = line.queue
    if queue.tail == NONE or queue.tail < i:
        append(fleet, queue, i)
        return
    before = NONE
    if queue.head < i:
        before = queue.head if line.last_inserted == NONE else line.last_inserted
        while before > i:
            before = fleet.requests[slot_of(fleet, before)].previous
        while fleet.requests[slot_of(fleet, before)].next < i:
            before = fleet.requests[slot_of(fleet, before)].next
        line.last_inserted = i
    if line.last_passed_by > i:
        line.last_passed_by = before
    insert_after(fleet, queue, i, before)


@verb
def add_waiting(fleet: Fleet, r: int, i: int) -> None:
    """Puts a new request into replica `r`'s queue: at its back, or where its priority says.

    One with structured output counts as passed by from the start, whether its grammar is compiled or not.
    """
    line = own_line(fleet, r, i)
    sequence_of(fleet, i).place = next_place(fleet)
    if fleet.engines[fleet.replicas[r].pool].schedules_by_priority:
        insert_by_priority(fleet, line, i)
    else:
        append(fleet, line.queue, i)
    fleet.requests[slot_of(fleet, i)].was_passed_by = 0
    if fleet.classes[fleet.requests[slot_of(fleet, i)].class_id].grammar_s > 0:
        mark_passed_by(fleet, r, i)


@verb
def return_to_waiting(fleet: Fleet, r: int, i: int) -> None:
    """Puts a preempted request back into replica `r`'s queue: at its front, or where its priority says."""
    line = own_line(fleet, r, i)
    sequence_of(fleet, i).place = -next_place(fleet)
    if fleet.engines[fleet.replicas[r].pool].schedules_by_priority:
        insert_by_priority(fleet, line, i)
    else:
        if not lets_passed_by_go_first(fleet, r):
            line.last_passed_by = NONE
        insert_after(fleet, line.queue, i, line.last_passed_by)


AHEAD = 1 << 62
"""How much lower the places are of those that were passed by and go first."""


@rare
def mark_passed_by(fleet: Fleet, r: int, i: int) -> None:
    """Marks a waiting request as passed by; where those go first, it moves behind the last of them."""
    request, line = fleet.requests[slot_of(fleet, i)], own_line(fleet, r, i)
    if not request.was_passed_by:
        request.was_passed_by = 1
        line.num_passed_by += 1
        if lets_passed_by_go_first(fleet, r):
            sequence_of(fleet, i).place = next_place(fleet) - AHEAD
            remove(fleet, line.queue, i)
            insert_after(fleet, line.queue, i, line.last_passed_by)
    if request.previous == line.last_passed_by:
        line.last_passed_by = i


@verb
def leave_waiting(fleet: Fleet, r: int, i: int) -> None:
    """Takes request `i` out of replica `r`'s queue, wherever it stands."""
    request, line = fleet.requests[slot_of(fleet, i)], own_line(fleet, r, i)
    if line.last_inserted == i:
        line.last_inserted = request.previous
    if line.last_passed_by == i:
        line.last_passed_by = request.previous
    line.num_passed_by -= request.was_passed_by
    request.was_passed_by = 0
    remove(fleet, line.queue, i)


@verb
def look_from_the_front(fleet: Fleet, r: int) -> None:
    """Lets each line be looked at from its head on."""
    for k in range(fleet.lines.shape[1]):
        fleet.lines[r, k].cursor = fleet.lines[r, k].queue.head


@verb
def next_waiting(fleet: Fleet, r: int) -> int:
    """Returns the first of the waiting requests that have not been looked at, or `NONE`."""
    found = fleet.lines[r, 0].cursor
    for k in range(1, fleet.lines.shape[1]):
        i = fleet.lines[r, k].cursor
        if i != NONE and (found == NONE or is_ahead(fleet, r, i, found)):
            found = i
    return found


@verb
def is_ahead(fleet: Fleet, r: int, i: int, j: int) -> bool:
    """Tells whether request `i` goes before request `j`; both wait at replica `r`, in different lines."""
    if fleet.engines[fleet.replicas[r].pool].schedules_by_priority:
        return goes_before(fleet, i, j)
    return sequence_of(fleet, i).place < sequence_of(fleet, j).place


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
