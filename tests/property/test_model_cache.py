"""A cache of whole models against a naive list: who leaves, who stays, and when there is no way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.model_cache import ModelCache

SIZES = {"a": 10.0, "b": 20.0, "c": 30.0, "d": 40.0, "e": 50.0}
NAMES = st.sampled_from(sorted(SIZES))


@given(
    asked=st.lists(NAMES, max_size=40), pinned=st.sets(NAMES, max_size=2), capacity=st.sampled_from([50.0, 60.0, 95.0, 150.0])
)
def test_t42_least_recently_used_leave_pinned_stay_and_nothing_overflows(
    asked: list[str], pinned: set[str], capacity: float
) -> None:
    cache, naive = ModelCache(capacity, pinned), list[str]()  # the least recently used first
    for name in asked:
        kept = [one for one in naive if one != name]
        left = [one for one in kept if one not in pinned]
        free_at_best = capacity - sum(SIZES[one] for one in kept if one in pinned)
        if name not in naive and SIZES[name] > free_at_best:
            before = cache.loaded
            with pytest.raises(MemoryError, match="held by pinned models"):
                cache.load(name, SIZES[name])
            assert cache.loaded == before == naive
            continue
        gone = []
        while name not in naive and sum(SIZES[one] for one in kept) + SIZES[name] > capacity:
            gone.append(left.pop(0))
            kept.remove(gone[-1])
        assert cache.load(name, SIZES[name]) == gone
        naive = [*kept, name]
        assert cache.loaded == naive
        assert cache.used_bytes <= capacity


def test_t42_an_error_when_nothing_can_go() -> None:
    cache = ModelCache(100.0, pinned={"a"})
    cache.load("a", 60.0)
    with pytest.raises(MemoryError, match="model 'b' of 5e-08 GB does not fit"):
        cache.load("b", 50.0)
    assert cache.loaded == ["a"]


def test_hits_and_misses_are_counted() -> None:
    cache = ModelCache(100.0)
    for name in ("a", "a", "b", "a"):
        cache.load(name, 40.0)
    assert (cache.num_hits, cache.num_misses, "b" in cache) == (2, 2, True)


def test_a_model_does_not_change_its_size() -> None:
    cache = ModelCache(100.0)
    cache.load("a", 40.0)
    with pytest.raises(ValueError, match="is loaded with 40 bytes, asked for with 50"):
        cache.load("a", 50.0)
