"""What a block holds, as a number: a key for its tokens and all tokens before them.

Nobody stores token ids. A request's tokens are described by segments (`sim.records.SEGMENT`), and a block's key is
chained, as vLLM's hashes are, from the key of the block before it and the stretches of segments it covers. Two blocks have
the same key if and only if their requests share every token up to the block's end (but for one chance in 2**64).
"""

from typing import Any

import numpy as np

from replicas.queues import sequence_of, slot_of
from sim.compiled import rare, verb
from sim.records import Fleet

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_OWN = np.uint64(0xD6E8FEB86659FD93)


@verb
def scramble(x: Any) -> Any:
    """Returns a 64-bit number that depends on every bit of `x`, a uint64.

    Source: splitmix64; Steele, Lea, Flood (2014), Fast splittable pseudorandom number generators, OOPSLA.
    """
    x = x + _GAMMA
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


@verb
def start_keys(fleet: Fleet, i: int) -> None:
    """Goes back to before request `i`'s first block. An adapter changes every token's KV, so it begins the chain."""
    sequence, request = sequence_of(fleet, i), fleet.requests[slot_of(fleet, i)]
    sequence.segment = sequence.segment_starts_at = sequence.num_keyed = 0
    sequence.key = scramble(np.uint64(fleet.classes[request.class_id].adapter))


@verb
def key_of(fleet: Fleet, i: int, k: int, block_size: int) -> Any:
    """Returns the key of request `i`'s block number `k`; cheap if the last one asked for was `k` or a few less."""
    sequence = sequence_of(fleet, i)
    if sequence.num_keyed > k + 1:
        start_keys(fleet, i)
    while sequence.num_keyed <= k:
        add_key(fleet, i, block_size)
    return sequence.key


@rare
def write_keys(fleet: Fleet, i: int, block_size: int, keys: Any) -> int:
    """Writes the keys of the whole blocks of request `i`'s prompt for a router, and returns how many there are.

    Its blocks may be of another size than the engine's, so how far the engine has got is left as it was.
    """
    sequence = sequence_of(fleet, i)
    num_keyed, key = sequence.num_keyed, sequence.key
    segment, segment_starts_at = sequence.segment, sequence.segment_starts_at
    num_keys = fleet.requests[slot_of(fleet, i)].num_prompt_tokens // block_size
    start_keys(fleet, i)
    for k in range(num_keys):
        add_key(fleet, i, block_size)
        keys[k] = sequence.key
    sequence.num_keyed, sequence.key = num_keyed, key
    sequence.segment, sequence.segment_starts_at = segment, segment_starts_at
    return num_keys


@verb
def add_key(fleet: Fleet, i: int, block_size: int) -> None:
    """Chains the key of the next block: mixes in each stretch of a segment that the block covers."""
    sequence = sequence_of(fleet, i)
    at = sequence.num_keyed * block_size
    end = at + block_size
    key = sequence.key
    while at < end:
        if sequence.segment < sequence.num_segments:
            segment = fleet.segments[(sequence.first_segment + sequence.segment) & (fleet.segments.size - 1)]
            segment_ends_at = sequence.segment_starts_at + segment.num_tokens
            if segment_ends_at <= at:
                sequence.segment += 1
                sequence.segment_starts_at = segment_ends_at
                continue
            stop = min(end, segment_ends_at)
            key = scramble(key ^ np.uint64(segment.content))
        else:
            stop = end
            key = scramble(key ^ _OWN ^ np.uint64(i))
        key = scramble(key ^ np.uint64(((at - sequence.segment_starts_at) << 20) + stop - at))
        at = stop
    sequence.key = key
    sequence.num_keyed += 1
