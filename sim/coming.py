"""How the rows of the traffic become requests: each at its instant, or after the end of another.

They are sent in the order in which they are due: the traffic's at their instants; one that follows another when that one has
finished and its own delay is over. While its client has as many requests in flight as it may, all are held back; the first of
them is sent when one ends, at that very instant.
"""

import numba as nb

from sim.compiled import loop, rare, verb
from sim.records import ARRIVED, FINISHED, NONE, OVER, Fleet
from sim.signatures import FLEET_TYPE
from sim.timed import pop, push


@verb
def place_of(fleet: Fleet, row: int) -> int:
    """Returns where this row of the traffic lives in its ring."""
    return row & (fleet.coming.size - 1)


@verb
def next_arrival_at_s(fleet: Fleet) -> float:
    """Returns when the next request arrives; inf when none does, or none before another ends.

    One that was held back arrives when the number in flight last fell.
    """
    clock = fleet.clock[0]
    if clock.num_in_system >= clock.max_concurrency:
        return float("inf")
    return max(fleet.arriving[0].at_s, clock.in_system_since_s)


@loop(nb.types.float64(FLEET_TYPE))
def tell_next_arrival_at_s(fleet: Fleet) -> float:
    """Tells Python `next_arrival_at_s`."""
    return next_arrival_at_s(fleet)


@verb
def expect(fleet: Fleet, row: int) -> None:
    """Has a row of the traffic arrive when it is due."""
    clock = fleet.clock[0]
    clock.num_arriving = push(fleet.arriving, clock.num_arriving, fleet.coming[place_of(fleet, row)].due_at_s, row)


@verb
def expect_next(fleet: Fleet) -> None:
    """Has the next row of the traffic arrive that follows no other; those behind it are not due before it."""
    clock = fleet.clock[0]
    while clock.next_arrival < clock.num_loaded and fleet.coming[place_of(fleet, clock.next_arrival)].follows > 0:
        clock.next_arrival += 1
    if clock.next_arrival < clock.num_loaded:
        expect(fleet, clock.next_arrival)


@verb
def appear(fleet: Fleet) -> int:
    """Writes the request that arrives now into the window, where it does not count yet, and returns its id."""
    clock = fleet.clock[0]
    row = fleet.arriving[0].number
    coming, i = fleet.coming[place_of(fleet, row)], clock.num_arrived
    slot = i & (fleet.requests.size - 1)
    fleet.row_of[slot] = row
    fleet.requests[slot] = fleet.blank[0]
    request = fleet.requests[slot]
    request.arrived_at_s = clock.now_s
    request.num_prompt_tokens, request.num_output_tokens = coming.num_prompt_tokens, coming.num_output_tokens
    request.class_id = coming.class_id
    sequence = fleet.sequences[i & (fleet.sequences.size - 1)]
    sequence.first_segment, sequence.num_segments = coming.first_segment, coming.num_segments
    sequence.session = coming.session
    sequence.num_drafts = sequence.num_placeholders = sequence.may_decode_at = 0
    sequence.last_planned_step = NONE
    return i


@verb
def count_arrival(fleet: Fleet) -> None:
    """Counts the request that has just appeared, and how long its client has held it back, and looks for the next."""
    clock = fleet.clock[0]
    row = fleet.arriving[0].number
    coming = fleet.coming[place_of(fleet, row)]
    held_s = clock.now_s - coming.due_at_s
    if held_s > 0:
        clock.num_held += 1
        clock.held_s += held_s
        clock.max_held_s = max(clock.max_held_s, held_s)
    coming.state = ARRIVED if clock.max_follows > 0 else OVER
    clock.num_arrived += 1
    clock.num_to_come -= 1
    clock.num_arriving = pop(fleet.arriving, clock.num_arriving)
    if row == clock.next_arrival:
        clock.next_arrival += 1
        expect_next(fleet)


@rare
def note_end(fleet: Fleet, i: int, status: int, now_s: float) -> None:
    """Notes that request `i` has ended, and whether it finished: those that wait for it come after it, or never."""
    row = fleet.row_of[i & (fleet.requests.size - 1)]
    ended = fleet.coming[place_of(fleet, row)]
    ended.state, ended.ended_at_s = OVER, now_s if status == FINISHED else float("inf")
    j, ended.first_follower = ended.first_follower, NONE
    while j != NONE:
        following = fleet.coming[place_of(fleet, j)].next
        if status == FINISHED:
            come_after(fleet, j, now_s)
        else:
            following = give_up(fleet, j, following)
        j = following


@verb
def come_after(fleet: Fleet, row: int, ended_at_s: float) -> None:
    """Has a row arrive its delay after the end of the one it follows, and not before it may."""
    coming = fleet.coming[place_of(fleet, row)]
    coming.due_at_s = max(coming.due_at_s, ended_at_s + coming.delay_s)
    expect(fleet, row)


@verb
def give_up(fleet: Fleet, row: int, others: int) -> int:
    """Never sends a row, as the one it follows did not finish.

    Returns:
        The list of those that are not sent either: its own followers, before `others`.
    """
    coming = fleet.coming[place_of(fleet, row)]
    coming.state, coming.ended_at_s = OVER, float("inf")
    fleet.never_sent[coming.class_id] += 1
    fleet.clock[0].num_to_come -= 1
    j = coming.first_follower
    coming.first_follower = NONE
    while j != NONE:
        follower = fleet.coming[place_of(fleet, j)]
        following, follower.next = follower.next, others
        others, j = j, following
    return others


@verb
def wait_for(fleet: Fleet, row: int) -> None:
    """Lets a row that has just been let in wait for the end of the one it follows, which may be over."""
    coming = fleet.coming[place_of(fleet, row)]
    ahead = fleet.coming[place_of(fleet, row - coming.follows)]
    if ahead.state != OVER:
        coming.next, ahead.first_follower = ahead.first_follower, row
    elif ahead.ended_at_s < float("inf"):
        come_after(fleet, row, ahead.ended_at_s)
    else:
        give_up(fleet, row, NONE)
