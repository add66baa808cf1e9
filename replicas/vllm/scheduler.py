"""vLLM V1's scheduler (0.32, `vllm/v1/core/sched/scheduler.py`): who gets how many tokens in the next step.

There are no prefill and decode phases, only a token budget and requests that catch up with what they know: the running
ones first, in order of admission, then the waiting ones.

In most steps every running request is a steady decode (`replicas.decodes`) but perhaps the last, whose prefill goes on, and
all blocks that are needed are free. Such a step is planned in bulk, at the same cost whatever the batch. In any other, the
running requests are visited one by one as vLLM does (`replicas.vllm.visits`).
"""

from replicas.batches import clear_batch, next_batch
from replicas.decodes import schedule_decodes
from replicas.held_up import count_adapters
from replicas.kv_blocks import computed_tokens
from replicas.queues import sequence_of, slot_of
from replicas.steps import count_step
from replicas.vllm.admission import admit_waiting
from replicas.vllm.allocation import allocate_decode
from replicas.vllm.catching_up import allocate_chunk, chunk_of, need_of, schedule_chunk
from replicas.vllm.prefill_pacing import note_saturation, pace_prefills
from replicas.vllm.prefix_cache import register_blocks
from replicas.vllm.speculation import grows_unevenly
from replicas.vllm.visits import visit_running
from sim.compiled import rare, verb
from sim.records import CATCHING_UP, NONE, Fleet


@verb
def plan(fleet: Fleet, r: int, now_s: float) -> bool:
    """Plans replica `r`'s next step into its batch record and returns whether the step has any work; `take_up` counts it."""
    replica, load = fleet.replicas[r], fleet.loads[r]
    engine = fleet.engines[replica.pool]
    num_preemptions = replica.num_preemptions
    replica.num_plans += 1
    clear_batch(fleet, r)
    if engine.prefill_schedule_interval > 1:
        pace_prefills(fleet, r)
    residue = replica.num_steps % engine.block_size
    if is_steady(fleet, r, residue):
        schedule_in_bulk(fleet, r, residue)
    else:
        visit_running(fleet, r)
    if engine.max_loras > 0:
        count_adapters(fleet, r)
    # a step that preempted admits nobody
    if replica.num_preemptions == num_preemptions and load.num_waiting > 0 and load.num_running < engine.max_num_seqs:
        admit_waiting(fleet, r, now_s)
    if engine.prefill_schedule_interval > 1 and replica.num_preemptions == num_preemptions and not replica.defers_prefills:
        note_saturation(fleet, r)
    return count_step(fleet, r)


@verb
def is_steady(fleet: Fleet, r: int, residue: int) -> bool:
    """Tells whether at most the last running request catches up, and whether the blocks that all need are free."""
    replica = fleet.replicas[r]
    engine = fleet.engines[replica.pool]
    if replica.num_catching_up > 1 or grows_unevenly(engine):
        return False
    need = fleet.growing[r, residue].num_decodes
    if replica.num_catching_up == 1:
        i = replica.running.tail
        if fleet.requests[slot_of(fleet, i)].phase != CATCHING_UP:
            return False
        chunk = chunk_of(fleet, r, i, engine.max_num_batched_tokens - replica.num_decoding)
        need += need_of(fleet, r, i, chunk)
    return need <= fleet.loads[r].num_free_blocks


@verb
def schedule_in_bulk(fleet: Fleet, r: int, residue: int) -> None:
    """Gives every decode its token, and the last running request its next chunk if it catches up."""
    replica = fleet.replicas[r]
    engine = fleet.engines[replica.pool]
    if engine.enable_prefix_caching:
        grow_one_by_one(fleet, r, residue)
    else:
        fleet.loads[r].num_free_blocks -= fleet.growing[r, residue].num_decodes
    schedule_decodes(fleet, r)
    if replica.num_catching_up == 1:
        i = replica.running.tail
        num_decodes = next_batch(fleet, r).num_decodes
        chunk = chunk_of(fleet, r, i, engine.max_num_batched_tokens - num_decodes)
        fleet.requests[slot_of(fleet, i)].num_new_tokens = chunk
        if chunk > 0:
            allocate_chunk(fleet, r, i, chunk)
            schedule_chunk(fleet, r, i, chunk)


@rare
def grow_one_by_one(fleet: Fleet, r: int, residue: int) -> None:
    """Takes the blocks that decodes need in this step, and lets others hit those that have filled up."""
    replica = fleet.replicas[r]
    engine = fleet.engines[replica.pool]
    i = fleet.growing[r, residue].head
    while i != NONE:
        allocate_decode(fleet, r, i)
        i = sequence_of(fleet, i).growing_next
    if not engine.async_scheduling:
        i = fleet.growing[r, (residue + 1) % engine.block_size].head
        while i != NONE:
            register_blocks(fleet, r, i, computed_tokens(fleet.requests[slot_of(fleet, i)], replica.num_steps))
            i = sequence_of(fleet, i).growing_next
