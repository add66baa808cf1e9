"""The data plane's face to Python: what the control plane may ask of it and tell it."""

import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from replicas.data_plane import run_until
from replicas.eviction import clear, evict
from replicas.gateway import choose_in_python, observe_nothing, route_unrouted
from replicas.integrity import LONGEST_QUEUE, recount, recount_unrouted
from replicas.schedulers import check_schedulers
from sim.compiled import Pointer, entry_point, raising
from sim.errors import ConfigError
from sim.observing import take_event
from sim.outside import guarded, own_code
from sim.records import BAD_ROUTE, DRAIN_TIMEOUT, NEEDS_OBSERVER, NEEDS_ROUTE, NO_LIMIT, NO_REASON, NONE, Fleet
from sim.routing import Routing
from sim.signatures import CHOOSE_SIGNATURE, OBSERVE_SIGNATURE, view_type
from sim.window import NO_SEGMENTS, load, new_fleet, take_ended, with_ring

_run_until, _route_unrouted = entry_point(run_until), entry_point(route_unrouted)


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def compiled(routing: Routing) -> tuple[Pointer, Pointer]:
    """Returns the addresses of a router's functions, compiled for what it remembers and for its options."""
    own = view_type(*routing.view.own_dtypes)
    with own_code(routing.choose):
        choose = Pointer(routing.choose, CHOOSE_SIGNATURE.return_type(own), CHOOSE_SIGNATURE)
        observe, seen = routing.observe or observe_nothing, own if routing.observe else OBSERVE_SIGNATURE.args[0]
        return choose, Pointer(observe, OBSERVE_SIGNATURE.return_type(seen), OBSERVE_SIGNATURE)


