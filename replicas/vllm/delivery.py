"""What a step's end brings on vLLM's engine: tokens, drafts that hold or do not, and the finished out of it."""

from replicas.batches import batch_of, oldest_batch
from replicas.decodes import stop_decoding
from replicas.delivery import count_gaps, deliver_decodes, deliver_first, deliver_firsts, end_step, leave_finished, take_due
from replicas.moves import end_running, end_waiting
from replicas.queues import sequence_of, slot_of
from replicas.vllm.allocation import free_blocks
from replicas.vllm.prefix_cache import register_blocks
from replicas.vllm.speculation import count_accepted, count_forced, grows_unevenly, leave_batch
from sim.compiled import rare, verb
from sim.records import CALENDAR, CATCHING_UP, NONE, SURPLUS, WAITING, Fleet


@verb
def deliver(fleet: Fleet, r: int, now_s: float) -> None:
    """Ends the oldest step in flight and hands out its tokens."""
    replica = fleet.replicas[r]
    batch = oldest_batch(fleet, r)
    deliver_decodes(fleet, r, now_s)
    if grows_unevenly(fleet.engines[replica.pool]):
        deliver_checked(fleet, r, now_s)
    else:
        deliver_firsts(fleet, r, now_s)
    slot = batch.step & (CALENDAR - 1)
    if fleet.engines[replica.pool].enable_prefix_caching:
        sort_due(fleet, r, slot)
    i = take_due(fleet, r, slot)
    while i != NONE:
        following = fleet.requests[slot_of(fleet, i)].due_next
        finish(fleet, r, i, now_s)
        i = following
    end_step(fleet, r, now_s)


@rare
def sort_due(fleet: Fleet, r: int, slot: int) -> None:
    """Sorts those that end together in order of admission, as vLLM frees them: their blocks will be reused in that order."""
    i, fleet.due[r, slot] = fleet.due[r, slot], NONE
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        following, before, after = request.due_next, NONE, fleet.due[r, slot]
        while after != NONE and sequence_of(fleet, after).admission < sequence_of(fleet, i).admission:
            before, after = after, fleet.requests[slot_of(fleet, after)].due_next
        request.due_next = after
        if before == NONE:
            fleet.due[r, slot] = i
        else:
            fleet.requests[slot_of(fleet, before)].due_next = i
        i = following


@rare
def deliver_checked(fleet: Fleet, r: int, now_s: float) -> None:
    """Delivers what the ended step yields: for each request the drafts that hold, a token, and what that one forces."""
    replica = fleet.replicas[r]
    batch = oldest_batch(fleet, r)
    i = batch.first_head
    while i != NONE:
        following = sequence_of(fleet, i).caught_up_next[batch.half]
        settle_drafts(fleet, r, i, batch.half, now_s)
        if fleet.requests[slot_of(fleet, i)].num_generated_tokens == fleet.requests[slot_of(fleet, i)].num_output_tokens:
            for step in range(batch.step + 1, replica.num_steps):
                leave_batch(fleet, r, i, batch_of(fleet, r, step))
            finish(fleet, r, i, now_s)
        i = following


@verb
def settle_drafts(fleet: Fleet, r: int, i: int, half: int, now_s: float) -> None:
    """Delivers a request's tokens at one instant, and takes back what was computed for drafts that do not hold."""
    replica, load = fleet.replicas[r], fleet.loads[r]
    request, sequence = fleet.requests[slot_of(fleet, i)], sequence_of(fleet, i)
    engine = fleet.engines[replica.pool]
    num_accepted = count_accepted(fleet, r, i, sequence.num_real_drafts[half])
    num_rejected = sequence.num_scheduled_drafts[half] - num_accepted
    num_tokens = num_accepted + 1
    if engine.jump_forward:
        num_tokens += count_forced(fleet, i, request.num_generated_tokens + num_tokens)
    num_tokens = min(num_tokens, request.num_output_tokens - request.num_generated_tokens)
    deliver_first(fleet, r, i, now_s)
    replica.num_delivered_tokens += num_tokens - 1
    count_gaps(fleet, replica.pool, 0.0, num_tokens - 1)
    request.num_generated_tokens += num_tokens
    if request.phase == WAITING:  # preempted while this step was on the device
        load.waiting_tokens += num_tokens
        return
    request.num_computed_tokens -= num_rejected
    load.running_tokens -= num_rejected
    if engine.async_scheduling:
        sequence.num_placeholders -= num_rejected + num_tokens
        if engine.enable_prefix_caching:
            register_blocks(fleet, r, i, request.num_computed_tokens - sequence.num_placeholders)
    else:
        sequence.num_drafts = engine.num_speculative_tokens


@verb
def finish(fleet: Fleet, r: int, i: int, now_s: float) -> None:
    """Ends request `i` with its last token; its slot and blocks are free from here on."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    engine = fleet.engines[replica.pool]
    if request.phase == WAITING:  # preempted with its last token already on the device
        end_waiting(fleet, r, i)
    else:
        if engine.enable_prefix_caching and engine.async_scheduling and not grows_unevenly(engine):
            register_blocks(fleet, r, i, request.num_prompt_tokens + request.num_output_tokens - 1)
        free_blocks(fleet, r, i, replica.num_steps - 1)
        if request.phase == SURPLUS:
            stop_decoding(fleet, r, i)
        elif request.phase == CATCHING_UP:
            replica.num_catching_up -= 1
        end_running(fleet, r, i)
    leave_finished(fleet, r, i, now_s)
