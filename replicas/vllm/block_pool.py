"""vLLM's block pool (0.32, `vllm/v1/core/block_pool.py`): which block holds which tokens, and in what order they are reused.

A free block keeps its tokens until it is taken for others. The queue of free blocks is in that order: those that nobody
can hit first, then the least recently freed; of one request's blocks the last go first, as they are useless without the
others.
"""

from typing import Any

from sim.compiled import rare, verb
from sim.observing import note_block
from sim.records import CACHED, EVICTED, NONE, Fleet


@verb
def fill_pool(fleet: Fleet, r: int) -> None:
    """Makes all blocks of replica `r` free and empty, and all rows of its block table too."""
    replica = fleet.replicas[r]
    fleet.buckets[r, :] = NONE
    replica.free_blocks.head = replica.free_blocks.tail = NONE
    for b in range(fleet.loads[r].num_usable_blocks):
        fleet.blocks[r, b].num_holders = fleet.blocks[r, b].is_registered = 0
        push_back(fleet, r, b)
    replica.free_row = 0
    for row in range(fleet.tables.shape[1]):
        fleet.tables[r, row, -1] = row + 1


@verb
def push_back(fleet: Fleet, r: int, b: int) -> None:
    """Makes block `b` the last to be reused."""
    queue, block = fleet.replicas[r].free_blocks, fleet.blocks[r, b]
    block.previous, block.next = queue.tail, NONE
    if queue.tail == NONE:
        queue.head = b
    else:
        fleet.blocks[r, queue.tail].next = b
    queue.tail = b


@verb
def push_front(fleet: Fleet, r: int, b: int) -> None:
    """Makes block `b` the first to be reused."""
    queue, block = fleet.replicas[r].free_blocks, fleet.blocks[r, b]
    block.previous, block.next = NONE, queue.head
    if queue.head == NONE:
        queue.tail = b
    else:
        fleet.blocks[r, queue.head].previous = b
    queue.head = b


@verb
def pull(fleet: Fleet, r: int, b: int) -> None:
    """Takes block `b` out of the queue of free blocks, wherever it stands."""
    queue, block = fleet.replicas[r].free_blocks, fleet.blocks[r, b]
    if block.previous == NONE:
        queue.head = block.next
    else:
        fleet.blocks[r, block.previous].next = block.next
    if block.next == NONE:
        queue.tail = block.previous
    else:
        fleet.blocks[r, block.next].previous = block.previous


@verb
def take(fleet: Fleet, r: int) -> int:
    """Returns the free block that is reused first, emptied; there must be one."""
    b = fleet.replicas[r].free_blocks.head
    pull(fleet, r, b)
    if fleet.blocks[r, b].is_registered:
        unregister(fleet, r, b)
    fleet.blocks[r, b].num_holders = 1
    return b


@verb
def hold(fleet: Fleet, r: int, b: int) -> int:
    """Adds a holder to a block that was hit; returns 1 if that took it from the free ones, else 0."""
    block = fleet.blocks[r, b]
    block.num_holders += 1
    if block.num_holders > 1:
        return 0
    pull(fleet, r, b)
    return 1


@rare
def give_back(fleet: Fleet, r: int, row: int, num_blocks: int) -> int:
    """Ends the holding of the first `num_blocks` of a row of the block table, and of the row; returns how many got free."""
    replica = fleet.replicas[r]
    num_freed = 0
    for k in range(num_blocks - 1, -1, -1):
        b = fleet.tables[r, row, k]
        block = fleet.blocks[r, b]
        block.num_holders -= 1
        if block.num_holders == 0:
            num_freed += 1
            if block.is_registered:
                push_back(fleet, r, b)
            else:
                push_front(fleet, r, b)
    fleet.tables[r, row, -1], replica.free_row = replica.free_row, row
    return num_freed


@verb
def bucket_of(fleet: Fleet, key: Any) -> int:
    """Returns where blocks with this key are listed."""
    return int(key) & (fleet.buckets.shape[1] - 1)


@verb
def find(fleet: Fleet, r: int, key: Any) -> int:
    """Returns the block registered under `key`, of several the one registered first, or `NONE`."""
    b = fleet.buckets[r, bucket_of(fleet, key)]
    while b != NONE and fleet.blocks[r, b].key != key:
        b = fleet.blocks[r, b].same_bucket_next
    return b


@verb
def register(fleet: Fleet, r: int, b: int, key: Any) -> None:
    """Lets others hit block `b` by its key. Equal blocks are not merged: the one registered first is hit."""
    block = fleet.blocks[r, b]
    block.key, block.is_registered, block.same_bucket_next = key, 1, NONE
    note_block(fleet, CACHED, r, key)
    bucket = bucket_of(fleet, key)
    last = fleet.buckets[r, bucket]
    if last == NONE:
        fleet.buckets[r, bucket] = b
        return
    while fleet.blocks[r, last].same_bucket_next != NONE:
        last = fleet.blocks[r, last].same_bucket_next
    fleet.blocks[r, last].same_bucket_next = b


@verb
def unregister(fleet: Fleet, r: int, b: int) -> None:
    """Forgets what block `b` holds."""
    block = fleet.blocks[r, b]
    block.is_registered = 0
    note_block(fleet, EVICTED, r, block.key)
    bucket = bucket_of(fleet, block.key)
    before = fleet.buckets[r, bucket]
    if before == b:
        fleet.buckets[r, bucket] = block.same_bucket_next
        return
    while fleet.blocks[r, before].same_bucket_next != b:
        before = fleet.blocks[r, before].same_bucket_next
    fleet.blocks[r, before].same_bucket_next = block.same_bucket_next


@verb
def shared_blocks(fleet: Fleet, r: int, num_held: int) -> int:
    """Returns how many blocks of replica `r` somebody holds, if their holders add up to `num_held`; else 0."""
    num_blocks = num_holders = 0
    for b in range(fleet.loads[r].num_usable_blocks):
        num_blocks += fleet.blocks[r, b].num_holders > 0
        num_holders += fleet.blocks[r, b].num_holders
    return num_blocks if num_holders == num_held else 0
