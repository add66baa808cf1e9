"""Static batching behind the door: a batch is taken together, runs until its longest answer is done, and nobody joins it.

What is taken fits at once: its prompts, which are not split, into one step, and the KV of its whole sequences into the cache,
where it is set aside. So nothing is ever preempted or passed over, and all that run are steady decodes after their first step.
Baseline: batching before Orca (Yu et al., OSDI 2022, section 3.1), with the answers' lengths known.
"""

from typing import Any

from replicas.answers import whole_sequence
from replicas.batches import clear_batch, next_batch, oldest_batch
from replicas.decodes import drop_tokens, is_decode, keep_delivered, schedule_decodes, start_decoding, stop_decoding
from replicas.delivery import deliver_decodes, deliver_firsts, end_step, leave_finished, take_due
from replicas.held_up import add_adapter, count_adapters, is_held_up, pass_by_line
from replicas.kv_blocks import computed_tokens, reserved_blocks
from replicas.moves import begin_running, clear_lists, end_running, end_waiting, next_to_go
from replicas.queues import look_from_the_front, next_waiting, own_line, slot_of
from replicas.steps import count_step, run_next, send
from sim.compiled import rare, verb
from sim.records import CALENDAR, LAST_TOKEN, NO_REASON, NONE, OVER_KV_CACHE, OVER_MAX_MODEL_LEN, SURPLUS, WAITING, Fleet


@rare
def turn(fleet: Fleet, r: int, now_s: float) -> None:
    """Ends replica `r`'s oldest step in flight, if there is one, and plans what may follow: with async scheduling one ahead."""
    replica = fleet.replicas[r]
    if replica.num_in_flight > 0:
        deliver(fleet, r, now_s)
    while replica.num_in_flight < 1 + fleet.engines[replica.pool].async_scheduling and plan(fleet, r, now_s):
        send(fleet, r, run_next(fleet, r, now_s))


@verb
def deliver(fleet: Fleet, r: int, now_s: float) -> None:
    """Ends the oldest step in flight and hands out its tokens."""
    deliver_decodes(fleet, r, now_s)
    deliver_firsts(fleet, r, now_s)
    i = take_due(fleet, r, oldest_batch(fleet, r).step & (CALENDAR - 1))
    while i != NONE:
        following = fleet.requests[slot_of(fleet, i)].due_next
        finish(fleet, r, i, now_s)
        i = following
    end_step(fleet, r, now_s)


@verb
def finish(fleet: Fleet, r: int, i: int, now_s: float) -> None:
    """Ends request `i` with its last token; what was set aside for it is free from here on, though nobody may take it yet."""
    replica, load, request = fleet.replicas[r], fleet.loads[r], fleet.requests[slot_of(fleet, i)]
    load.num_free_blocks += reserved_blocks(request, fleet.engines[replica.pool])
    load.running_tokens -= computed_tokens(request, replica.num_steps - 1)
    if request.phase == SURPLUS:
        stop_decoding(fleet, r, i)
    end_running(fleet, r, i)
    leave_finished(fleet, r, i, now_s)


@verb
def plan(fleet: Fleet, r: int, now_s: float) -> bool:
    """Plans replica `r`'s next step, of the batch that runs or else of a new one, and returns whether it has any work."""
    load = fleet.loads[r]
    clear_batch(fleet, r)
    schedule_decodes(fleet, r)
    if fleet.engines[fleet.replicas[r].pool].max_loras > 0:
        count_adapters(fleet, r)
    if load.num_running == 0 and load.num_waiting > 0:
        take_batch(fleet, r, now_s)
    return count_step(fleet, r)


@verb
def take_batch(fleet: Fleet, r: int, now_s: float) -> None:
    """Takes the next batch, in the queue's order: the first that does not fit ends it, what is held up is passed by."""
    engine, load, batch = fleet.engines[fleet.replicas[r].pool], fleet.loads[r], next_batch(fleet, r)
    look_from_the_front(fleet, r)
    i = next_waiting(fleet, r)
    while i != NONE and load.num_running < engine.max_num_seqs and batch.num_tokens < engine.max_num_batched_tokens:
        own_line(fleet, r, i).cursor = fleet.requests[slot_of(fleet, i)].next
        if is_held_up(fleet, r, fleet.requests[slot_of(fleet, i)].class_id, now_s):
            pass_by_line(fleet, r, i)
        elif fits(fleet, r, i):
            admit(fleet, r, i, now_s)
        else:
            return
        i = next_waiting(fleet, r)


