"""vLLM's prefix cache: a request begins with the blocks that an earlier one with the same first tokens has filled."""

from replicas.block_keys import key_of, start_keys
from replicas.queues import sequence_of, slot_of
from replicas.vllm.block_pool import find, hold, register
from sim.compiled import rare, verb
from sim.records import NONE, Fleet


@rare
def look_up(fleet: Fleet, r: int, i: int) -> int:
    """Returns how many blocks request `i` can begin with, and lists them in the row of the block table that it would get.

    Full blocks only, up to the first miss; and the last token is always computed, as its logits are needed.
    """
    replica, request = fleet.replicas[r], fleet.requests[slot_of(fleet, i)]
    engine = fleet.engines[replica.pool]
    row = replica.free_row
    limit = (request.num_prompt_tokens + request.num_generated_tokens - 1) // engine.block_size
    start_keys(fleet, i)
    num_hits = 0
    while num_hits < limit:
        b = find(fleet, r, key_of(fleet, i, num_hits, engine.block_size))
        if b == NONE:
            break
        fleet.tables[r, row, num_hits] = b
        num_hits += 1
    if engine.drops_last_hit and num_hits > 0:
        num_hits -= 1
    return num_hits


@verb
def count_free(fleet: Fleet, r: int, num_hits: int) -> int:
    """Returns how many of the blocks that were just looked up nobody holds: hitting them takes them from the free ones."""
    row = fleet.replicas[r].free_row
    num_free = 0
    for k in range(num_hits):
        num_free += fleet.blocks[r, fleet.tables[r, row, k]].num_holders == 0
    return num_free


@verb
def hold_hits(fleet: Fleet, r: int, i: int, num_hits: int) -> None:
    """Gives request `i` its row of the block table, with the blocks that were just looked up."""
    replica, sequence = fleet.replicas[r], sequence_of(fleet, i)
    sequence.row, replica.free_row = replica.free_row, fleet.tables[r, replica.free_row, -1]
    replica.num_admissions += 1
    sequence.admission = replica.num_admissions
    sequence.num_registered = num_hits
    for k in range(num_hits):
        fleet.loads[r].num_free_blocks -= hold(fleet, r, fleet.tables[r, sequence.row, k])


@rare
def register_blocks(fleet: Fleet, r: int, i: int, num_tokens: int) -> None:
    """Lets others hit the blocks that request `i`'s first `num_tokens` tokens fill."""
    sequence = sequence_of(fleet, i)
    block_size = fleet.engines[fleet.replicas[r].pool].block_size
    while (sequence.num_registered + 1) * block_size <= num_tokens:
        key = key_of(fleet, i, sequence.num_registered, block_size)
        register(fleet, r, fleet.tables[r, sequence.row, sequence.num_registered], key)
        sequence.num_registered += 1
