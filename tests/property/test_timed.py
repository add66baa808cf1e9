"""A heap gives back what was put in, the earliest first."""

import heapq

import numba as nb
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.compiled import loop
from sim.records import TIMED, records
from sim.timed import pop, push

_HEAP_TYPE = nb.types.Array(nb.from_dtype(TIMED), 1, "C")


@loop(nb.types.int64(_HEAP_TYPE, nb.types.int64, nb.types.float64, nb.types.int64))
def add(heap: np.ndarray, num_entries: int, at_s: float, number: int) -> int:
    return push(heap, num_entries, at_s, number)


@loop(nb.types.int64(_HEAP_TYPE, nb.types.int64))
def take(heap: np.ndarray, num_entries: int) -> int:
    return pop(heap, num_entries)


@given(st.lists(st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0, 2.5, 7.0])), max_size=40))
def test_the_earliest_comes_first_and_of_two_at_one_instant_the_lower_number(changes: list[float | None]) -> None:
    """Each change adds an entry, with the next number, or takes the first one (None); a list says which that has to be."""
    heap, num_entries, known = records(TIMED, 41), 0, list[tuple[float, int]]()
    heap["at_s"] = np.inf
    for number, at_s in enumerate(changes):
        if at_s is not None:
            heapq.heappush(known, (at_s, number))
            num_entries = add(heap, num_entries, at_s, number)
        elif known:
            heapq.heappop(known)
            num_entries = take(heap, num_entries)
        assert num_entries == len(known)
        assert sorted(zip(heap.at_s[:num_entries].tolist(), heap.number[:num_entries].tolist(), strict=True)) == sorted(known)
        assert (heap[0].at_s, heap[0].number) == known[0] if known else heap[0].at_s == np.inf
