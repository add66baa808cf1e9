"""vLLM's first loop: the running requests one by one, preempting when blocks run out.

For the steps that are not steady: blocks are short, several requests catch up, or drafts are checked.
"""

from replicas.batches import next_batch
from replicas.decodes import schedule_decodes
from replicas.queues import sequence_of, slot_of
from replicas.vllm.allocation import allocate_decode, needs_block
from replicas.vllm.catching_up import allocate_chunk, chunk_of, need_of, schedule_chunk
from replicas.vllm.passing_over import pass_over
from replicas.vllm.preemption import preempt, victim_of
from sim.compiled import rare, verb
from sim.records import CATCHING_UP, LAST_TOKEN, NONE, WAITING, Fleet


@rare
def visit_running(fleet: Fleet, r: int) -> None:
    """Gives each running request its tokens, in order of admission, until the budget is used up or one finds no room."""
    replica = fleet.replicas[r]
    engine = fleet.engines[replica.pool]
    budget = engine.max_num_batched_tokens
    next_batch(fleet, r).half = (replica.num_plans // engine.num_stages) & 1
    next_batch(fleet, r).ends_at_s = 0.0
    mark_unvisited(fleet, r)
    i = replica.running.head
    while i != NONE and budget > 0:
        request = fleet.requests[slot_of(fleet, i)]
        chunk = wanted_tokens(fleet, r, i, budget)
        if chunk > 0:
            budget += make_room(fleet, r, i, chunk)
            if request.phase == WAITING:
                break
            allocate(fleet, r, i, chunk)
            budget -= chunk
        i = request.next
    pass_over_unvisited(fleet, r)
    schedule_decodes(fleet, r)
    schedule_chunks(fleet, r)


@verb
def mark_unvisited(fleet: Fleet, r: int) -> None:
    """Takes back what an earlier step gave the running requests."""
    i = fleet.replicas[r].running.head
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        request.num_new_tokens = 0
        i = request.next


@verb
def wanted_tokens(fleet: Fleet, r: int, i: int, budget: int) -> int:
    """Returns how many tokens request `i` gets in this step, if blocks allow."""
    phase = fleet.requests[slot_of(fleet, i)].phase
    if phase == CATCHING_UP:
        return chunk_of(fleet, r, i, budget)
    return 0 if phase == LAST_TOKEN else 1  # with async scheduling, its last token is on the device


@verb
def make_room(fleet: Fleet, r: int, i: int, chunk: int) -> int:
    """Preempts until request `i` has the blocks for its `chunk` tokens, itself if need be; returns the tokens given back."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    need = need_of(fleet, r, i, chunk) if request.phase == CATCHING_UP else int(needs_block(fleet, r, i))
    given_back = 0
    while need > fleet.loads[r].num_free_blocks and request.phase != WAITING:
        victim = victim_of(fleet, r)
        num_new_tokens = fleet.requests[slot_of(fleet, victim)].num_new_tokens
        given_back += num_new_tokens
        preempt(fleet, r, victim, replica.num_steps if num_new_tokens > 0 else replica.num_steps - 1)
    return given_back


@verb
def allocate(fleet: Fleet, r: int, i: int, chunk: int) -> None:
    """Takes the blocks for what request `i` gets in this step; they are free."""
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    if request.phase == CATCHING_UP:
        allocate_chunk(fleet, r, i, chunk)
        if fleet.engines[replica.pool].num_speculative_tokens > 0 and sequence_of(fleet, i).num_drafts == 0:
            next_batch(fleet, r).has_prefill = 1
    else:
        allocate_decode(fleet, r, i)
        request.num_new_tokens = 1


@verb
def pass_over_unvisited(fleet: Fleet, r: int) -> None:
    """Lets the decodes go without a token for which nothing was left."""
    i = fleet.replicas[r].running.head
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        if request.num_new_tokens == 0 and request.phase != CATCHING_UP and request.phase != LAST_TOKEN:
            pass_over(fleet, r, i)
        i = request.next


@verb
def schedule_chunks(fleet: Fleet, r: int) -> None:
    """Adds to the step what those that catch up were given."""
    i = fleet.replicas[r].running.head
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        if request.phase == CATCHING_UP and request.num_new_tokens > 0:
            schedule_chunk(fleet, r, i, request.num_new_tokens)
        i = request.next
