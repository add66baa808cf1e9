"""The window of requests in flight: a ring over their ids, which are numbers in order of arrival, emptied in that order.

Before they arrive, the rows of the traffic wait in a ring of their own, which is filled a chunk at a time (`sim.coming`).
Memory follows the spread of the ids in flight and of the rows to come, not the length of the trace.
"""

import mmap
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numba as nb
import numpy as np

from sim.coming import expect_next, place_of, wait_for
from sim.compiled import loop
from sim.limits import MAX_CLASSES, MAX_REQUESTS, MAX_TOKENS
from sim.metrics import NUM_LATENCY_BINS
from sim.records import (
    ARRIVAL,
    BATCH,
    BLOCK,
    CALENDAR,
    CALENDAR_PADDING,
    CLASS,
    CLOCK,
    COMING,
    DEMAND,
    EVENT,
    GONE,
    GROWTH,
    LINE,
    LOAD,
    NEVER,
    NO_LIMIT,
    NONE,
    OVER,
    REPLICA,
    REQUEST,
    SEGMENT,
    SEQUENCE,
    TIMED,
    TO_COME,
    Fleet,
    records,
)
from sim.routing import Routing, new_view
from sim.signatures import FLEET_TYPE

_SMALLEST_RING = 1 << 12
_MAP_NORESERVE = 0x4000  # Linux on x86 and ARM; Python 3.11 has no name for it
NO_SEGMENTS = np.zeros(0, SEGMENT)


