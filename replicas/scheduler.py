"""vLLM V1's scheduler (0.32, `vllm/v1/core/sched/scheduler.py`): who gets how many tokens in the next step.

There are no prefill and decode phases, only a token budget: the running requests first, in order of admission, then the
waiting ones. First come first served, and a waiting request that does not fit blocks those behind it.

Every decode gets one token in every step, so what the decodes need is kept in sums (how many, their context, how many
need a block at this step), and a step costs the same whatever the batch. At most one running request has an unfinished
prefill, and it is the last: a prefill ends a step's budget or ends in it.
"""

from replicas.kv_blocks import blocks_for, computed_tokens, free_blocks, growth_residue, take_blocks
from replicas.queues import append, file_due, prepend, remove, remove_due, slot_of
from sim.compiled import verb
from sim.records import CALENDAR, DECODING, LAST_TOKEN, NONE, PREFILLING, WAITING, Fleet


@verb
def plan(fleet: Fleet, r: int, now_s: float) -> bool:
    """Plans replica `r`'s next step into its batch record and returns whether the step has any work."""
    replica = fleet.replicas[r]
    num_preemptions = replica.num_preemptions
    clear_batch(fleet, r)
    preempt_until_decodes_fit(fleet, r)
    schedule_decodes(fleet, r)
    budget = fleet.engines[replica.pool].max_num_batched_tokens - fleet.batches[r, replica.num_steps & 1].num_decodes
    if replica.prefilling != NONE:
        budget = continue_prefill(fleet, r, budget)
    if replica.num_preemptions == num_preemptions:  # a step that preempted admits nobody
        while budget > 0 and can_admit(fleet, r, budget):
            budget = admit(fleet, r, budget, now_s)
    batch = fleet.batches[r, replica.num_steps & 1]
    if batch.num_requests == 0:
        return False
    fleet.loads[r].running_tokens += batch.num_tokens
    replica.peak_batched_tokens = max(replica.peak_batched_tokens, batch.num_tokens)
    replica.peak_running = max(replica.peak_running, fleet.loads[r].num_running)
    replica.num_steps += 1
    return True


@verb
def clear_batch(fleet: Fleet, r: int) -> None:
    """Empties the record of replica `r`'s next step."""
    replica = fleet.replicas[r]
    batch = fleet.batches[r, replica.num_steps & 1]
    batch.step = replica.num_steps
    batch.num_decodes = batch.num_requests = batch.num_tokens = batch.kv_tokens = 0
    batch.attended_tokens = 0.0
    batch.first_head = NONE


@verb
def preempt_until_decodes_fit(fleet: Fleet, r: int) -> None:
    """Preempts from the back of the running requests until the free blocks cover every decode that needs a new one.

    vLLM walks the running requests and preempts the last one each time an allocation fails. As only those behind can be
    preempted, it ends with the shortest tail removed that leaves enough for the rest, which is what this finds.
    """
    replica, load = fleet.replicas[r], fleet.loads[r]
    residue = replica.num_steps % fleet.engines[replica.pool].block_size
    while fleet.growing[r, residue] > load.num_free_blocks:
        preempt(fleet, r, replica.running.tail)
    take_blocks(fleet, r, fleet.growing[r, residue])


@verb
def preempt(fleet: Fleet, r: int, i: int) -> None:
    """Sends a running request back to the front of the queue. Its KV is lost; the tokens it has sent stay sent."""
    replica, load, request = fleet.replicas[r], fleet.loads[r], fleet.requests[slot_of(fleet, i)]
    latest_step = replica.num_steps - 1
    free_blocks(fleet, r, request)
    if request.phase == DECODING:
        stop_decoding(fleet, r, i)
        remove_due(fleet, r, i)
        remember_last_token(fleet, r, i)
        request.num_generated_tokens = request.num_output_tokens - (request.last_step - latest_step)
        request.last_step = latest_step
    elif request.phase == LAST_TOKEN:  # only with async scheduling: its last token is on the device and will still come
        if request.num_output_tokens - request.num_generated_tokens > 1:  # it decoded, so the one before came a step ago
            request.last_token_at_s = replica.last_step_ended_at_s
        request.num_generated_tokens = request.num_output_tokens - 1
        request.last_step = NONE
    else:
        replica.prefilling = NONE
        request.num_computed_tokens = 0
        request.last_step = NONE
    remove(fleet, replica.running, i)
    prepend(fleet, replica.waiting, i)
    request.phase = WAITING
    request.num_preemptions += 1
    replica.num_preemptions += 1
    load.num_running -= 1
    load.num_waiting += 1
    load.waiting_tokens += request.num_prompt_tokens + request.num_generated_tokens


@verb
def remember_last_token(fleet: Fleet, r: int, i: int) -> None:
    """Notes when a decode that is being preempted got its last token, so that the gap it will see can be told.

    If the token that ended its prefill is still on the device, `deliver` will note it.
    """
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    first_step = request.last_step - (request.num_output_tokens - request.num_generated_tokens) + 1
    latest_step = replica.num_steps - 1
    if first_step < latest_step:
        if replica.is_running:
            request.last_token_at_s = fleet.batches[r, latest_step & 1].ends_at_s
        else:
            request.last_token_at_s = replica.last_step_ended_at_s


