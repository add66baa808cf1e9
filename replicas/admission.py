"""Which waiting requests join the running ones in a step: vLLM's second loop.

In the queue's order, while there are tokens, sequence slots and blocks. One that does not fit blocks those behind it; one
that must wait for something else (its grammar, a slot for its adapter) lets them pass, and with it all of its line.
"""

from typing import Any

from replicas.batches import next_batch, oldest_step
from replicas.catching_up import allocate_chunk, schedule_chunk, threshold_of
from replicas.kv_blocks import blocks_for, reserved_blocks
from replicas.prefix_cache import count_free, hold_hits, look_up
from replicas.queues import (
    append,
    insert_after,
    leave_waiting,
    lets_passed_by_go_first,
    look_from_the_front,
    mark_passed_by,
    next_place,
    next_waiting,
    own_line,
    sequence_of,
    slot_of,
)
from sim.compiled import rare, verb
from sim.records import CATCHING_UP, DECODING, LAST_TOKEN, NONE, SURPLUS, Fleet

MOST_SORTED = 128
"""Waiting requests up to which SGLang sorts its queue by prefix."""


@verb
def admit_waiting(fleet: Fleet, r: int, now_s: float) -> None:
    """Lets waiting requests into the step that is being planned, each with its first chunk."""
    replica, load = fleet.replicas[r], fleet.loads[r]
    engine = fleet.engines[replica.pool]
    batch = next_batch(fleet, r)
    if engine.admits_when_empty and load.num_running > 0:
        return
    if engine.schedules_by_prefix and load.num_waiting <= MOST_SORTED:
        sort_by_prefix(fleet, r)
    joins_others = batch.num_requests > 0
    look_from_the_front(fleet, r)
    i = next_waiting(fleet, r)
    while i != NONE and load.num_running < engine.max_num_seqs and batch.num_tokens < engine.max_num_batched_tokens:
        own_line(fleet, r, i).cursor = fleet.requests[slot_of(fleet, i)].next
        if is_held_up(fleet, r, fleet.requests[slot_of(fleet, i)].class_id, now_s):
            pass_by_line(fleet, r, i)
        elif awaits_token(fleet, r, i):
            mark_passed_by(fleet, r, i)
        else:
            num_hits = look_up(fleet, r, i) if engine.enable_prefix_caching else 0
            chunk = first_chunk(fleet, r, i, num_hits, joins_others)
            if chunk == 0 or not fits(fleet, r, i, num_hits, chunk):
                return
            admit(fleet, r, i, num_hits, chunk, now_s)
        i = next_waiting(fleet, r)


@rare
def pass_by_line(fleet: Fleet, r: int, i: int) -> None:
    """Passes by request `i`, which is held up, and with it all of its line.

    Where it matters who was passed by, each is marked when it is reached for the first time.
    """
    engine, line = fleet.engines[fleet.replicas[r].pool], own_line(fleet, r, i)
    if engine.prefill_schedule_interval > 1 or lets_passed_by_go_first(fleet, r):
        mark_passed_by(fleet, r, i)
        line.cursor = fleet.requests[slot_of(fleet, line.last_passed_by)].next
    else:
        line.cursor = NONE


@rare
def sort_by_prefix(fleet: Fleet, r: int) -> None:
    """Sorts the queue by how much of each prompt is in the cache, the most first; equals stay in their order.

    Source: SGLang's `lpm` policy (`SchedulePolicy.calc_priority`), which is first come first served while more wait.
    """
    for k in range(fleet.lines.shape[1]):
        sort_line(fleet, r, fleet.lines[r, k].queue)
        fleet.lines[r, k].last_passed_by = NONE
    look_from_the_front(fleet, r)
    for _ in range(fleet.loads[r].num_waiting):
        first = NONE
        for k in range(fleet.lines.shape[1]):
            i = fleet.lines[r, k].cursor
            if i != NONE and (first == NONE or has_more_cached(fleet, i, first)):
                first = i
        own_line(fleet, r, first).cursor = fleet.requests[slot_of(fleet, first)].next
        sequence_of(fleet, first).place = next_place(fleet)


@rare
def sort_line(fleet: Fleet, r: int, line: Any) -> None:
    """Sorts one of replica `r`'s lines in the same way."""
    i = line.head
    line.head = line.tail = NONE
    while i != NONE:
        following = fleet.requests[slot_of(fleet, i)].next
        sequence_of(fleet, i).num_found = look_up(fleet, r, i)
        before = line.tail
        while before != NONE and sequence_of(fleet, before).num_found < sequence_of(fleet, i).num_found:
            before = fleet.requests[slot_of(fleet, before)].previous
        insert_after(fleet, line, i, before)
        i = following


@verb
def has_more_cached(fleet: Fleet, i: int, j: int) -> bool:
    """Tells whether more of request `i`'s prompt is in the cache than of request `j`'s; of equals, whether it was ahead."""
    ours, theirs = sequence_of(fleet, i), sequence_of(fleet, j)
    return ours.num_found > theirs.num_found or (ours.num_found == theirs.num_found and ours.place < theirs.place)


@verb
def awaits_token(fleet: Fleet, r: int, i: int) -> bool:
    """Tells whether a token of request `i` is still to come from a step that ran before it was preempted."""
    engine = fleet.engines[fleet.replicas[r].pool]
    return engine.num_stages > 1 and sequence_of(fleet, i).last_planned_step >= oldest_step(fleet, r)


