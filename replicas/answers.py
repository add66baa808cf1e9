"""How long a request's answer may be on an engine: what its client allows, and the engine's longest sequence."""

from replicas.queues import sequence_of, slot_of
from sim.compiled import verb
from sim.records import Fleet


@verb
def longest_answer(fleet: Fleet, pool: int, i: int) -> int:
    """Returns the tokens of request `i`'s answer that its client's limit and the longest sequence of the engine leave."""
    request = fleet.requests[slot_of(fleet, i)]
    answer = min(request.num_output_tokens, fleet.engines[pool].max_model_len - request.num_prompt_tokens)
    if fleet.classes[request.class_id].max_tokens > 0:
        answer = min(answer, fleet.classes[request.class_id].max_tokens)
    return answer


@verb
def whole_sequence(fleet: Fleet, pool: int, i: int) -> int:
    """Returns the tokens of request `i` and its answer on this pool's engine, above `max_model_len` if it cannot have them.

    Clients that name a limit (`max_tokens`) get what fits, as from vLLM's API server; those that want exactly what they
    ask for get that or nothing.
    """
    request = fleet.requests[slot_of(fleet, i)]
    if fleet.classes[request.class_id].max_tokens > 0:
        return request.num_prompt_tokens + max(1, longest_answer(fleet, pool, i))
    return request.num_prompt_tokens + request.num_output_tokens


@verb
def set_limits(fleet: Fleet, r: int, i: int) -> None:
    """Cuts request `i`'s answer to what is allowed, and notes whether the scheduler sees its end coming.

    It does if the answer is as long as the client allows, or reaches `max_model_len`; otherwise an end-of-sequence token
    ends it, which nobody knows before it is sampled.
    """
    request = fleet.requests[slot_of(fleet, i)]
    answer = longest_answer(fleet, fleet.replicas[r].pool, i)
    if answer < request.num_output_tokens:
        request.num_output_tokens = answer
        fleet.clock[0].num_cut_answers += 1
    limit = request.num_output_tokens
    if fleet.classes[request.class_id].max_tokens > 0:
        limit = fleet.engines[fleet.replicas[r].pool].max_model_len - request.num_prompt_tokens
        limit = min(limit, fleet.classes[request.class_id].max_tokens)
    request.stops_early = request.num_output_tokens < limit
    sequence_of(fleet, i).max_output_tokens = limit
