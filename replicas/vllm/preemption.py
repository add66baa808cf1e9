"""Preemption: a running request gives up its blocks and goes back to the queue. Its KV is lost; its sent tokens stay sent."""

from replicas.decodes import stop_decoding
from replicas.moves import end_running
from replicas.queues import goes_before, return_to_waiting, slot_of
from replicas.vllm.allocation import free_blocks
from replicas.vllm.passing_over import remember_last_token
from replicas.vllm.speculation import forget_steps, grows_unevenly
from sim.compiled import rare
from sim.records import CATCHING_UP, DECODING, NONE, SURPLUS, WAITING, Fleet


@rare
def victim_of(fleet: Fleet, r: int) -> int:
    """Returns who is preempted next: the last of the running requests, or under priority scheduling the least urgent."""
    replica = fleet.replicas[r]
    if not fleet.engines[replica.pool].schedules_by_priority:
        return replica.running.tail
    victim = replica.running.head
    i = fleet.requests[slot_of(fleet, victim)].next
    while i != NONE:
        if goes_before(fleet, victim, i):
            victim = i
        i = fleet.requests[slot_of(fleet, i)].next
    return victim


@rare
def preempt(fleet: Fleet, r: int, i: int, step: int) -> None:
    """Sends a running request back to the queue; `step` is the latest one that has taken blocks for it."""
    replica, load, request = fleet.replicas[r], fleet.loads[r], fleet.requests[slot_of(fleet, i)]
    latest_step = replica.num_steps - 1
    free_blocks(fleet, r, i, step)
    if request.phase == DECODING:
        stop_decoding(fleet, r, i)
        remember_last_token(fleet, r, i)
        request.num_generated_tokens = request.num_output_tokens - (request.last_step - latest_step)
        request.last_step = latest_step
    elif request.phase == CATCHING_UP:
        replica.num_catching_up -= 1
        request.num_computed_tokens = 0
        request.last_step = NONE
        if grows_unevenly(fleet.engines[replica.pool]):
            forget_steps(fleet, i)
    else:  # only with async scheduling: its last token is on the device and will still come
        if request.phase == SURPLUS:
            stop_decoding(fleet, r, i)
        if request.num_output_tokens - request.num_generated_tokens > 1:  # it decoded, so the one before came a step ago
            request.last_token_at_s = replica.last_step_ended_at_s
        request.num_generated_tokens = request.num_output_tokens - 1
        request.last_step = NONE
    end_running(fleet, r, i)
    return_to_waiting(fleet, r, i)
    request.phase = WAITING
    request.num_preemptions += 1
    replica.num_preemptions += 1
    load.num_waiting += 1
    load.waiting_tokens += request.num_prompt_tokens + request.num_generated_tokens