@verb
def is_held_up(fleet: Fleet, r: int, class_id: int, now_s: float) -> bool:
    """Tells whether requests of this class are passed by: their grammar is not compiled, or no room is for their adapter.

    In one step, what is held up stays so.
    """
    engine, kind = fleet.engines[fleet.replicas[r].pool], fleet.classes[class_id]
    if kind.grammar_s > 0 and now_s < fleet.lore[r, class_id].grammar_ready_at_s:
        return True
    if engine.max_loras == 0 or kind.adapter == 0:
        return False
    return next_batch(fleet, r).num_adapters == engine.max_loras and not has_adapter(fleet, r, class_id)


@verb
def has_adapter(fleet: Fleet, r: int, class_id: int) -> bool:
    """Tells whether the step being planned runs this class's adapter already."""
    return fleet.lore[r, fleet.classes[class_id].adapter].adapter_step == fleet.replicas[r].num_steps


@verb
def add_adapter(fleet: Fleet, r: int, class_id: int) -> None:
    """Counts this class's adapter among those of the step being planned."""
    replica, adapter = fleet.replicas[r], fleet.classes[class_id].adapter
    if adapter > 0 and not has_adapter(fleet, r, class_id):
        fleet.lore[r, adapter].adapter_step = replica.num_steps
        next_batch(fleet, r).num_adapters += 1


@rare
def count_adapters(fleet: Fleet, r: int) -> None:
    """Counts the distinct adapters of the running requests that the step being planned gives tokens."""
    replica = fleet.replicas[r]
    i = replica.running.head
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        is_scheduled = request.phase == DECODING or request.phase == SURPLUS
        is_scheduled |= request.phase == LAST_TOKEN and request.last_step == replica.num_steps
        is_scheduled |= request.phase == CATCHING_UP and request.num_new_tokens > 0
        if is_scheduled:
            add_adapter(fleet, r, request.class_id)
        i = request.next


@verb
def first_chunk(fleet: Fleet, r: int, i: int, num_hits: int, joins_others: bool) -> int:
    """Returns how many tokens request `i` would get at its admission after `num_hits` cached blocks; 0 = not in this step."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    engine = fleet.engines[replica.pool]
    batch = next_batch(fleet, r)
    budget = engine.max_num_batched_tokens - batch.num_tokens
    num_computed = num_hits * engine.block_size
    chunk = request.num_prompt_tokens + request.num_generated_tokens - num_computed
    if replica.defers_prefills and chunk > 1:
        return 0
    if chunk == 1 and engine.num_speculative_tokens > 0 and not batch.has_prefill and (joins_others or num_hits > 0):
        # a step of equal lengths replays a CUDA graph, so it gets as many (empty) drafts as the others
        padded = 1 + engine.num_speculative_tokens
        if num_computed + padded + 1 <= engine.max_model_len:
            return padded if padded <= budget else 0
    chunk = min(chunk, threshold_of(fleet, r))
    if chunk > budget and not engine.enable_chunked_prefill:
        return 0
    return min(chunk, budget)


@verb
def fits(fleet: Fleet, r: int, i: int, num_hits: int, chunk: int) -> bool:
    """Tells whether the blocks that request `i` needs at its admission are free, and the watermark's with them.

    By default its whole prompt has to fit, though only its first chunk is allocated. Cached blocks that nobody holds count
    as needed: hitting them takes them from the free ones.
    """
    load, request = fleet.loads[r], fleet.requests[slot_of(fleet, i)]
    engine = fleet.engines[fleet.replicas[r].pool]
    num_tokens = num_hits * engine.block_size + chunk + engine.num_lookahead_tokens
    if engine.scheduler_reserve_full_isl:
        num_tokens = max(num_tokens, request.num_prompt_tokens + request.num_generated_tokens)
    need = blocks_for(min(num_tokens, engine.max_model_len), engine.block_size) - num_hits
    if engine.reserves_output:
        need = reserved_blocks(request, engine)
    if num_hits > 0:
        need += count_free(fleet, r, num_hits)
    if load.num_running > 0:
        need += engine.watermark_blocks
    return need <= load.num_free_blocks


@verb
def admit(fleet: Fleet, r: int, i: int, num_hits: int, chunk: int, now_s: float) -> None:
    """Moves request `i` from the waiting to the running requests, with its cached blocks and its first chunk."""
    replica, load, request = fleet.replicas[r], fleet.loads[r], fleet.requests[slot_of(fleet, i)]
    engine = fleet.engines[replica.pool]
    num_cached_tokens = num_hits * engine.block_size
    leave_waiting(fleet, r, i)
    append(fleet, replica.running, i)
    load.num_waiting -= 1
    load.waiting_tokens -= request.num_prompt_tokens + request.num_generated_tokens
    load.num_running += 1
    load.running_tokens += num_cached_tokens
    if not request.scheduled_at_s <= now_s:
        request.scheduled_at_s = now_s
        request.num_cached_tokens = num_cached_tokens
    request.phase = CATCHING_UP
    request.last_step = NONE
    request.num_computed_tokens, request.num_blocks = num_cached_tokens, num_hits
    replica.num_catching_up += 1
    if engine.enable_prefix_caching:
        hold_hits(fleet, r, i, num_hits)
    if engine.reserves_output:
        load.num_free_blocks -= reserved_blocks(request, engine)
    if fleet.classes[request.class_id].grammar_s > 0:
        replica.num_masks += 1
    add_adapter(fleet, r, request.class_id)
    allocate_chunk(fleet, r, i, chunk)
    schedule_chunk(fleet, r, i, chunk)
