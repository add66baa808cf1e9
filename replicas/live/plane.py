"""The data plane of a fleet in which some replicas are live: their slots take requests as any, and SimPy runs their steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import simpy

from replicas.live.books import Books
from replicas.live.interface import LiveEngine
from replicas.live.process import LiveReplica, Watch
from replicas.live.tokens import TokenStreams
from replicas.plane import DataPlane
from sim.coming import tell_next_arrival_at_s
from sim.records import DRAIN_TIMEOUT, DRAINED, REACHED, WOKEN


class EngineSource:
    """Starts the engines of one pool. The first is started before the run, to learn what it can hold.

    Args:
        start: starts one engine and returns it.
        is_measured: whether the last three stages of a cold start are what starting an engine took here.
        by_priority: whether the engine schedules by priority.
    """

    def __init__(self, start: Callable[[], LiveEngine], is_measured: bool = True, by_priority: bool = False) -> None:
        self._start, self.is_measured, self.by_priority = start, is_measured, by_priority
        self._spare = [start()]
        self.limits = self._spare[0].limits
        self.starts = [self._spare[0].start_s]  # of each engine so far, how long the stages of its start took

    def stages(self, given: list[tuple[str, float]]) -> list[tuple[str, float]]:
        """Returns the stages of the next engine's start, which is really started for them.

        Args:
            given: the stages as the config has them: the column that each one's end fills, and its seconds.
        """
        if not self.is_measured:
            return given
        if not self._spare:
            self._spare.append(self._started())
        took = self._spare[-1].start_s
        measured = {
            "weights_loaded_at_s": took["weights_s"],
            "started_at_s": took["start_s"],
            "ready_at_s": took["capture_s"],
        }
        return [(column, measured.get(column, seconds)) for column, seconds in given]

    def take(self) -> LiveEngine:
        """Returns a started engine for a replica that is ready."""
        return self._spare.pop() if self._spare else self._started()

    def _started(self) -> LiveEngine:
        engine = self._start()
        self.starts.append(engine.start_s)
        return engine

    def lifecycle(self, weight_bytes: float) -> dict[str, float]:
        """Returns the keys of `lifecycle` as they were measured, medians over the starts so far; empty for a server."""
        starts = [start for start in self.starts if start]
        if not starts:
            return {}
        median = {name: float(np.median([start[name] for start in starts])) for name in starts[0]}
        return {
            "weights_gb_per_s": weight_bytes / 1e9 / median["weights_s"],
            "start_s": median["start_s"],
            "capture_s": median["capture_s"],
        }

    def shut_down(self) -> None:
        """Ends the engines that no replica took."""
        while self._spare:
            self._spare.pop().shut_down()


class LivePlane(DataPlane):
    """A `DataPlane` some of whose pools are live.

    A live replica's slot takes requests as any. Its records never tell the compiled loop of a step, so the loop cannot run one;
    what does tell is a request that finds the engine idle (`enqueue` sets an end). `run_until` stops there, and the engine's
    process goes on. To see that, it looks once an arrival while a live engine is idle.
    """

    def __init__(self, *args: Any, sources: dict[int, EngineSource], **kwargs: Any) -> None:
        """Takes what `DataPlane` takes, and `sources`: the live pools, by number."""
        super().__init__(*args, **kwargs)
        self.sources = sources
        self.live_slots = np.flatnonzero(np.isin(self.fleet.replicas["pool"], list(sources)))
        self.live: dict[int, LiveReplica] = {}
        self.watches: list[Watch] = []
        self.streams = {pool: TokenStreams(source.limits.vocab_size) for pool, source in sources.items()}
        self._env: simpy.Environment | None = None
        self._drained: list[int] = []

    def attach(self, env: simpy.Environment) -> None:
        """Learns who owns the clock."""
        self._env = env

    def run_until(self, until_s: float) -> int:
        """Runs everything before `until_s`, as `DataPlane` does; also returns when a request wakes a live replica: WOKEN."""
        while True:
            if self._drained:
                self.fleet.clock[0].drained = self._drained.pop(0)
                return DRAINED
            if self._woken():
                return WOKEN
            bound_s = min(until_s, self._after_next_arrival_s())
            reason = super().run_until(bound_s)
            if reason != REACHED or (bound_s == until_s and not self._woken()):
                return reason

    def wake(self) -> None:
        """Wakes the live replicas that a request has found idle."""
        for slot in self._woken():
            self.live[slot].wake()

    def _woken(self) -> list[int]:
        return [slot for slot in self.live if self.fleet.next_end_at_s[slot] < np.inf]

    def next_arrival_s(self) -> float:
        """Returns when the next request arrives, as far as is known; inf if none does, or none before another ends."""
        return float(tell_next_arrival_at_s(self.fleet))

    def _after_next_arrival_s(self) -> float:
        """Returns the instant after the next arrival, or after the next step's end, for which another request may wait."""
        if all(self.fleet.replicas[slot].num_in_flight for slot in self.live):
            return np.inf
        clock, at_s = self.fleet.clock[0], self.next_arrival_s()
        if clock.num_in_system >= clock.max_concurrency or clock.max_follows > 0:
            at_s = min(at_s, float(self.fleet.next_end_at_s.min()))
        return float(np.nextafter(at_s, np.inf))

    def open(self, slot: int, machine: int, now_s: float) -> None:
        """Makes a replica ready, a live one with an engine of its own."""
        pool = int(self.fleet.replicas[slot].pool)
        if pool in self.sources:
            assert self._env is not None
            env, engine = self._env, self.sources[pool].take()
            engine.follow(lambda: float(env.now), self.next_arrival_s)
            books = Books(lambda: self.fleet, slot)
            priorities = self.fleet.classes["priority"] if self.sources[pool].by_priority else None
            self.live[slot] = LiveReplica(
                env, books, engine, self.streams[pool], priorities, self._drained.append, self.watches
            )
        super().open(slot, machine, now_s)

    def vacate(self, slot: int, *, requeue: bool, reason: int = DRAIN_TIMEOUT) -> int:
        """Takes what is left off a closed replica and ends its engine."""
        if slot in self.live:
            self.live.pop(slot).stop()
            self.fleet.replicas[slot].num_in_flight = 0
        return super().vacate(slot, requeue=requeue, reason=reason)

    def halt(self) -> None:
        """Stops all replicas where they are, and ends the engines."""
        for slot in list(self.live):
            self.live.pop(slot).stop()
            self.fleet.replicas[slot].num_in_flight = 0
        for source in self.sources.values():
            source.shut_down()
        super().halt()

    def recounts(self) -> Any:
        """Counts the engines' sums anew; the blocks of live ones are counted by their own audit."""
        counts = super().recounts()
        for slot, replica in self.live.items():
            running, waiting, computed, waiting_tokens, before_first = replica.books.recount()
            load = self.fleet.loads[slot]
            held = int(load.num_usable_blocks) - int(load.num_free_blocks)
            counts[slot] = running, waiting, held, computed, waiting_tokens, before_first
        return counts
