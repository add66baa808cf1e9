"""Heaps of what is to happen to requests, and when: the next is found at once, and adding or taking one costs O(log n).

The first of an empty heap is infinitely late, so a loop that looks at nothing else pays nothing for a heap that it does not
use. Nothing can grow in compiled code: `sim.window.load` makes room for all that can be there before it is called again.
"""

from typing import Any

from sim.compiled import rare, verb


@verb
def happens_before(heap: Any, k: int, j: int) -> bool:
    """Tells whether entry `k` of the heap comes before entry `j`; at one instant the lower number goes first."""
    one, other = heap[k], heap[j]
    return one.at_s < other.at_s or (one.at_s == other.at_s and one.number < other.number)


@verb
def swap(heap: Any, k: int, j: int) -> None:
    """Lets entries `k` and `j` of the heap change places."""
    one, other = heap[k], heap[j]
    at_s, number = one.at_s, one.number
    one.at_s, one.number = other.at_s, other.number
    other.at_s, other.number = at_s, number


@rare
def push(heap: Any, num_entries: int, at_s: float, number: int) -> int:
    """Adds an entry to a heap of so many, which has room for it, and returns how many there are now.

    Args:
        heap: (m,) TIMED records.
        num_entries: of these, how many are in use.
        at_s: when it happens.
        number: of the request, or the row of the traffic, that it happens to.
    """
    k = num_entries
    added = heap[k]
    added.at_s, added.number = at_s, number
    while k > 0 and happens_before(heap, k, (k - 1) // 2):
        swap(heap, k, (k - 1) // 2)
        k = (k - 1) // 2
    return num_entries + 1


@rare
def pop(heap: Any, num_entries: int) -> int:
    """Takes the first entry off a heap of so many, at least one, and returns how many are left."""
    last, k = num_entries - 1, 0
    swap(heap, 0, last)
    heap[last].at_s = float("inf")
    while 2 * k + 1 < last:
        child = 2 * k + 1
        if child + 1 < last and happens_before(heap, child + 1, child):
            child += 1
        if happens_before(heap, k, child):
            break
        swap(heap, k, child)
        k = child
    return last