@verb
def fits(fleet: Fleet, r: int, i: int) -> bool:
    """Tells whether the step has room for request `i`'s tokens, and the cache for its whole sequence and the watermark."""
    load, request = fleet.loads[r], fleet.requests[slot_of(fleet, i)]
    engine = fleet.engines[fleet.replicas[r].pool]
    num_tokens = next_batch(fleet, r).num_tokens + request.num_prompt_tokens + request.num_generated_tokens
    need = reserved_blocks(request, engine)
    if load.num_running > 0:
        need += engine.watermark_blocks
    return num_tokens <= engine.max_num_batched_tokens and need <= load.num_free_blocks


@verb
def admit(fleet: Fleet, r: int, i: int, now_s: float) -> None:
    """Takes request `i` into the batch: sets its blocks aside, and computes all its tokens in the step being planned."""
    request, batch = fleet.requests[slot_of(fleet, i)], next_batch(fleet, r)
    begin_running(fleet, r, i, 0, now_s)
    fleet.loads[r].num_free_blocks -= reserved_blocks(request, fleet.engines[fleet.replicas[r].pool])
    add_adapter(fleet, r, request.class_id)
    num_tokens = request.num_prompt_tokens + request.num_generated_tokens
    request.num_computed_tokens = request.num_new_tokens = num_tokens
    batch.num_requests += 1
    batch.num_tokens += num_tokens
    batch.kv_tokens += num_tokens
    batch.attended_tokens += num_tokens * (0.5 * num_tokens)
    start_decoding(fleet, r, i)


@verb
def refuse(fleet: Fleet, pool: int, i: int) -> int:
    """Returns why an engine of this pool could never serve request `i`: its length, or the KV of all but its last token."""
    engine = fleet.engines[pool]
    num_tokens = whole_sequence(fleet, pool, i)
    if num_tokens > engine.max_model_len:
        return OVER_MAX_MODEL_LEN
    if num_tokens - 1 > engine.num_usable_blocks * engine.block_size:
        return OVER_KV_CACHE
    return NO_REASON


@verb
def clear(fleet: Fleet, r: int) -> None:
    """Empties replica `r`: no requests, no steps, all blocks free."""
    clear_lists(fleet, r)


@verb
def evict(fleet: Fleet, r: int) -> int:
    """Takes one request off replica `r`'s lists and returns it, or `NONE`; tokens still on the device are lost."""
    i = next_to_go(fleet, r)
    if i != NONE and is_decode(fleet.requests[slot_of(fleet, i)]):
        keep_delivered(fleet, r, i)
    return i


@rare
def abort(fleet: Fleet, r: int, i: int) -> None:
    """Takes request `i` off replica `r`'s lists with what is set aside for it; the batch goes on without it."""
    replica, load, request = fleet.replicas[r], fleet.loads[r], fleet.requests[slot_of(fleet, i)]
    if request.phase == WAITING:
        end_waiting(fleet, r, i)
        return
    load.num_free_blocks += reserved_blocks(request, fleet.engines[replica.pool])
    load.running_tokens -= computed_tokens(request, replica.num_steps - 1)
    if request.phase != LAST_TOKEN:
        stop_decoding(fleet, r, i)
    end_running(fleet, r, i)
    drop_tokens(fleet, r, i)


@verb
def recount(fleet: Fleet, r: int, counts: Any) -> None:
    """Adds the blocks that are set aside for the running requests, and their tokens with KV."""
    replica = fleet.replicas[r]
    i = replica.running.head
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        counts[2] += reserved_blocks(request, fleet.engines[replica.pool])
        counts[3] += computed_tokens(request, replica.num_steps - 1)
        i = request.next
