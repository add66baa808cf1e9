"""Answers that grow by several tokens a step: drafts that hold, and text that a grammar forces.

Speculative decoding: a drafter proposes tokens, the next step checks them all, and those up to the first wrong one stay.
The drafter's own time is not a step of the engine; it is part of the step time.
"""

from typing import Any

import numpy as np

from replicas.batches import batch_of, next_batch
from replicas.block_keys import scramble
from replicas.queues import sequence_of, slot_of
from sim.compiled import verb
from sim.records import NONE, Fleet


@verb
def schedule_drafts(fleet: Fleet, r: int, i: int, chunk: int) -> None:
    """Notes how many of the `chunk` tokens now scheduled are drafts, and if the request has then caught up, its yield."""
    replica, request, sequence = fleet.replicas[r], fleet.requests[slot_of(fleet, i)], sequence_of(fleet, i)
    engine = fleet.engines[replica.pool]
    batch = next_batch(fleet, r)
    half = batch.half
    num_known = request.num_prompt_tokens + request.num_generated_tokens + sequence.num_placeholders
    num_computed = request.num_computed_tokens + chunk
    sequence.num_scheduled_drafts[half] = max(num_computed - num_known, 0)
    sequence.num_real_drafts[half] = min(sequence.num_scheduled_drafts[half], sequence.num_drafts)
    sequence.num_drafts = 0
    if sequence.num_placeholders > 0:
        batch.ends_at_s = max(batch.ends_at_s, batch_of(fleet, r, sequence.last_planned_step).ends_at_s)
    sequence.last_planned_step = replica.num_steps
    if num_computed < num_known:
        return
    if fleet.classes[request.class_id].grammar_s > 0 and sequence.num_placeholders > 0:
        batch.awaits_tokens = 1
    sequence.may_decode_at = replica.num_plans + (engine.num_stages if engine.async_scheduling else 1)
    if engine.async_scheduling:
        sequence.num_placeholders += 1 + sequence.num_scheduled_drafts[half]
        sequence.num_drafts = engine.num_speculative_tokens
    sequence.caught_up_next[half] = NONE
    if batch.first_head == NONE:
        batch.first_head = i
    else:
        sequence_of(fleet, batch.first_tail).caught_up_next[half] = i
    batch.first_tail = i


@verb
def forget_steps(fleet: Fleet, i: int) -> None:
    """Forgets what request `i` still had to come from its replica: it begins anew."""
    sequence = sequence_of(fleet, i)
    sequence.num_drafts = sequence.num_placeholders = sequence.may_decode_at = 0


@verb
def count_accepted(fleet: Fleet, r: int, i: int, num_drafts: int) -> int:
    """Returns how many of a request's drafts the model agrees with: leading ones, each with the engine's chance.

    Drawn from the request and how many tokens it has got, so that no schedule changes it.
    """
    request, engine = fleet.requests[slot_of(fleet, i)], fleet.engines[fleet.replicas[r].pool]
    place = np.uint64(i) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(request.num_generated_tokens)
    seed = scramble(place)
    accepted = 0
    while accepted < num_drafts:
        draw = float(scramble(seed + np.uint64(accepted)) >> np.uint64(11)) * 2.0**-53
        if draw >= engine.acceptance_rate:
            break
        accepted += 1
    return accepted


@verb
def grows_unevenly(engine: Any) -> bool:
    """Tells whether requests of this engine do not get one token in every step: some get several, or they take turns."""
    return engine.num_speculative_tokens > 0 or engine.jump_forward > 0 or engine.num_stages > 1


@verb
def count_forced(fleet: Fleet, i: int, num_tokens: int) -> int:
    """Returns how many tokens the grammar forces once request `i` has got `num_tokens`: text with only one way to go on.

    With jump-forward decoding they are appended at once, and the next step computes them like a short prefill.
    """
    kind = fleet.classes[fleet.requests[slot_of(fleet, i)].class_id]
    if kind.num_forced_tokens == 0:
        return 0
    period = kind.num_free_tokens + kind.num_forced_tokens
    place = num_tokens % period
    return period - place if place >= kind.num_free_tokens else 0


@verb
def leave_batch(fleet: Fleet, r: int, i: int, batch: Any) -> None:
    """Takes a request that has ended out of a step that was planned before that was known."""
    before, j = NONE, batch.first_head
    while j != NONE and j != i:
        before, j = j, sequence_of(fleet, j).caught_up_next[batch.half]
    if j == NONE:
        return
    following = sequence_of(fleet, i).caught_up_next[batch.half]
    if before == NONE:
        batch.first_head = following
    else:
        sequence_of(fleet, before).caught_up_next[batch.half] = following
    if following == NONE:
        batch.first_tail = before
