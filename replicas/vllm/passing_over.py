"""Decodes that go without a token: passed over in a step, or preempted, they leave the steady part of the batch."""

from replicas.batches import batch_of
from replicas.decodes import stop_decoding
from replicas.kv_blocks import computed_tokens, held_blocks
from replicas.queues import slot_of
from sim.compiled import verb
from sim.records import CATCHING_UP, DECODING, Fleet


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
