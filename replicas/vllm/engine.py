"""vLLM's engine behind the door: it starts a step when the device is free, and ends it when its time is over."""

from typing import Any

from replicas.answers import whole_sequence
from replicas.batches import batch_of, oldest_batch, oldest_step
from replicas.decodes import drop_tokens, is_decode, keep_delivered, stop_decoding
from replicas.kv_blocks import computed_tokens, held_blocks
from replicas.moves import clear_lists, end_running, end_waiting, next_to_go
from replicas.queues import sequence_of, slot_of
from replicas.steps import run_next, send
from replicas.vllm.allocation import free_blocks
from replicas.vllm.block_pool import fill_pool, shared_blocks
from replicas.vllm.delivery import deliver
from replicas.vllm.pipeline import awaits_tokens, keep_place, pass_stages
from replicas.vllm.scheduler import plan
from replicas.vllm.speculation import forget_steps, grows_unevenly, leave_batch
from sim.compiled import rare, verb
from sim.records import CATCHING_UP, LAST_TOKEN, NO_REASON, NONE, OVER_KV_CACHE, OVER_MAX_MODEL_LEN, WAITING, Fleet


@verb
def turn(fleet: Fleet, r: int, now_s: float) -> None:
    """Ends replica `r`'s oldest step in flight, if there is one, and plans what may follow.

    With async scheduling one more step is in flight than runs. It sees arrivals, stops and free blocks one step late, and in
    exchange the CPU's work hides behind the device's. A pipeline has a step in each stage.
    """
    replica = fleet.replicas[r]
    engine = fleet.engines[replica.pool]
    if replica.num_in_flight > 0:
        replica.num_empty -= oldest_batch(fleet, r).num_empty_behind
        deliver(fleet, r, now_s)
    while replica.num_in_flight + replica.num_empty < engine.num_stages + engine.async_scheduling:
        num_preemptions = replica.num_preemptions
        if plan(fleet, r, now_s):
            start(fleet, r, now_s)
            if engine.num_stages > 1 and awaits_tokens(fleet, r):
                break
        elif not plans_again(fleet, r, num_preemptions):
            break


@verb
def start(fleet: Fleet, r: int, now_s: float) -> None:
    """Sends the planned step to the device; when it will end is then known, unless others step with it."""
    is_pipeline = fleet.engines[fleet.replicas[r].pool].num_stages > 1
    send(fleet, r, pass_stages(fleet, r, now_s) if is_pipeline else run_next(fleet, r, now_s))


@verb
def plans_again(fleet: Fleet, r: int, num_preemptions: int) -> bool:
    """Tells whether the engine plans again after a plan that found nothing to do.

    By priority, all of an idle engine's may be preempted: the next plan admits some.
    """
    replica = fleet.replicas[r]
    if replica.num_in_flight == 0:
        return replica.num_preemptions != num_preemptions
    return fleet.engines[replica.pool].num_stages > 1 and keep_place(fleet, r)


@verb
def refuse(fleet: Fleet, pool: int, i: int) -> int:
    """Returns why an engine of this pool could never serve request `i`: its length, or the KV of all but its last token."""
    engine = fleet.engines[pool]
    num_tokens = whole_sequence(fleet, pool, i)
    if num_tokens > engine.max_model_len:
        return OVER_MAX_MODEL_LEN
    num_ahead = engine.num_speculative_tokens + engine.num_lookahead_tokens
    if min(num_tokens - 1 + num_ahead, engine.max_model_len) > engine.num_usable_blocks * engine.block_size:
        return OVER_KV_CACHE
    return NO_REASON


@verb
def clear(fleet: Fleet, r: int) -> None:
    """Empties replica `r`: no requests, no steps, all blocks free and without tokens."""
    clear_lists(fleet, r)
    replica = fleet.replicas[r]
    replica.is_saturated = replica.num_empty = replica.num_plans = 0
    fleet.stages[r, :] = 0.0
    for residue in range(fleet.growing.shape[1]):
        growing = fleet.growing[r, residue]
        growing.num_decodes, growing.head, growing.tail = 0, NONE, NONE
    if fleet.engines[replica.pool].enable_prefix_caching:
        fill_pool(fleet, r)


@verb
def evict(fleet: Fleet, r: int) -> int:
    """Takes one request off replica `r`'s lists and returns it, or `NONE`; tokens still on the device are lost."""
    i = next_to_go(fleet, r)
    if i == NONE:
        return i
    replica, request, sequence = fleet.replicas[r], fleet.requests[slot_of(fleet, i)], sequence_of(fleet, i)
    if is_decode(request):
        keep_delivered(fleet, r, i)
    elif replica.num_in_flight > 0 and request.last_step == oldest_step(fleet, r):
        # preempted or passed over, its token on the device
        request.num_generated_tokens -= 1
        if request.last_token_at_s == oldest_batch(fleet, r).ends_at_s:
            request.last_token_at_s = replica.last_step_ended_at_s
    forget_steps(fleet, i)
    sequence.last_planned_step = NONE
    return i


@rare
def abort(fleet: Fleet, r: int, i: int) -> None:
    """Takes request `i` off replica `r`'s lists and frees its blocks; its tokens on the device are thrown away."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    if request.phase == WAITING:
        end_waiting(fleet, r, i)
    else:
        free_blocks(fleet, r, i, replica.num_steps - 1)
        if request.phase == CATCHING_UP:
            replica.num_catching_up -= 1
        elif request.phase != LAST_TOKEN:
            stop_decoding(fleet, r, i)
        end_running(fleet, r, i)
    if grows_unevenly(fleet.engines[replica.pool]):
        for step in range(oldest_step(fleet, r), replica.num_steps):
            leave_batch(fleet, r, i, batch_of(fleet, r, step))
    else:
        drop_tokens(fleet, r, i)


@verb
def recount(fleet: Fleet, r: int, counts: Any) -> None:
    """Adds what the running requests hold; blocks that several share count once.

    The holders of all blocks must add up to what the requests hold; if they do not, no block is counted.
    """
    replica = fleet.replicas[r]
    engine = fleet.engines[replica.pool]
    i = replica.running.head
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        counts[2] += held_blocks(request, replica.num_steps - 1, engine)
        counts[3] += computed_tokens(request, replica.num_steps - 1)
        i = request.next
    if engine.enable_prefix_caching:
        counts[2] = shared_blocks(fleet, r, counts[2])
