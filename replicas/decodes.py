"""The steady part of a batch: decodes that get one token in every step, kept as sums so that a step is O(1).

How many they are, their context, how many need a block at this step (by step number modulo the block size), and when each
yields its last token (a calendar). What is not steady catches up: that is the engine's own.
"""

from typing import Any

from replicas.batches import batch_of, next_batch, oldest_step
from replicas.kv_blocks import computed_tokens, growth_residue
from replicas.queues import file_due, remove_due, sequence_of, slot_of
from sim.compiled import verb
from sim.records import CALENDAR, DECODING, LAST_TOKEN, NONE, SURPLUS, Fleet


@verb
def start_decoding(fleet: Fleet, r: int, i: int) -> None:
    """Makes a request that has caught up steady: this step yields a token, and each later one another, up to the last."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    batch = next_batch(fleet, r)
    replica.num_catching_up -= 1
    request.first_next = batch.first_head
    batch.first_head = i
    request.last_step = replica.num_steps + request.num_output_tokens - request.num_generated_tokens - 1
    file_due(fleet, r, i, replica.num_steps)
    request.phase = DECODING
    if request.last_step == replica.num_steps:
        if not ends_unseen(fleet, r, request):
            request.phase = LAST_TOKEN
            return
        request.phase = SURPLUS
        replica.num_surplus += 1
    replica.num_decoding += 1
    replica.decoding_context_tokens += request.num_computed_tokens
    start_growing(fleet, r, i)


@verb
def ends_unseen(fleet: Fleet, r: int, request: Any) -> bool:
    """Tells whether the step after a request's last token is planned before the engine learns that it was the last."""
    return request.stops_early and fleet.engines[fleet.replicas[r].pool].async_scheduling


@verb
def schedule_decodes(fleet: Fleet, r: int) -> None:
    """Gives every decode its token, and lets those go for which it is the last; their blocks have been taken."""
    replica = fleet.replicas[r]
    batch = next_batch(fleet, r)
    batch.num_decodes = batch.num_requests = batch.num_tokens = replica.num_decoding
    batch.num_surplus = replica.num_surplus
    batch.attended_tokens = replica.decoding_context_tokens + 0.5 * replica.num_decoding
    replica.decoding_context_tokens += replica.num_decoding
    batch.kv_tokens = replica.decoding_context_tokens
    i = fleet.due[r, replica.num_steps & (CALENDAR - 1)]
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        following = request.due_next
        if request.last_step > replica.num_steps:
            remove_due(fleet, r, i)
            file_due(fleet, r, i, replica.num_steps)
        elif ends_unseen(fleet, r, request):
            request.phase = SURPLUS
            replica.num_surplus += 1
        else:
            finish_decoding(fleet, r, i)
        i = following


@verb
def finish_decoding(fleet: Fleet, r: int, i: int) -> None:
    """Takes a request whose last token is in the step being planned out of the sums; it keeps its blocks until `deliver`."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    replica.num_decoding -= 1
    replica.decoding_context_tokens -= request.num_prompt_tokens + request.num_output_tokens - 1
    stop_growing(fleet, r, i)
    request.phase = LAST_TOKEN


@verb
def stop_decoding(fleet: Fleet, r: int, i: int) -> None:
    """Takes a decode that does not go on out of the sums, as of the latest step planned; call it before its phase changes."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    replica.num_decoding -= 1
    replica.decoding_context_tokens -= computed_tokens(request, replica.num_steps - 1)
    stop_growing(fleet, r, i)
    if request.phase == SURPLUS:
        replica.num_surplus -= 1
    else:
        remove_due(fleet, r, i)


@verb
def is_decode(request: Any) -> bool:
    """Tells whether a running request is steady: it gets one token in every step, or its last is on the device."""
    return request.phase == DECODING or request.phase == SURPLUS or request.phase == LAST_TOKEN