def new_fleet(
    engines: Any,
    num_slots: int,
    num_itl_bins: int,
    scrape_interval_s: float = 0.0,
    classes: Any = None,
    max_concurrency: int = NO_LIMIT,
    max_follows: int = 0,
    routing: Routing | None = None,
) -> Fleet:
    """Returns a fleet of `num_slots` empty, closed replicas and no requests.

    Args:
        engines: (num_pools,) ENGINE records.
        num_slots: most machines that ever exist at one time.
        num_itl_bins: length of the histogram of gaps between tokens.
        scrape_interval_s: age that the router's view of the loads reaches; 0 = live.
        classes: (num_classes,) CLASS records; None = one class that asks for nothing special.
        max_concurrency: requests that the client has in flight at most.
        max_follows: most rows of the traffic from a request to one that follows it; 0 = none follows another.
        routing: whose view the fleet fills; None = nobody's.
    """
    classes = records(CLASS, 1) if classes is None else classes
    caching = engines[engines["enable_prefix_caching"] > 0]
    is_uneven = (engines["num_speculative_tokens"] > 0) | (engines["jump_forward"] > 0) | (engines["num_stages"] > 1)
    line_of = _lines(engines, classes)
    num_lines = int(line_of.max()) + 1
    lines = records(LINE, num_slots, num_lines)
    lines["queue"]["head"] = lines["queue"]["tail"] = NONE
    lines["last_inserted"] = lines["last_passed_by"] = NONE
    routing = routing or Routing(lambda view: NONE, new_view(num_slots, [1, 1], np.zeros(1, np.int64)))
    view = routing.view
    has_sequences = len(caching) > 0 or bool(is_uneven.any()) or num_lines > 1 or routing.sees_content
    num_blocks = int(caching["num_usable_blocks"].max(initial=0))
    num_rows = int(caching["max_num_seqs"].max(initial=0))
    longest = int((np.minimum(caching["max_model_len"] // caching["block_size"], caching["num_usable_blocks"])).max(initial=0))
    num_caching_slots = num_slots if len(caching) else 1
    block_size = int(engines["block_size"].max())
    most_in_flight = int((engines["num_stages"] + engines["async_scheduling"]).max())
    clock = records(CLOCK, 1)
    clock.chosen = clock.drained = clock["unrouted"]["head"] = clock["unrouted"]["tail"] = NONE
    clock.max_concurrency, clock.max_follows = max_concurrency, max_follows
    clock.scrape_interval_s, clock.times_out_at_s = scrape_interval_s, np.inf
    clock.next_scrape_at_s = scrape_interval_s if scrape_interval_s > 0 else np.inf
    clock.observes, clock.key_block_size, clock.sees_sessions = routing.observes, routing.key_block_size, routing.sees_sessions
    clock.most_noted = _most_noted(engines)
    replicas = records(REPLICA, num_slots)
    for name in ("running", "free_blocks"):
        replicas[name]["head"] = replicas[name]["tail"] = NONE
    replicas["machine"] = NONE
    ready = view.candidates if engines.size == 1 else np.full(num_slots, NONE)
    num_leaves = 1 << (num_slots - 1).bit_length()
    return Fleet(
        clock=clock,
        arriving=_empty_heap(_SMALLEST_RING),
        coming=records(COMING, _SMALLEST_RING),
        row_of=np.zeros(_SMALLEST_RING, np.int32),
        never_sent=np.zeros(classes.size, np.int64),
        blank=_blank_request(),
        requests=records(REQUEST, _SMALLEST_RING),
        asking=view.request,
        times=view.times,
        keys=view.keys,
        event=view.event,
        events=records(EVENT, 1 << (2 * int(clock[0].most_noted)).bit_length() if routing.observes else 1),
        replicas=replicas,
        loads=records(LOAD, num_slots) if scrape_interval_s > 0 else view.loads,
        seen=view.loads,
        sequences=records(SEQUENCE, _SMALLEST_RING if has_sequences else 1),
        segments=records(SEGMENT, 1),
        classes=classes,
        lines=lines,
        line_of=line_of,
        grammar_ready_at_s=np.full((num_slots, classes.size), np.inf),
        adapter_step=np.full((num_slots, int(classes["adapter"].max()) + 1), NONE),
        blocks=records(BLOCK, num_caching_slots, max(num_blocks, 1)),
        buckets=np.full((num_caching_slots, 1 << max(num_blocks, 1).bit_length()), NONE, np.int32),
        tables=_untouched(num_caching_slots, max(num_rows, 1), longest + 2),
        batches=records(BATCH, num_slots, 1 << (most_in_flight - 1).bit_length()),
        stages=np.zeros((num_slots, int(engines["num_stages"].max()))),
        engines=engines,
        due=np.full((num_slots, CALENDAR + CALENDAR_PADDING), NONE, np.int32),
        growing=records(GROWTH, num_slots, block_size),
        demand=records(DEMAND, engines.size, classes.size),
        unrouted=np.zeros((engines.size, 3), np.int64),
        ready=ready,
        offered=view.candidates,
        next_end_at_s=np.full(num_leaves, np.inf),
        earliest=_winner_tree(num_leaves),
        itl_counts=np.zeros((engines.size, num_itl_bins), np.int64),
        latency_counts=np.zeros((engines.size, 3, NUM_LATENCY_BINS), np.int64),
        itl_sums=np.zeros((engines.size, 3)),
        clients=view.clients,
    )


def _most_noted(engines: Any) -> int:
    """Returns more events than a step's end and what is planned then can bring about.

    Each running request may get its first token and end, and each block be taken and filled, once for each step that is
    planned, in all engines that step together.
    """
    each = 2 * (engines["max_num_seqs"] + engines["num_usable_blocks"]) + 1
    return int((each * (engines["num_stages"] + 2) * np.maximum(engines["num_together"], 1)).max())


def _lines(engines: Any, classes: Any) -> Any:
    """Returns the line of each class, (num_classes,): classes that are held up alike wait in one."""
    by_priority, by_adapter = bool(engines["schedules_by_priority"].any()), bool(engines["max_loras"].any())
    keys = [
        (kind.priority if by_priority else 0, kind.adapter if by_adapter else 0, number if kind.grammar_s > 0 else NONE)
        for number, kind in enumerate(classes)
    ]
    lines = list(dict.fromkeys(keys))
    return np.array([lines.index(key) for key in keys])


def _untouched(*shape: int) -> Any:
    """Returns zeroed 32-bit integers that take memory only where they are written, a page at a time.

    A block table has room for the longest sequence in every row, and few are that long: for a thousand replicas the room is
    more than a machine has, and Linux would refuse to promise it.
    """
    if sys.platform != "linux":
        return np.zeros(shape, np.int32)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, 4 * int(np.prod(shape)), flags=flags), np.int32).reshape(shape)


def _winner_tree(num_leaves: int) -> np.ndarray[Any, Any]:
    """Returns the tree of a tie between all leaves: at every node the lowest leaf below it."""
    tree = np.arange(-num_leaves, num_leaves)
    for i in range(num_leaves - 1, 0, -1):
        tree[i] = tree[2 * i]
    return tree


def load(fleet: Fleet, arrivals: Any, segments: Any = NO_SEGMENTS) -> Fleet:
    """Lets the next `arrivals` in, each of which will be a request at its time; returns the fleet, whose rings may have grown.

    Rows that ended must have been taken out with `take_ended` first, or the rings grow more than they have to.

    Args:
        fleet: the fleet.
        arrivals: (n,) ARRIVAL records.
        segments: (m,) SEGMENT records: those of the first arrival, then those of the second, and so on.
    """
    _check_fits(fleet, arrivals)
    _forget(fleet)
    fleet = _grown(fleet, len(arrivals))
    if len(segments) and fleet.sequences.size > 1:
        fleet = _with_segments(fleet, segments)
    _let_in(fleet, np.ascontiguousarray(arrivals).view(np.recarray))
    return fleet


def _check_fits(fleet: Fleet, arrivals: Any) -> None:
    """Ours, should a door have let something pass: nothing may wrap on its way into a REQUEST."""
    assert int(fleet.clock[0].num_loaded) + len(arrivals) <= MAX_REQUESTS, "more requests than ids"
    assert not len(arrivals) or arrivals["class_id"].max() < MAX_CLASSES, "a class beyond 16 bits"
    for name in ("num_prompt_tokens", "num_output_tokens"):
        assert not len(arrivals) or 0 <= arrivals[name].min() <= arrivals[name].max() <= MAX_TOKENS, f"{name} beyond 32 bits"
    assert not len(arrivals) or 0 <= arrivals["follows"].min() <= arrivals["follows"].max() <= fleet.clock[0].max_follows


def _blank_request() -> Any:
    """Returns (1,) REQUEST: one that nothing has happened to yet."""
    blank = records(REQUEST, 1)
    for name in ("routed_at_s", "scheduled_at_s", "first_token_at_s", "last_token_at_s", "finished_at_s"):
        blank[name] = NEVER
    for name in ("next", "previous", "replica", "machine", "last_step"):
        blank[name] = NONE
    return blank


def _empty_heap(size: int) -> Any:
    """Returns (size,) TIMED: a heap without an entry."""
    heap = records(TIMED, size)
    heap["at_s"] = np.inf
    return heap


_ARRIVALS_TYPE = nb.types.Array(nb.from_dtype(ARRIVAL), 1, "C")


@loop(nb.types.void(FLEET_TYPE, _ARRIVALS_TYPE))
def _let_in(fleet: Fleet, arrivals: Any) -> None:
    clock = fleet.clock[0]
    was_empty = clock.next_arrival == clock.num_loaded
    for k in range(arrivals.size):
        row, arrival = clock.num_loaded, arrivals[k]
        coming = fleet.coming[place_of(fleet, row)]
        coming.due_at_s, coming.delay_s, coming.ended_at_s = arrival.arrived_at_s, arrival.delay_s, NEVER
        coming.num_prompt_tokens, coming.num_output_tokens = arrival.num_prompt_tokens, arrival.num_output_tokens
        coming.class_id, coming.state, coming.session = arrival.class_id, TO_COME, arrival.session
        coming.first_segment, coming.num_segments = clock.num_segments, arrival.num_segments
        coming.follows, coming.first_follower, coming.next = arrival.follows, NONE, NONE
        clock.num_segments += arrival.num_segments
        clock.num_loaded += 1
        clock.num_to_come += 1
        if arrival.follows > 0:
            wait_for(fleet, row)
    if was_empty:
        expect_next(fleet)


@loop(nb.types.void(FLEET_TYPE))
def _forget(fleet: Fleet) -> None:
    """Frees the places of rows that are over, and that no later row can follow."""
    clock = fleet.clock[0]
    last = clock.num_loaded - clock.max_follows
    while clock.num_forgotten < last and fleet.coming[place_of(fleet, clock.num_forgotten)].state == OVER:
        clock.num_forgotten += 1


def to_come(fleet: Fleet) -> Any:
    """Returns (n,) COMING: the rows that have been let in and may still arrive."""
    rows = np.arange(fleet.clock[0].num_forgotten, fleet.clock[0].num_loaded) & (fleet.coming.size - 1)
    return fleet.coming[rows[fleet.coming["state"][rows] == TO_COME]]


def take_ended(fleet: Fleet, *, everything: bool = False) -> Iterator[tuple[int, Any]]:
    """Takes the requests out that have ended and before which none is still in flight.

    Yields:
        The id of the first and (n,) REQUEST records of consecutive ids: views, good until the next `load`. With
        `everything`, those in flight are taken out too.
    """
    clock = fleet.clock[0]
    last = int(clock.num_arrived) if everything else _first_in_flight(fleet)
    for first, ring in _stretches(fleet, int(clock.num_taken), last):
        clock.num_taken = first + ring.stop - ring.start
        yield first, fleet.requests[ring]


@loop(nb.types.int64(FLEET_TYPE))
def _first_in_flight(fleet: Fleet) -> int:
    clock = fleet.clock[0]
    i = clock.num_taken
    while i < clock.num_arrived and fleet.requests[i & (fleet.requests.size - 1)].phase == GONE:
        i += 1
    return i


def _stretches(fleet: Fleet, first: int, last: int) -> Iterator[tuple[int, slice]]:
    """Yields the one or two pieces of the ring that hold ids `first` to `last`: each with the id it begins with."""
    size = fleet.requests.size
    while first < last:
        start = first & (size - 1)
        stop = min(size, start + last - first)
        yield first, slice(start, stop)
        first += stop - start


def _grown(fleet: Fleet, num_more: int) -> Fleet:
    """Returns the fleet with room for `num_more` rows and what becomes of them; ids, and so all lists, stay as they are."""
    clock = fleet.clock[0]
    num_to_come = int(clock.num_to_come) + num_more
    rows = int(clock.num_forgotten), int(clock.num_loaded)
    ids = int(clock.num_taken), int(clock.num_arrived)
    fleet = with_ring(fleet, "coming", rows[1] + num_more - rows[0], rows)
    for name in ("requests", "row_of", "sequences")[: 3 if fleet.sequences.size > 1 else 2]:
        fleet = with_ring(fleet, name, ids[1] + num_to_come - ids[0], ids)
    if num_to_come > fleet.arriving.size:
        heap = _empty_heap(1 << (num_to_come - 1).bit_length())
        heap[: fleet.arriving.size] = fleet.arriving
        fleet = replace(fleet, arriving=heap)
    return fleet


def with_ring(fleet: Fleet, name: str, num_needed: int, numbers: tuple[int, int]) -> Fleet:
    """Returns the fleet with at least `num_needed` places in a ring that holds what has the `numbers` from first to last."""
    ring = getattr(fleet, name)
    if num_needed <= ring.size:
        return fleet
    return replace(fleet, **{name: _in_larger_ring(ring, 1 << (num_needed - 1).bit_length(), *numbers)})


def _with_segments(fleet: Fleet, segments: Any) -> Fleet:
    """Returns the fleet with `segments` behind those of the requests in the window and of the rows to come."""
    clock, ring = fleet.clock[0], fleet.segments
    last = int(clock.num_segments)
    ids = np.arange(clock.num_taken, clock.num_arrived) & (fleet.sequences.size - 1)
    first = int(min(fleet.sequences["first_segment"][ids].min(initial=last), to_come(fleet)["first_segment"].min(initial=last)))
    if last + len(segments) - first > ring.size:
        ring = _in_larger_ring(ring, 1 << (last + len(segments) - first - 1).bit_length(), first, last)
    ring[np.arange(last, last + len(segments)) & (ring.size - 1)] = segments
    return replace(fleet, segments=ring)


def _in_larger_ring(ring: Any, size: int, first: int, last: int) -> Any:
    """Returns a ring of `size` places that holds what `ring` held under the numbers from `first` to `last`."""
    larger = records(ring.dtype, size) if ring.dtype.names else np.zeros(size, ring.dtype)
    while first < last:  # stretch by stretch: a copy of all of it on the way would hold a large window three times
        here, there = first & (ring.size - 1), first & (size - 1)
        num = min(last - first, ring.size - here, size - there)
        larger[there : there + num] = ring[here : here + num]
        first += num
    return larger
