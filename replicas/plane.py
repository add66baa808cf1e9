"""The data plane's face to Python: what the control plane may ask of it and tell it."""

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from replicas.data_plane import run_until
from replicas.eviction import clear, evict
from replicas.gateway import route_unrouted
from replicas.integrity import LONGEST_QUEUE, recount, recount_unrouted
from replicas.schedulers import check_schedulers
from sim.compiled import Pointer, entry_point, raising
from sim.errors import ConfigError
from sim.records import BAD_ROUTE, DRAIN_TIMEOUT, NEEDS_ROUTE, NO_LIMIT, NO_REASON, NONE, Fleet, RouterState
from sim.signatures import ROUTER_SIGNATURE
from sim.window import NO_SEGMENTS, load, new_fleet, take_ended

_run_until, _route_unrouted = entry_point(run_until), entry_point(route_unrouted)


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _read_only(array: Any) -> Any:
    """Returns a view for a policy: writing to it fails where it is written, and not in the books at the end."""
    view = array[:]
    view.flags.writeable = False
    return view


class DataPlane:
    """All replicas of a fleet, their router, and the requests in flight.

    Args:
        engines: (num_pools,) ENGINE records.
        num_slots: (num_pools,) most machines each pool has at one time.
        num_itl_bins: length of the histogram of gaps between tokens.
        scrape_interval_s: age that the router's view reaches; 0 = live.
        choose: compiled router.
        state: its memory.
        ask_python: plain Python router, asked instead of `choose` at every request.
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
        choose: Any,
        state: RouterState,
        ask_python: Callable[..., int] | None = None,
        classes: Any = None,
        segments_of: Callable[[Any], Any] = lambda arrivals: NO_SEGMENTS,
        max_concurrency: int | None = None,
        max_follows: int = 0,
    ) -> None:
        in_flight = NO_LIMIT if max_concurrency is None else max_concurrency
        limits = (scrape_interval_s, classes, in_flight, state.clients, max_follows)
        check_schedulers(engines)
        self.fleet: Fleet = new_fleet(engines, sum(num_slots), num_itl_bins, *limits)
        self.segments_of = segments_of
        self.fleet.engines["first_slot"] = np.cumsum([0, *num_slots[:-1]])
        self.fleet.replicas["pool"] = np.repeat(np.arange(len(num_slots)), num_slots)
        is_compiled = hasattr(choose, "get_compile_result")
        self.choose = Pointer(choose, ROUTER_SIGNATURE) if is_compiled else choose
        self.router = getattr(ask_python or choose, "py_func", ask_python or choose)  # as it was written
        is_own = is_compiled and not self.router.__module__.startswith("routers.")
        self._call: Callable[..., Any] = self._call_own if is_own else _called
        self.state, self.ask_python = state, ask_python
        self.answer: Any = None  # of the router in Python, as it gave it
        self.fleet.clock[0].routes_in_python = ask_python is not None

    def run_until(self, until_s: float) -> int:
        """Runs everything before `until_s` and returns why it stopped: REACHED, ENDED, NEEDS_ARRIVALS or DRAINED."""
        while True:
            reason = self._call(_run_until, self.fleet, self.choose, self.state, until_s)
            if reason == BAD_ROUTE:
                raise ConfigError(self._bad_route())
            if reason != NEEDS_ROUTE:
                return int(reason)
            self._ask()

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
        clock = self.fleet.clock[0]
        assert self.ask_python is not None
        candidates = self.fleet.offered[: clock.num_offered]
        shown = (_read_only(array) for array in (self.fleet.seen, candidates, self.fleet.asking))
        choice = self.ask_python(*shown, self.state)
        self.answer = choice.item() if isinstance(choice, np.generic) else choice
        is_slot = isinstance(self.answer, int) and self.answer in candidates
        clock.chosen = self.answer if is_slot else self.fleet.replicas.size

    def _bad_route(self) -> str:
        clock = self.fleet.clock[0]
        chose = int(clock.chosen) if self.ask_python is None else self.answer
        candidates = str(self.fleet.offered[: min(clock.num_offered, 20)].tolist())
        more = f" and {clock.num_offered - 20:,} more" if clock.num_offered > 20 else ""
        return (
            f"router {self._name}: chose {repr(chose)[:80]} for request {self.fleet.asking[0].id}; "
            f"the candidates are {candidates}{more}"
        )

    def load(self, arrivals: Any) -> None:
        """Lets the next arrivals in, (n,) ARRIVAL records; none means that the traffic is over."""
        if len(arrivals):
            assert arrivals["class_id"].max() < self.fleet.classes.size, "a request of an unknown class"
            self.fleet = load(self.fleet, arrivals, self.segments_of(arrivals))
        else:
            self.fleet.clock[0].is_exhausted = 1

    def take_ended(self, *, everything: bool = False) -> Iterator[tuple[int, Any]]:
        """Takes out the oldest requests that have ended, or all there are, in stretches: the first id and the records."""
        return take_ended(self.fleet, everything=everything)

    def open(self, slot: int, machine: int, now_s: float) -> None:
        """Makes a replica ready: it takes requests from now on, first those that found none."""
        fleet, clock = self.fleet, self.fleet.clock[0]
        replica, gauges = fleet.replicas[slot], fleet.loads[slot]
        clock.now_s = max(clock.now_s, now_s)
        gauges.num_usable_blocks = fleet.engines[replica.pool].num_usable_blocks
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
            num_left = int(self._call(_route_unrouted, self.fleet, self.choose, self.state, num_left))
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
        num_evicted = int(evict(self.fleet, slot, requeue, reason))
        self.fleet.replicas[slot].is_draining = 0
        self.fleet.replicas[slot].machine = NONE
        if requeue:
            self.route_unrouted()
        return num_evicted

    def halt(self) -> None:
        """Stops all replicas where they are; what was in flight keeps the tokens it got."""
        for slot in np.flatnonzero(self.fleet.replicas["machine"] != NONE):
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