@verb
def schedule_decodes(fleet: Fleet, r: int) -> None:
    """Gives every decode its token, and lets those go for which it is the last."""
    replica = fleet.replicas[r]
    batch = fleet.batches[r, replica.num_steps & 1]
    batch.num_decodes = batch.num_requests = batch.num_tokens = replica.num_decoding
    batch.attended_tokens = replica.decoding_context_tokens + 0.5 * replica.num_decoding
    replica.decoding_context_tokens += replica.num_decoding
    batch.kv_tokens = replica.decoding_context_tokens
    i = fleet.due[r, replica.num_steps & (CALENDAR - 1)]
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        following = request.due_next
        if request.last_step == replica.num_steps:
            finish_decoding(fleet, r, i)
        else:
            remove_due(fleet, r, i)
            file_due(fleet, r, i, replica.num_steps)
        i = following


@verb
def finish_decoding(fleet: Fleet, r: int, i: int) -> None:
    """Takes a request whose last token is in the step being planned out of the sums; it keeps its blocks until `deliver`."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    replica.num_decoding -= 1
    replica.decoding_context_tokens -= request.num_prompt_tokens + request.num_output_tokens - 1
    fleet.growing[r, growth_residue(request, fleet.engines[replica.pool].block_size)] -= 1
    request.phase = LAST_TOKEN


@verb
def stop_decoding(fleet: Fleet, r: int, i: int) -> None:
    """Takes a decode that is being preempted out of the sums."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    replica.num_decoding -= 1
    replica.decoding_context_tokens -= computed_tokens(request, replica.num_steps - 1)
    fleet.growing[r, growth_residue(request, fleet.engines[replica.pool].block_size)] -= 1


@verb
def continue_prefill(fleet: Fleet, r: int, budget: int) -> int:
    """Gives the unfinished prefill its next chunk, or preempts it if its blocks are not there; returns what is left."""
    replica = fleet.replicas[r]
    i = replica.prefilling
    request = fleet.requests[slot_of(fleet, i)]
    chunk = min(budget, request.num_prompt_tokens + request.num_generated_tokens - request.num_computed_tokens)
    if chunk == 0:
        return budget
    block_size = fleet.engines[replica.pool].block_size
    need = blocks_for(request.num_computed_tokens + chunk, block_size) - blocks_for(request.num_computed_tokens, block_size)
    if need > fleet.loads[r].num_free_blocks:
        preempt(fleet, r, i)
        return budget
    take_blocks(fleet, r, need)
    schedule_chunk(fleet, r, i, chunk)
    return budget - chunk


@verb
def can_admit(fleet: Fleet, r: int, budget: int) -> bool:
    """Tells whether the head of the queue may start in this step: a sequence slot, its blocks and the watermark's."""
    replica, load = fleet.replicas[r], fleet.loads[r]
    engine = fleet.engines[replica.pool]
    if replica.waiting.head == NONE or load.num_running >= engine.max_num_seqs:
        return False
    request = fleet.requests[slot_of(fleet, replica.waiting.head)]
    num_tokens = request.num_prompt_tokens + request.num_generated_tokens
    if num_tokens > budget and not engine.enable_chunked_prefill:
        return False
    if not engine.scheduler_reserve_full_isl:
        num_tokens = min(num_tokens, budget)
    need = blocks_for(min(num_tokens, engine.max_model_len), engine.block_size)
    if load.num_running > 0:
        need += engine.watermark_blocks
    return need <= load.num_free_blocks


@verb
def admit(fleet: Fleet, r: int, budget: int, now_s: float) -> int:
    """Moves the head of the queue to the running requests with its first chunk; returns what is left of the budget."""
    replica, load = fleet.replicas[r], fleet.loads[r]
    i = replica.waiting.head
    request = fleet.requests[slot_of(fleet, i)]
    num_tokens = request.num_prompt_tokens + request.num_generated_tokens
    chunk = min(num_tokens, budget)
    remove(fleet, replica.waiting, i)
    append(fleet, replica.running, i)
    load.num_waiting -= 1
    load.waiting_tokens -= num_tokens
    load.num_running += 1
    take_blocks(fleet, r, blocks_for(chunk, fleet.engines[replica.pool].block_size))
    if not request.scheduled_at_s <= now_s:
        request.scheduled_at_s = now_s
    request.phase = PREFILLING
    request.num_computed_tokens = 0
    replica.prefilling = i
    schedule_chunk(fleet, r, i, chunk)
    return budget - chunk


@verb
def schedule_chunk(fleet: Fleet, r: int, i: int, chunk: int) -> None:
    """Adds `chunk` tokens of a prefill to the step; if they are the rest of it, the step yields a token."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    batch = fleet.batches[r, replica.num_steps & 1]
    batch.num_requests += 1
    batch.num_tokens += chunk
    batch.attended_tokens += chunk * (request.num_computed_tokens + 0.5 * chunk)
    request.num_computed_tokens += chunk
    batch.kv_tokens += request.num_computed_tokens
    if request.num_computed_tokens == request.num_prompt_tokens + request.num_generated_tokens:
        start_decoding(fleet, r, i)


@verb
def start_decoding(fleet: Fleet, r: int, i: int) -> None:
    """Ends a prefill: this step yields a token, and each later one another, up to the last."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    batch = fleet.batches[r, replica.num_steps & 1]
    replica.prefilling = NONE
    request.first_next = batch.first_head
    batch.first_head = i
    request.last_step = replica.num_steps + request.num_output_tokens - request.num_generated_tokens - 1
    file_due(fleet, r, i, replica.num_steps)
    if request.last_step == replica.num_steps:
        request.phase = LAST_TOKEN
        return
    request.phase = DECODING
    replica.num_decoding += 1
    replica.decoding_context_tokens += request.num_computed_tokens
    fleet.growing[r, growth_residue(request, fleet.engines[replica.pool].block_size)] += 1
