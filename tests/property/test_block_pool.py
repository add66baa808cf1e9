"""Our block pool and prefix cache, rule by rule, against the naive engine's list and dict.

Hypothesis plays the scheduler: it admits, grows, registers and releases requests in any order that one could, and many that
none would. After every rule both pools must have the same free blocks in the same order, the same holders, and the same
blocks to hit for every request ever seen. Blocks without content are one like another: only how many are free is compared, not
which of them is taken; from then on, the block taken in one pool is the `twin` of the one taken in the other.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sim.records import NONE
from tests import caches
from tests.property.naive_cache import Pool

NUM_ROWS = 5
LONGEST = 20
CONTENTS: tuple[list[tuple[int, int]], ...] = ([(0, 20)], [(0, 3), (1, 20)], [(0, 3), (1, 4), (0, 20)], [(1, 20)], [(0, 7)], [])
"""Beginnings that are alike for 0, 3, 7 or all tokens; some differ within a block, and some end before the prompt does."""


class Known:
    """A request that both sides know: its tokens by segments, and the blocks that the naive pool gave it."""

    def __init__(self, adapter: int, segments: list[tuple[int, int]], num_tokens: int) -> None:
        self.adapter, self.num_tokens = adapter, num_tokens
        shared: list[Any] = [(content, at) for content, length in segments for at in range(length)][:num_tokens]
        self.tokens = shared + [(self, at) for at in range(len(shared), num_tokens)]
        self.is_running = False
        self.blocks: list[int] = []  # in the naive pool

    def keys(self, block_size: int, num_tokens: int) -> Iterator[Any]:
        ends = range(block_size, num_tokens + 1, block_size)
        return ((self.adapter, tuple(self.tokens[:end])) for end in ends)


class Pools(RuleBasedStateMachine):
    """Our pool, the naive one, and the requests that hold their blocks."""

    @initialize(
        block_size=st.integers(1, 4),
        num_blocks=st.integers(4, 20),
        drops_last_hit=st.booleans(),
    )
    def start(self, block_size: int, num_blocks: int, drops_last_hit: bool) -> None:
        self.block_size, self.drops_last_hit = block_size, drops_last_hit
        self.fleet = caches.empty_cache(
            num_blocks,
            block_size=block_size,
            max_num_seqs=NUM_ROWS,
            max_model_len=LONGEST,
            drops_last_hit=int(drops_last_hit),
        )
        self.naive = Pool(num_blocks)
        self.known: list[Known] = []
        self.twin = {b: b + 1 for b in range(num_blocks)}  # vLLM's block 0, its null block, is not in ours

    def blocks_of(self, i: int) -> list[int]:
        """Our blocks of a running request, in order."""
        row = int(self.fleet.sequences[i].row)
        return list(self.fleet.tables[0, row, : len(self.known[i].blocks)].tolist())

    def meet(self, i: int, num_held: int) -> None:
        """Pairs the blocks that a request was given behind the first `num_held`, which are paired already."""
        self.twin |= zip(self.blocks_of(i)[num_held:], self.known[i].blocks[num_held:], strict=True)

    def a_request(self, data: st.DataObject, *, is_running: bool) -> int:
        return data.draw(st.sampled_from([i for i, one in enumerate(self.known) if one.is_running == is_running]))

    def naive_hits(self, one: Known) -> list[int]:
        hits = self.naive.hits(one.keys(self.block_size, one.num_tokens - 1))
        return hits[:-1] if self.drops_last_hit else hits

    @rule(adapter=st.sampled_from([0, 0, 0, 1]), segments=st.sampled_from(CONTENTS), num_tokens=st.integers(1, LONGEST))
    def arrives(self, adapter: int, segments: list[tuple[int, int]], num_tokens: int) -> None:
        self.known.append(Known(adapter, segments, num_tokens))
        self.fleet = caches.with_request(self.fleet, num_tokens, segments, class_id=adapter)

    @rule(segments=st.sampled_from(CONTENTS), num_tokens=st.integers(1, LONGEST))
    def is_served(self, segments: list[tuple[int, int]], num_tokens: int) -> None:
        """Comes, gets all that it needs if that is free, fills it and goes."""
        self.arrives(0, segments, num_tokens)
        i = len(self.known) - 1
        if self.is_admitted(i, -(-num_tokens // self.block_size)):
            self.has_computed(i, num_tokens)
            self.lets_go(i)

    @precondition(lambda self: any(not one.is_running for one in self.known))
    @rule(data=st.data())
    def is_admitted_if_it_fits(self, data: st.DataObject) -> None:
        """With its hits and some blocks more; it may have been here before."""
        i = self.a_request(data, is_running=False)
        num_hits, num_all = len(self.naive_hits(self.known[i])), -(-self.known[i].num_tokens // self.block_size)
        self.is_admitted(i, data.draw(st.sampled_from([num_hits, (num_hits + num_all) // 2, num_all]), "blocks"))

    @precondition(lambda self: any(one.is_running for one in self.known))
    @rule(data=st.data())
    def grows(self, data: st.DataObject) -> None:
        i = self.a_request(data, is_running=True)
        one = self.known[i]
        room = min(-(-one.num_tokens // self.block_size) - len(one.blocks), len(self.naive.free))
        num_held, num_more = len(one.blocks), data.draw(st.integers(0, room), "blocks")
        caches.grow(self.fleet, i, num_held, num_more)
        one.blocks += self.naive.take([], num_more)
        self.meet(i, num_held)

    @precondition(lambda self: any(one.is_running for one in self.known))
    @rule(data=st.data())
    def registers(self, data: st.DataObject) -> None:
        """What fills the blocks it holds, or a part of it that may end within a block."""
        i = self.a_request(data, is_running=True)
        num_tokens = min(len(self.known[i].blocks) * self.block_size, self.known[i].num_tokens)
        self.has_computed(i, data.draw(st.sampled_from([num_tokens, num_tokens // 2]), "tokens"))

    @precondition(lambda self: any(one.is_running for one in self.known))
    @rule(data=st.data())
    def goes(self, data: st.DataObject) -> None:
        """It has finished, or is preempted and may come back."""
        self.lets_go(self.a_request(data, is_running=True))

    def is_admitted(self, i: int, num_blocks: int) -> bool:
        """Gives a request `num_blocks`, hits among them, if they are free. One row of the table stays free, for looking up."""
        one, num_running = self.known[i], sum(one.is_running for one in self.known)
        hits, num_hits = self.naive_hits(one), caches.look_up_hits(self.fleet, i)
        needed = num_blocks - num_hits + caches.count_free_hits(self.fleet, num_hits)
        assert needed == self.naive.num_needed(hits, num_blocks)
        if num_running + 1 == NUM_ROWS or needed > len(self.naive.free):
            return False
        one.is_running, one.blocks = True, self.naive.take(hits, num_blocks)
        caches.begin(self.fleet, i, num_hits)
        caches.grow(self.fleet, i, num_hits, num_blocks - num_hits)
        self.meet(i, num_hits)
        return True

    def has_computed(self, i: int, num_tokens: int) -> None:
        caches.register(self.fleet, i, num_tokens)
        self.naive.register(self.known[i].blocks, self.known[i].keys(self.block_size, num_tokens))

    def lets_go(self, i: int) -> None:
        one = self.known[i]
        caches.release(self.fleet, i, len(one.blocks))
        self.naive.release(one.blocks)
        one.blocks, one.is_running = [], False

    @invariant()
    def same_free_blocks_in_the_same_order(self) -> None:
        queue, blocks = self.fleet.replicas[0].free_blocks, self.fleet.blocks[0]
        free, before, b = [], NONE, int(queue.head)
        while b != NONE:
            assert blocks[b].previous == before
            free.append(self.twin[b] if blocks[b].is_registered else NONE)
            before, b = b, int(blocks[b].next)
        assert queue.tail == before
        assert free == [block if block in self.naive.key_of else NONE for block in self.naive.free]
        assert self.fleet.loads[0].num_free_blocks == len(free)

    @invariant()
    def same_holders(self) -> None:
        """They add up to what the running requests hold, a block that several share once for each."""
        num_holders = self.fleet.blocks[0].num_holders.tolist()
        assert sum(num_holders) == sum(len(one.blocks) for one in self.known)
        for i, one in enumerate(self.known):
            if one.is_running:
                assert [self.twin[b] for b in self.blocks_of(i)] == one.blocks
                assert [num_holders[b] for b in self.blocks_of(i)] == [self.naive.num_holders[block] for block in one.blocks]

    @invariant()
    def same_hits_for_everybody(self) -> None:
        """Block by block, for all that ever came, running or not; to look changes nothing."""
        row = int(self.fleet.replicas[0].free_row)
        for i, one in enumerate(self.known):
            num_hits = caches.look_up_hits(self.fleet, i)
            assert [self.twin[b] for b in self.fleet.tables[0, row, :num_hits].tolist()] == self.naive_hits(one)

    @invariant()
    def same_registered_blocks(self) -> None:
        registered = np.flatnonzero(self.fleet.blocks[0].is_registered).tolist()
        assert sorted(self.twin[b] for b in registered) == sorted(self.naive.key_of)


Pools.TestCase.settings = settings(max_examples=50, stateful_step_count=40)
TestPools = Pools.TestCase
