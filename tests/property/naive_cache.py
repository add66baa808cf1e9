"""The naive engine's KV blocks: a list of free ones, and a dict that finds a full block by all the tokens up to its end.

Restates `BlockPool` and `KVCacheManager` of vLLM 0.32.0 (`vllm/v1/core/`), in our words. Without prefix caching
nothing is ever registered, and only the count of the free blocks matters.
"""

from collections.abc import Hashable, Iterable


class Pool:
    """Blocks 1 to N; vLLM's block 0 is its null block and never free.

    A block is free when no request holds it. It may be free and registered at once: it can still be hit until somebody else
    takes it, and `free` is the order in which that happens.
    """

    def __init__(self, num_usable_blocks: int) -> None:
        self.num_usable_blocks = num_usable_blocks
        self.free = list(range(1, num_usable_blocks + 1))
        self.num_holders = dict.fromkeys(self.free, 0)
        self.key_of: dict[int, Hashable] = {}
        self.registered: dict[Hashable, list[int]] = {}

    def hits(self, keys: Iterable[Hashable]) -> list[int]:
        """15: the blocks of the first keys, up to the first that nobody registered; of equal blocks the oldest.

        Only looks: a request that is not admitted leaves no trace, in the order of `free` neither.
        """
        found = []
        for key in keys:
            if key not in self.registered:
                break
            found.append(self.registered[key][0])
        return found

    def num_needed(self, hits: list[int], num_blocks: int) -> int:
        """12: how many have to be free to hold `num_blocks`, `hits` among them; a hit that is free counts too."""
        return max(num_blocks - len(hits), 0) + sum(self.num_holders[block] == 0 for block in hits)

    def take(self, hits: list[int], num_blocks: int) -> list[int]:
        """Returns `hits` and as many others from the front as make it `num_blocks`; whose content is then forgotten."""
        for block in hits:
            if self.num_holders[block] == 0:
                self.free.remove(block)
        fresh = [self.free.pop(0) for _ in range(num_blocks - len(hits))]
        for block in fresh:
            self.forget(block)
        for block in hits + fresh:
            self.num_holders[block] += 1
        return hits + fresh

    def release(self, blocks: list[int]) -> None:
        """16: from the last to the first: those without a key to the front, to be taken next; the others to the back.

        Those of one call keep that order at either end: the tail of a request is the first to go.
        """
        without_key: list[int] = []
        with_key: list[int] = []
        for block in reversed(blocks):
            self.num_holders[block] -= 1
            if self.num_holders[block] == 0:
                (with_key if block in self.key_of else without_key).append(block)
        self.free = without_key + self.free + with_key

    def register(self, blocks: list[int], keys: Iterable[Hashable]) -> None:
        """Makes blocks hittable that are not yet; the same content may lie in several."""
        for block, key in zip(blocks, keys, strict=False):
            if block not in self.key_of:
                self.key_of[block] = key
                self.registered.setdefault(key, []).append(block)

    def forget(self, block: int) -> None:
        if block in self.key_of:
            key = self.key_of.pop(block)
            self.registered[key].remove(block)
            if not self.registered[key]:
                del self.registered[key]
