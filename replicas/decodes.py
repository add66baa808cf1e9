"""The steady part of a batch: decodes that get one token in every step, kept as sums so that a step is O(1).

How many they are, their context, how many need a block at this step (by step number modulo the block size), and when each
yields its last token (a calendar). What is not steady catches up: see `replicas.scheduler`.
"""

from typing import Any

from replicas.batches import batch_of, next_batch
from replicas.kv_blocks import computed_tokens, growth_residue, held_blocks, take_blocks
from replicas.prefix_cache import register_blocks
from replicas.queues import file_due, remove_due, sequence_of, slot_of
from sim.compiled import verb
from sim.records import CALENDAR, CATCHING_UP, DECODING, LAST_TOKEN, NONE, SURPLUS, Fleet


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
def needs_block(fleet: Fleet, r: int, i: int) -> bool:
    """Tells whether a decode has filled its blocks, and needs one more in the step being planned."""
    replica, engine = fleet.replicas[r], fleet.engines[fleet.replicas[r].pool]
    num_tokens = computed_tokens(fleet.requests[slot_of(fleet, i)], replica.num_steps - 1)
    return num_tokens % engine.block_size == 0 and not engine.reserves_output


@verb
def allocate_decode(fleet: Fleet, r: int, i: int) -> None:
    """Takes the block that a decode needs in the step being planned, if it does.

    With prefix caching, the blocks it has filled can be hit from here on: including the token of this step, or with async
    scheduling without it, as the engine does not know it yet.
    """
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    engine = fleet.engines[replica.pool]
    num_tokens = computed_tokens(request, replica.num_steps - 1)
    if needs_block(fleet, r, i):
        take_blocks(fleet, r, i, num_tokens // engine.block_size, 1)
    if engine.enable_prefix_caching:
        register_blocks(fleet, r, i, num_tokens + 1 - engine.async_scheduling)


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
def pass_over(fleet: Fleet, r: int, i: int) -> None:
    """Lets a decode go without its token in the step being planned: it then has one to catch up, like a short prefill.

    If its last token is on the device already, it stays in the calendar, and that token will end it.
    """
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    latest_step = replica.num_steps - 1
    num_blocks = held_blocks(request, latest_step, fleet.engines[replica.pool])
    stop_decoding(fleet, r, i)
    if request.phase == DECODING:
        remember_last_token(fleet, r, i)
    request.num_computed_tokens, request.num_blocks = computed_tokens(request, latest_step), num_blocks
    request.num_generated_tokens = request.num_computed_tokens + 1 - request.num_prompt_tokens
    request.last_step = latest_step
    request.phase = CATCHING_UP
    replica.num_catching_up += 1


@verb
def remember_last_token(fleet: Fleet, r: int, i: int) -> None:
    """Notes when a decode that does not go on got its last token, so that the gap it will see can be told.

    If the token with which it caught up is still on the device, `deliver` will note it.
    """
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    first_step = request.last_step - (request.num_output_tokens - request.num_generated_tokens) + 1
    latest_step = replica.num_steps - 1
    if first_step < latest_step:
        if replica.num_in_flight > 0:
            request.last_token_at_s = batch_of(fleet, r, latest_step).ends_at_s
        else:
            request.last_token_at_s = replica.last_step_ended_at_s


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
