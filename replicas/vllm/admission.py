"""Which waiting requests join the running ones in a step: vLLM's second loop.

In the queue's order, while there are tokens, sequence slots and blocks. One that does not fit blocks those behind it; one
that must wait for something else (its grammar, a slot for its adapter) lets them pass, and with it all of its line.
"""

from typing import Any

from replicas.batches import next_batch, oldest_step
from replicas.held_up import add_adapter, is_held_up, pass_by_line
from replicas.kv_blocks import blocks_for, reserved_blocks
from replicas.moves import begin_running
from replicas.queues import (
    insert_after,
    look_from_the_front,
    mark_passed_by,
    next_place,
    next_waiting,
    own_line,
    sequence_of,
    slot_of,
)
from replicas.vllm.catching_up import allocate_chunk, schedule_chunk, threshold_of
from replicas.vllm.prefix_cache import count_free, hold_hits, look_up
from sim.compiled import rare, verb
from sim.records import NONE, Fleet

MOST_SORTED = 128
"""Waiting requests up to which SGLang sorts its queue by prefix."""


@verb
def admit_waiting(fleet: Fleet, r: int, now_s: float) -> None:
    """Lets waiting requests into the step that is being planned, each with its first chunk."""
    replica, load = fleet.replicas[r], fleet.loads[r]
    engine = fleet.engines[replica.pool]
    batch = next_batch(fleet, r)
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
    load, request = fleet.loads[r], fleet.requests[slot_of(fleet, i)]
    engine = fleet.engines[fleet.replicas[r].pool]
    begin_running(fleet, r, i, num_hits * engine.block_size, now_s)
    request.num_blocks = num_hits
    if engine.enable_prefix_caching:
        hold_hits(fleet, r, i, num_hits)
    if engine.reserves_output:
        load.num_free_blocks -= reserved_blocks(request, engine)
    add_adapter(fleet, r, request.class_id)
    allocate_chunk(fleet, r, i, chunk)
    schedule_chunk(fleet, r, i, chunk)