class DataPlane:
    """All replicas of a fleet, their router, and the requests in flight.

    Args:
        engines: (num_pools,) ENGINE records.
        num_slots: (num_pools,) most machines each pool has at one time.
        num_itl_bins: length of the histogram of gaps between tokens.
        scrape_interval_s: age that the router's view reaches; 0 = live.
        routing: the router at work; one in plain Python is asked at every request.
        classes: (num_classes,) CLASS records; None = one class that asks for nothing special.
        segments_of: tells the token content of arrivals: rows of ARRIVAL -> their SEGMENT records, one row's after the other.
        max_concurrency: requests that the client has in flight at most; None = no limit.
        max_follows: most rows of the traffic from a request to one that follows it; 0 = none follows another.
    """

    def __init__(
        self,
        engines: Any,
        num_slots: list[int],
        num_itl_bins: int,
        scrape_interval_s: float,
        routing: Routing,
        classes: Any = None,
        segments_of: Callable[[Any], Any] = lambda arrivals: NO_SEGMENTS,
        max_concurrency: int | None = None,
        max_follows: int = 0,
    ) -> None:
        in_flight = NO_LIMIT if max_concurrency is None else max_concurrency
        limits = (scrape_interval_s, classes, in_flight, max_follows, routing)
        check_schedulers(engines)
        self.fleet: Fleet = new_fleet(engines, sum(num_slots), num_itl_bins, *limits)
        self.segments_of = segments_of
        self.fleet.engines["first_slot"] = np.cumsum([0, *num_slots[:-1]])
        self.fleet.replicas["pool"] = np.repeat(np.arange(len(num_slots)), num_slots)
        self.routing = routing
        self.router = getattr(routing.choose, "py_func", routing.choose)  # as it was written
        is_compiled = hasattr(routing.choose, "get_compile_result")
        is_own = is_compiled and not self.router.__module__.startswith("routers.")
        self._call: Callable[..., Any] = self._call_own if is_own else _called
        self._pointers = compiled(routing) if is_compiled else (choose_in_python, observe_nothing)
        self._ask_python = None if is_compiled else guarded(routing.choose)
        self._observe_python = None if is_compiled or routing.observe is None else guarded(routing.observe)
        self._shown = routing.view if is_compiled else routing.in_python()
        self.answer: Any = None  # of the router in Python, as it gave it
        self.fleet.clock[0].routes_in_python = not is_compiled

    def run_until(self, until_s: float) -> int:
        """Runs everything before `until_s` and returns why it stopped: REACHED, ENDED, NEEDS_ARRIVALS or DRAINED."""
        while True:
            reason = self._call(_run_until, self.fleet, *self._pointers, self.routing.view, until_s)
            if reason == BAD_ROUTE:
                raise ConfigError(self._bad_route())
            if reason == NEEDS_ROUTE:
                self._ask()
            elif reason == NEEDS_OBSERVER:
                self._tell()
            else:
                return int(reason)

    def _call_own(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a loop whose compiled router is the user's own, and says what the router raised."""
        try:
            return raising(function, *arguments)
        except Exception as error:
            file = self.router.__code__.co_filename
            lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == file]
            place = f" ({Path(file).name}{f', line {lines[-1]}' if lines else ''})"
            raise ConfigError(f"router {self._name}: {type(error).__name__}: {str(error)[:200]}{place}") from error

    @property
    def _name(self) -> str:
        return f"{self.router.__module__}:{self.router.__qualname__}"

    def _ask(self) -> None:
        clock, view = self.fleet.clock[0], self._shown
        assert self._ask_python is not None
        self._tell()
        view.show_first("candidates", int(clock.num_offered))
        view.show_first("keys", int(clock.num_keys))
        choice = self._ask_python(view)
        self.answer = choice.item() if isinstance(choice, np.generic) else choice
        is_slot = isinstance(self.answer, int) and self.answer in view.candidates
        clock.chosen = self.answer if is_slot else self.fleet.replicas.size

    def _tell(self) -> None:
        """Tells a router in plain Python what happened since it was last told."""
        while self._observe_python is not None and take_event(self.fleet):
            self._observe_python(self._shown)

    def _bad_route(self) -> str:
        clock = self.fleet.clock[0]
        chose = int(clock.chosen) if self._ask_python is None else self.answer
        candidates = str(self.fleet.offered[: min(clock.num_offered, 20)].tolist())
        more = f" and {clock.num_offered - 20:,} more" if clock.num_offered > 20 else ""
        return (
            f"router {self._name}: chose {repr(chose)[:80]} for request {self.fleet.asking.id}; "
            f"the candidates are {candidates}{more}"
        )

    def load(self, arrivals: Any) -> None:
        """Lets the next arrivals in, (n,) ARRIVAL records; none means that the traffic is over."""
        if len(arrivals):
            assert arrivals["class_id"].max() < self.fleet.classes.size, "a request of an unknown class"
            self._make_room_for_keys(arrivals)
            self.fleet = load(self.fleet, arrivals, self.segments_of(arrivals))
        else:
            self.fleet.clock[0].is_exhausted = 1

    def _make_room_for_keys(self, arrivals: Any) -> None:
        """Has the router's view hold the keys of the longest prompt."""
        routing = self.routing
        if routing.key_block_size:
            routing.make_room(int(arrivals["num_prompt_tokens"].max()) // routing.key_block_size)
            if routing.view.keys is not self.fleet.keys:
                self.fleet = replace(self.fleet, keys=routing.view.keys)
                self._shown = routing.view if self._ask_python is None else routing.in_python()

    def _make_room_for_events(self, num_more: int) -> None:
        """Has the ring of events hold so many more."""
        fleet, clock = self.fleet, self.fleet.clock[0]
        noted, told = int(clock.num_noted), int(clock.num_told)
        if clock.observes:
            self.fleet = with_ring(fleet, "events", noted - told + num_more, (told, noted))

    def take_ended(self, *, everything: bool = False) -> Iterator[tuple[int, Any]]:
        """Takes out the oldest requests that have ended, or all there are, in stretches: the first id and the records."""
        return take_ended(self.fleet, everything=everything)

    def open(self, slot: int, machine: int, now_s: float) -> None:
        """Makes a replica ready: it takes requests from now on, first those that found none."""
        fleet, clock = self.fleet, self.fleet.clock[0]
        replica, gauges = fleet.replicas[slot], fleet.loads[slot]
        clock.now_s = max(clock.now_s, now_s)
        gauges.num_usable_blocks = fleet.engines[replica.pool].num_usable_blocks
        self._make_room_for_events(1)
        fleet = self.fleet
        clear(fleet, slot)
        replica.machine, replica.is_open, replica.is_draining = machine, 1, 0
        replica.last_step_ended_at_s = now_s
        fleet.seen[slot] = gauges
        fleet.seen[slot].num_inflight = 0
        fleet.clients[slot] = 0
        fleet.ready[clock.num_ready] = slot
        clock.num_ready += 1
        self.route_unrouted()

    def route_unrouted(self) -> None:
        """Sends the requests that found no replica to those that can serve them now."""
        num_left = int(self.fleet.clock[0].num_unrouted)
        while num_left > 0:
            num_left = int(self._call(_route_unrouted, self.fleet, *self._pointers, self.routing.view, num_left))
            if num_left > 0:
                self._ask()
        if num_left < 0:
            raise ConfigError(self._bad_route())

    def unrouted(self, pool: int) -> tuple[int, int, int]:
        """Returns how many requests wait for a replica that this pool could serve, their tokens, and how many are new.

        Those that are not new come back from a machine that went away.
        """
        num_requests, num_tokens, num_new = self.fleet.unrouted[pool].tolist()
        return num_requests, num_tokens, num_new

    def close(self, slot: int) -> bool:
        """Stops sending requests to a replica; returns whether it is empty already."""
        fleet, clock = self.fleet, self.fleet.clock[0]
        left = [r for r in fleet.ready[: clock.num_ready].tolist() if r != slot]
        fleet.ready[: len(left)] = left
        clock.num_ready = len(left)
        fleet.replicas[slot].is_open, fleet.replicas[slot].is_draining = 0, 1
        return not (fleet.replicas[slot].num_in_flight or fleet.loads[slot].num_waiting)

    def vacate(self, slot: int, *, requeue: bool, reason: int = DRAIN_TIMEOUT) -> int:
        """Takes what is left off a closed replica, back to the router or failed; returns how many requests that were."""
        self._make_room_for_events(int(self.fleet.loads[slot].num_waiting + self.fleet.loads[slot].num_running) + 1)
        num_evicted = int(evict(self.fleet, slot, requeue, reason))
        self.fleet.replicas[slot].is_draining = 0
        self.fleet.replicas[slot].machine = NONE
        if requeue:
            self.route_unrouted()
        return num_evicted

    def halt(self) -> None:
        """Stops all replicas where they are; what was in flight keeps the tokens it got."""
        for slot in np.flatnonzero(self.fleet.replicas["machine"] != NONE):
            load = self.fleet.loads[slot]
            self._make_room_for_events(int(load.num_waiting + load.num_running) + 1)
            evict(self.fleet, int(slot), True, NO_REASON)

    def wake(self) -> None:
        """Wakes nobody: all replicas here are simulated, and the loop itself wakes those."""

    def recounts(self) -> Any:
        """Returns (num_slots, 6) integers counted anew.

        They are running and waiting requests, held blocks, held tokens, waiting tokens, and prompt tokens of requests without
        a token.
        """
        counts = np.zeros((self.fleet.replicas.size, 6), np.int64)
        for slot in np.flatnonzero(np.asarray(self.fleet.replicas["machine"]) != NONE):
            recount(self.fleet, int(slot), counts[slot])
        return counts

    def recount_unrouted(self) -> Any:
        """Returns `fleet.unrouted` counted anew; a queue of more than `LONGEST_QUEUE` is taken at its word."""
        if self.fleet.clock[0].num_unrouted > LONGEST_QUEUE:
            return self.fleet.unrouted
        counts = np.zeros_like(self.fleet.unrouted)
        recount_unrouted(self.fleet, counts)
        return counts
