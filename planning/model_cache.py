"""Many models on few GPUs: HBM as a cache of whole models, the least recently used one leaves, pinned ones never."""

from collections import OrderedDict
from collections.abc import Collection, Iterable

from sim.checks import check_not_negative, check_positive


class ModelCache:
    """Which models are loaded. A pinned model is loaded when first asked for, like any other, and then stays.

    Source: `ModelLRUCache` of docs/sources.md [2], Multi-model serving.

    >>> cache = ModelCache(capacity_bytes=100e9, pinned={"base"})
    >>> [cache.load(name, 40e9) for name in ("base", "sql", "base", "legal")]  # who had to leave, each time
    [[], [], [], ['sql']]
    >>> cache.loaded
    ['base', 'legal']

    Args:
        capacity_bytes: memory for weights.
        pinned: models that never leave.

    Raises:
        ValueError: the capacity is not positive.
    """

    def __init__(self, capacity_bytes: float, pinned: Iterable[str] = ()) -> None:
        check_positive("capacity_bytes", capacity_bytes)
        self.capacity_bytes = capacity_bytes
        self.pinned = frozenset(pinned)
        self.num_hits = self.num_misses = 0
        self._bytes: OrderedDict[str, float] = OrderedDict()  # the most recently used last

    @property
    def loaded(self) -> list[str]:
        """The models in memory, the one that would leave first at the front if it is not pinned."""
        return list(self._bytes)

    @property
    def used_bytes(self) -> float:
        """What they take."""
        return sum(self._bytes.values())

    def __contains__(self, name: str) -> bool:
        return name in self._bytes

    def load(self, name: str, num_bytes: float) -> list[str]:
        """Makes sure that a model is in memory and the most recently used; returns who had to leave for it.

        Nothing changes when it cannot fit. A miss costs the caller a cold start of `num_bytes`.

        Raises:
            MemoryError: it is larger than all of the memory that pinned models leave.
            ValueError: the size is not a number from 0 up, or not the one that it was loaded with.
        """
        check_not_negative("num_bytes", num_bytes)
        if name in self._bytes:
            if self._bytes[name] != num_bytes:
                raise ValueError(f"model '{name}' is loaded with {self._bytes[name]:g} bytes, asked for with {num_bytes:g}")
            self._bytes.move_to_end(name)
            self.num_hits += 1
            return []
        leaving = self._victims(name, num_bytes)
        for victim in leaving:
            del self._bytes[victim]
        self._bytes[name] = num_bytes
        self.num_misses += 1
        return leaving

    def _victims(self, name: str, num_bytes: float) -> list[str]:
        """The least recently used models that are not pinned, as many as must leave."""
        leaving: list[str] = []
        for victim in self._bytes:
            if self._fits_without(leaving, num_bytes):
                break
            if victim not in self.pinned:
                leaving.append(victim)
        if not self._fits_without(leaving, num_bytes):
            held = sum(size for model, size in self._bytes.items() if model in self.pinned)
            raise MemoryError(
                f"model '{name}' of {num_bytes / 1e9:g} GB does not fit: {held / 1e9:g} of {self.capacity_bytes / 1e9:g} GB "
                "are held by pinned models"
            )
        return leaving

    def _fits_without(self, leaving: Collection[str], num_bytes: float) -> bool:
        kept = sum(size for model, size in self._bytes.items() if model not in leaving)
        return kept + num_bytes <= self.capacity_bytes
