"""KV blocks given to a request and taken back.

Without prefix caching, which block holds what does not matter, and blocks are only counted. With it, `block_pool` knows
each one.
"""

from replicas.kv_blocks import computed_tokens, held_blocks
from replicas.queues import sequence_of, slot_of
from replicas.vllm.block_pool import give_back, take
from replicas.vllm.prefix_cache import register_blocks
from sim.compiled import verb
from sim.records import Fleet


@verb
def take_blocks(fleet: Fleet, r: int, i: int, num_held: int, num_blocks: int) -> None:
    """Gives request `i`, which holds `num_held` blocks, that many more; the caller has checked that they are free."""
    fleet.loads[r].num_free_blocks -= num_blocks
    if fleet.engines[fleet.replicas[r].pool].enable_prefix_caching:
        row = sequence_of(fleet, i).row
        for k in range(num_held, num_held + num_blocks):
            fleet.tables[r, row, k] = take(fleet, r)


@verb
def free_blocks(fleet: Fleet, r: int, i: int, step: int) -> None:
    """Gives back all that request `i` holds on replica `r` as of `step`; call it before its phase changes."""
    replica, load, request = fleet.replicas[r], fleet.loads[r], fleet.requests[slot_of(fleet, i)]
    engine = fleet.engines[replica.pool]
    num_blocks = held_blocks(request, step, engine)
    load.running_tokens -= computed_tokens(request, replica.num_steps - 1)
    if engine.enable_prefix_caching:
        load.num_free_blocks += give_back(fleet, r, sequence_of(fleet, i).row, num_blocks)
    else:
        load.num_free_blocks += num_blocks


@verb
def needs_block(fleet: Fleet, r: int, i: int) -> bool:
    """Tells whether a decode has filled its blocks, and needs one more in the step being planned."""
    replica, engine = fleet.replicas[r], fleet.engines[fleet.replicas[r].pool]
    num_tokens = computed_tokens(fleet.requests[slot_of(fleet, i)], replica.num_steps - 1)
    return num_tokens % engine.block_size == 0 and not engine.reserves_output


@verb
def allocate_decode(fleet: Fleet, r: int, i: int) -> None:
    """Takes the block that a decode needs in the step being planned, if it does.

    With prefix caching, the blocks it has filled can be hit from here on: including the token of this step, or with async
    scheduling without it, as the engine does not know it yet.
    """
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    engine = fleet.engines[replica.pool]
    num_tokens = computed_tokens(request, replica.num_steps - 1)
    if needs_block(fleet, r, i):
        take_blocks(fleet, r, i, num_tokens // engine.block_size, 1)
    if engine.enable_prefix_caching:
        register_blocks(fleet, r, i, num_tokens + 1 - engine.async_scheduling)