@verb
def keep_delivered(fleet: Fleet, r: int, i: int) -> None:
    """Leaves a decode whose machine goes with the tokens that it was sent; those still on the device are lost."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    num_delivered = request.num_output_tokens - (request.last_step - (oldest_step(fleet, r) - 1))
    if num_delivered > request.num_generated_tokens:
        request.num_generated_tokens = num_delivered
        request.last_token_at_s = replica.last_step_ended_at_s


@verb
def drop_tokens(fleet: Fleet, r: int, i: int) -> None:
    """Has the tokens of request `i` that are on the device thrown away, and leaves it with those that it was sent.

    It is on no list of waiting or running requests any more, and its phase still says what it was. Of a request that is not
    steady, `last_step` is the step whose token is counted already; if its last token is on the device, the calendar knows.
    """
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    was_steady, latest = is_decode(request), request.last_step
    first = latest - (request.num_output_tokens - request.num_generated_tokens) + 1
    if was_steady:
        keep_delivered(fleet, r, i)
    for step in range(oldest_step(fleet, r), replica.num_steps):
        batch = batch_of(fleet, r, step)
        is_last = leave_due(fleet, r, i, step)
        if was_steady:
            has_token = first <= step <= latest
        else:
            has_token = is_last or step == latest
            if step == latest:
                request.num_generated_tokens -= 1
                if request.last_token_at_s == batch.ends_at_s:
                    request.last_token_at_s = replica.last_step_ended_at_s
        if has_token and not leave_firsts(fleet, batch, i):
            batch.num_surplus += 1


@verb
def leave_due(fleet: Fleet, r: int, i: int, step: int) -> bool:
    """Takes request `i` out of those whose last tokens come with this step, and returns whether it was one of them."""
    j = fleet.due[r, step & (CALENDAR - 1)]
    while j != NONE and j != i:
        j = fleet.requests[slot_of(fleet, j)].due_next
    if j == i:
        remove_due(fleet, r, i)
    return j == i


@verb
def leave_firsts(fleet: Fleet, batch: Any, i: int) -> bool:
    """Takes request `i` out of those that catch up in this batch, and returns whether it was one of them."""
    before, j = NONE, batch.first_head
    while j != NONE and j != i:
        before, j = j, fleet.requests[slot_of(fleet, j)].first_next
    if j == NONE:
        return False
    following = fleet.requests[slot_of(fleet, i)].first_next
    if before == NONE:
        batch.first_head = following
    else:
        fleet.requests[slot_of(fleet, before)].first_next = following
    return True


@verb
def start_growing(fleet: Fleet, r: int, i: int) -> None:
    """Files a decode under the steps in which it needs one more block."""
    engine = fleet.engines[fleet.replicas[r].pool]
    if engine.reserves_output:
        return
    growing = fleet.growing[r, growth_residue(fleet.requests[slot_of(fleet, i)], engine.block_size)]
    growing.num_decodes += 1
    if engine.enable_prefix_caching:
        insert_by_admission(fleet, growing, i)


@verb
def insert_by_admission(fleet: Fleet, growing: Any, i: int) -> None:
    """Puts a decode among those that grow with it, in order of admission: vLLM gives and registers blocks in that order.

    It began to decode as the last of them, and nearly always was admitted as the last.
    """
    sequence = sequence_of(fleet, i)
    before, after = growing.tail, NONE
    while before != NONE and sequence_of(fleet, before).admission > sequence.admission:
        before, after = sequence_of(fleet, before).growing_previous, before
    sequence.growing_previous, sequence.growing_next = before, after
    if before == NONE:
        growing.head = i
    else:
        sequence_of(fleet, before).growing_next = i
    if after == NONE:
        growing.tail = i
    else:
        sequence_of(fleet, after).growing_previous = i


@verb
def stop_growing(fleet: Fleet, r: int, i: int) -> None:
    """Takes a decode out from under those steps."""
    engine = fleet.engines[fleet.replicas[r].pool]
    if engine.reserves_output:
        return
    growing = fleet.growing[r, growth_residue(fleet.requests[slot_of(fleet, i)], engine.block_size)]
    growing.num_decodes -= 1
    if engine.enable_prefix_caching:
        sequence = sequence_of(fleet, i)
        if sequence.growing_previous == NONE:
            growing.head = sequence.growing_next
        else:
            sequence_of(fleet, sequence.growing_previous).growing_next = sequence.growing_next
        if sequence.growing_next == NONE:
            growing.tail = sequence.growing_previous
        else:
            sequence_of(fleet, sequence.growing_next).growing_previous = sequence.growing_previous
