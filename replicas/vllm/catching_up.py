"""Requests that catch up: prefills, decodes that were passed over, and with speculative decoding everything that runs.

They have more tokens than have been computed, and each step computes a chunk of them.
"""

from replicas.batches import next_batch
from replicas.decodes import start_decoding
from replicas.kv_blocks import blocks_for
from replicas.queues import sequence_of, slot_of
from replicas.vllm.allocation import take_blocks
from replicas.vllm.prefill_pacing import is_prefilling
from replicas.vllm.prefix_cache import register_blocks
from replicas.vllm.speculation import grows_unevenly, schedule_drafts
from sim.compiled import verb
from sim.records import Fleet


@verb
def threshold_of(fleet: Fleet, r: int) -> int:
    """Returns the most tokens that one request may get in this step.

    A long prefill is cut so that it does not starve the others. One that is alone is not, since vLLM 0.32.
    """
    load, engine = fleet.loads[r], fleet.engines[fleet.replicas[r].pool]
    num_requests = load.num_running + load.num_waiting
    if engine.long_prefill_token_threshold == 0 or (num_requests == 1 and not engine.threshold_binds_alone):
        return engine.max_model_len
    if engine.long_prefill_token_threshold_adaptive:
        return max(engine.long_prefill_token_threshold, engine.max_num_batched_tokens // num_requests)
    return engine.long_prefill_token_threshold


@verb
def chunk_of(fleet: Fleet, r: int, i: int, budget: int) -> int:
    """Returns how many tokens request `i`, which catches up, gets of what is left of the step's budget."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    engine = fleet.engines[replica.pool]
    behind = request.num_prompt_tokens + request.num_generated_tokens - request.num_computed_tokens
    if replica.defers_prefills and is_prefilling(fleet, r, i):
        return 0
    if grows_unevenly(engine):
        sequence = sequence_of(fleet, i)
        if replica.num_plans < sequence.may_decode_at:
            return 0
        if sequence.num_placeholders > 0 and is_certain_to_end(fleet, i):
            return 0
        behind += sequence.num_drafts + sequence.num_placeholders
    chunk = min(min(behind, threshold_of(fleet, r)), budget)
    return min(chunk, engine.max_model_len - request.num_computed_tokens - 1)


@verb
def is_certain_to_end(fleet: Fleet, i: int) -> bool:
    """Tells whether the steps in flight bring request `i` to its limit even if they reject all drafts."""
    request, sequence = fleet.requests[slot_of(fleet, i)], sequence_of(fleet, i)
    num_computed = request.num_computed_tokens + 2 - sequence.num_placeholders
    return num_computed >= request.num_prompt_tokens + sequence.max_output_tokens


@verb
def need_of(fleet: Fleet, r: int, i: int, chunk: int) -> int:
    """Returns how many more blocks request `i` needs for its next `chunk` tokens."""
    request = fleet.requests[slot_of(fleet, i)]
    engine = fleet.engines[fleet.replicas[r].pool]
    if chunk == 0 or engine.reserves_output:
        return 0
    num_tokens = min(request.num_computed_tokens + chunk + engine.num_lookahead_tokens, engine.max_model_len)
    return max(blocks_for(num_tokens, engine.block_size) - request.num_blocks, 0)


@verb
def allocate_chunk(fleet: Fleet, r: int, i: int, chunk: int) -> None:
    """Takes the blocks for the next `chunk` tokens of request `i`; the caller has checked that they are free.

    With prefix caching, the blocks that they fill can be hit from here on, but for drafts, which may be rejected.
    """
    request = fleet.requests[slot_of(fleet, i)]
    need = need_of(fleet, r, i, chunk)
    take_blocks(fleet, r, i, request.num_blocks, need)
    request.num_blocks += need
    request.num_new_tokens = chunk
    if fleet.engines[fleet.replicas[r].pool].enable_prefix_caching:
        num_known = request.num_prompt_tokens + request.num_generated_tokens
        register_blocks(fleet, r, i, min(request.num_computed_tokens + chunk, num_known))


@verb
def schedule_chunk(fleet: Fleet, r: int, i: int, chunk: int) -> None:
    """Adds `chunk` tokens of request `i` to the step; if it has then caught up, the step yields a token."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    batch = next_batch(fleet, r)
    batch.num_requests += 1
    batch.num_tokens += chunk
    batch.attended_tokens += chunk * (request.num_computed_tokens + 0.5 * chunk)
    if grows_unevenly(fleet.engines[replica.pool]):
        schedule_drafts(fleet, r, i, chunk)
    request.num_computed_tokens += chunk
    batch.kv_tokens += request.num_computed_tokens
    if grows_unevenly(fleet.engines[replica.pool]):
        return
    if request.num_computed_tokens == request.num_prompt_tokens + request.num_generated_tokens:
        start_decoding(fleet, r, i)
