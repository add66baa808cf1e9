"""The window of requests in flight: a ring over their ids, filled from the traffic and emptied in order of arrival.

Memory follows the spread of the ids in flight, not the length of the trace.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sim.records import (
    BATCH,
    CALENDAR,
    CLOCK,
    EXPECTED,
    GONE,
    LOAD,
    NEVER,
    NONE,
    REPLICA,
    REQUEST,
    REQUEST_VIEW,
    Fleet,
    records,
)

_SMALLEST_RING = 1 << 12


def new_fleet(engines: Any, num_slots: int, num_itl_bins: int, scrape_interval_s: float = 0.0) -> Fleet:
    """Returns a fleet of `num_slots` empty, closed replicas and no requests.

    Args:
        engines: (num_pools,) ENGINE records.
        num_slots: most machines that ever exist at one time.
        num_itl_bins: length of the histogram of gaps between tokens.
        scrape_interval_s: age that the router's view of the loads reaches; 0 = live.
    """
    clock = records(CLOCK, 1)
    clock.unrouted_head = clock.unrouted_tail = clock.chosen = clock.drained = NONE
    clock.scrape_interval_s = scrape_interval_s
    clock.next_scrape_at_s = scrape_interval_s if scrape_interval_s > 0 else np.inf
    replicas = records(REPLICA, num_slots)
    for name in ("waiting_head", "waiting_tail", "running_head", "running_tail", "prefilling", "machine"):
        replicas[name] = NONE
    loads = records(LOAD, num_slots)
    num_leaves = 1 << (num_slots - 1).bit_length()
    return Fleet(
        clock=clock,
        requests=_empty_ring(_SMALLEST_RING),
        asking=records(REQUEST_VIEW, 1),
        replicas=replicas,
        loads=loads,
        seen=records(LOAD, num_slots) if scrape_interval_s > 0 else loads,
        batches=records(BATCH, num_slots, 2),
        engines=engines,
        due=np.full((num_slots, CALENDAR), NONE),
        growing=np.zeros((num_slots, int(engines["block_size"].max())), np.int64),
        ready=np.full(num_slots, NONE),
        next_end_at_s=np.full(num_leaves, np.inf),
        earliest=_winner_tree(num_leaves),
        itl_counts=np.zeros((engines.size, num_itl_bins), np.int64),
        itl_sums=np.zeros((engines.size, 3)),
    )


def _winner_tree(num_leaves: int) -> np.ndarray[Any, Any]:
    """Returns the tree of a tie between all leaves: at every node the lowest leaf below it."""
    tree = np.arange(-num_leaves, num_leaves)
    for i in range(num_leaves - 1, 0, -1):
        tree[i] = tree[2 * i]
    return tree


def _empty_ring(size: int) -> Any:
    ring = records(REQUEST, size)
    ring["phase"] = EXPECTED
    return ring


def load(fleet: Fleet, arrivals: Any) -> Fleet:
    """Puts the next `arrivals`, (n,) ARRIVAL records, into the window and returns the fleet, whose ring may have grown.

    Rows that ended must have been taken out with `take_ended` first, or the ring grows more than it has to.
    """
    clock = fleet.clock[0]
    oldest = int(clock.num_taken)
    fleet = _grown(fleet, int(clock.num_loaded) + len(arrivals) - oldest)
    for start, stop, ring in _stretches(fleet, int(clock.num_loaded), int(clock.num_loaded) + len(arrivals)):
        rows, new = fleet.requests[ring], arrivals[start:stop]
        rows[...] = np.zeros((), REQUEST)
        for name in ("routed_at_s", "scheduled_at_s", "first_token_at_s", "last_token_at_s", "finished_at_s"):
            rows[name] = NEVER
        for name in ("next", "previous", "replica", "machine", "last_step"):
            rows[name] = NONE
        for name in ("arrived_at_s", "num_prompt_tokens", "num_output_tokens", "class_id"):
            rows[name] = new[name]
    clock.num_loaded += len(arrivals)
    return fleet


def take_ended(fleet: Fleet, *, everything: bool = False) -> tuple[int, Any]:
    """Takes the requests out that have ended and before which none is still in flight.

    Returns:
        The id of the first, and (n,) REQUEST records of consecutive ids. With `everything`, those in flight too.
    """
    clock = fleet.clock[0]
    first, loaded = int(clock.num_taken), int(clock.num_loaded)
    phases = np.concatenate([fleet.requests["phase"][ring] for _, _, ring in _stretches(fleet, first, loaded)] or [[]])
    in_flight = np.flatnonzero(phases != GONE)
    last = loaded if everything or not len(in_flight) else first + int(in_flight[0])
    rows = [fleet.requests[ring] for _, _, ring in _stretches(fleet, first, last)]
    clock.num_taken = last
    return first, (np.concatenate(rows) if rows else fleet.requests[:0].copy()).view(np.recarray)


def _stretches(fleet: Fleet, first: int, last: int) -> Iterator[tuple[int, int, slice]]:
    """Yields (start, stop, slice of the ring), one or two, that cover ids `first` to `last`; start counts from `first`."""
    size = fleet.requests.size
    done = first
    while done < last:
        begin = done & (size - 1)
        end = min(size, begin + last - done)
        yield done - first, done - first + end - begin, slice(begin, end)
        done += end - begin


def _grown(fleet: Fleet, num_needed: int) -> Fleet:
    """Returns the fleet with a ring of at least `num_needed` places; ids, and so all lists, stay as they are."""
    size = fleet.requests.size
    if num_needed <= size:
        return fleet
    larger = _empty_ring(1 << (num_needed - 1).bit_length())
    for i_start, i_stop, ring in _stretches(fleet, int(fleet.clock[0].num_taken), int(fleet.clock[0].num_loaded)):
        ids = int(fleet.clock[0].num_taken) + np.arange(i_start, i_stop)
        larger[ids & (larger.size - 1)] = fleet.requests[ring]
    return fleet._replace(requests=larger)
