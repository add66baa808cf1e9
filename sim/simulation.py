"""The control plane: SimPy owns the clock, and between two of its events the data plane runs."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import simpy

from sim.errors import EngineError
from sim.invariants import Audit, check
from sim.pool import Machine, Plane, Pool, PoolSpec
from sim.records import DRAINED, ENDED, NEEDS_ARRIVALS, WOKEN
from sim.scaling import control, decided_together
from sim.window import to_come


class RunsRequests(Plane, Protocol):
    """The data plane, as the dispatch process drives it."""

    def run_until(self, until_s: float) -> int:
        """Runs everything before `until_s`; returns why it stopped."""

    def load(self, arrivals: Any) -> None:
        """Lets the next arrivals in; none means no more."""

    def take_ended(self, *, everything: bool = False) -> Iterator[tuple[int, Any]]:
        """Takes out the oldest requests that have ended."""

    def recounts(self) -> Any:
        """Counts the engines' sums anew."""

    def recount_unrouted(self) -> Any:
        """Counts those that wait for a replica anew."""

    def halt(self) -> None:
        """Stops all replicas where they are."""

    def wake(self) -> None:
        """Wakes the live replicas that a request has found idle."""


class Sink(Protocol):
    """Where results go while the run goes on."""

    def add_machine(self, machine: int, pool: int) -> None:
        """Learns which pool a machine belongs to, before the first request it served."""

    def write_requests(self, first_id: int, rows: Any) -> None:
        """Takes requests with consecutive ids that have ended."""

    def write_interval(self, rows: list[dict[str, Any]]) -> None:
        """Takes one row a pool: the gauges at the end of an interval."""


@dataclass
class Horizon:
    """When things are looked at and when they end, in seconds."""

    traffic_ends_at_s: float
    ends_with_last_arrival: bool = False  # the traffic is cut after a number of requests
    timeline_interval_s: float = 60.0
    max_drain_s: float = 3600.0  # after the traffic's end; what is still in flight then stays so


class Simulation:
    """A fleet under traffic. `run` is the whole of it; afterwards `pools`, `audit` and `plane` tell what happened.

    Args:
        plane: the engines and their router.
        pools: what is known of each pool.
        arrivals: (n,) ARRIVAL records, chunk by chunk.
        horizon: when things are looked at and when they end.
        sink: where the results go.
        progress: is told the time and how many requests have ended.
        num_looks: returns how often policies that are no oracles have asked for the future, by the end of the run.
    """

    def __init__(
        self,
        plane: RunsRequests,
        pools: list[PoolSpec],
        arrivals: Iterator[Any],
        horizon: Horizon,
        sink: Sink,
        progress: Callable[[float, int], None] = lambda now_s, num_ended: None,
        num_looks: Callable[[], int] = lambda: 0,
    ) -> None:
        self.num_looks = num_looks
        self.env = simpy.Environment()
        self.plane, self.arrivals, self.horizon, self.sink, self.progress = plane, arrivals, horizon, sink, progress
        self.machines: list[Machine] = []
        self.pools = [Pool(spec, index, self.env, plane, self.machines) for index, spec in enumerate(pools)]
        self.audit = Audit()
        self.traffic_ends_at_s = horizon.traffic_ends_at_s
        self.last_arrival_at_s = 0.0
        self.names = [spec.name for spec in pools]
        self.num_machines_told = 0
        self.interval_started_at_s = 0.0
        self.is_cut_short = False
        self.failure = ""  # of a real engine, which ended the run
        self.invariants: list[str] = []  # that were checked at its end

    def run(self) -> float:
        """Runs until the traffic is over and every request has ended, or a real engine fails; returns the time at the end.

        Raises:
            InvariantError: our mistake: the run's books do not agree.
        """
        for pools in decided_together(self.pools):
            self.env.process(control(self.env, pools))
        for pool in self.pools:
            if pool.spec.scrape_interval_s > 0:
                self.env.process(pool.keep_scraping())
        self.env.process(self.watch())
        try:
            self.env.run(self.env.process(self.dispatch()))
        except EngineError as error:
            self.failure, self.is_cut_short = str(error), True
        self.close_books()
        self.invariants = check(
            self.audit, self.plane.fleet, self.pools, is_cut_short=self.is_cut_short, num_undeclared_oracles=self.num_looks()
        )
        return float(self.env.now)

    @property
    def num_never_sent(self) -> Any:
        """Requests of the traffic that never arrived, (num_classes,)."""
        return self.plane.fleet.never_sent

    def dispatch(self) -> Generator[Any, Any, None]:
        """The main loop: lets the data plane run up to the next control event, and serves what it comes back for."""
        yield self.env.timeout(0)  # the fleet that the day starts with comes first
        while True:
            until_s = min(self.env.peek(), self.gives_up_at_s())
            reason = self.plane.run_until(until_s)
            clock = self.plane.fleet.clock[0]
            while clock.now_s > self.env.now:  # the sum of two floats may fall short of the instant that is meant
                yield self.env.timeout(float(clock.now_s) - self.env.now)
            if reason == NEEDS_ARRIVALS:
                self.move_window()
            elif reason == WOKEN:
                self.plane.wake()
            elif reason == DRAINED:
                self.tell_drained(int(clock.drained))
            elif reason == ENDED:
                yield self.env.timeout(max(0.0, self.traffic_ends_at_s - self.env.now))
                return
            elif self.env.now >= self.gives_up_at_s():
                self.is_cut_short = True
                return
            else:
                yield self.env.timeout(0)  # the control event at this very time goes first

    def gives_up_at_s(self) -> float:
        """Returns when requests that are still in flight stay so.

        While requests are to come, the traffic goes on: they may wait for others to end. It then ends with the latest arrival
        or end, or with the next arrival that is certain.
        """
        ends_at_s, fleet = self.traffic_ends_at_s, self.plane.fleet
        if fleet.clock[0].num_to_come > 0:
            next_at_s = float(fleet.arriving[0].at_s)
            ends_at_s = max(ends_at_s, float(fleet.clock[0].in_system_since_s), next_at_s if np.isfinite(next_at_s) else 0.0)
        return ends_at_s + self.horizon.max_drain_s

    def drop_unsent(self) -> None:
        """Counts the requests that have not arrived, of which the client still has some: they never do."""
        clock = self.plane.fleet.clock[0]
        self.count_unsent(to_come(self.plane.fleet))
        for rows in self.arrivals:
            self.count_unsent(rows)
            clock.num_loaded += len(rows)
        clock.num_to_come = 0

    def count_unsent(self, rows: Any) -> None:
        """Counts rows of the traffic, (n,), that never arrive."""
        self.num_never_sent[:] += np.bincount(rows["class_id"], minlength=self.num_never_sent.size)

    def move_window(self) -> None:
        """Writes the requests that have ended and lets the next ones in."""
        for first_id, rows in self.plane.take_ended():
            self.write(first_id, rows)
        self.progress(self.env.now, int(self.plane.fleet.clock[0].num_ended))
        arrivals: Any = next(self.arrivals, ())
        self.plane.load(arrivals)
        if len(arrivals):
            self.last_arrival_at_s = float(arrivals[-1]["arrived_at_s"])
        else:
            planned_s = self.last_arrival_at_s if self.horizon.ends_with_last_arrival else self.traffic_ends_at_s
            self.traffic_ends_at_s = max(planned_s, float(self.env.now))  # later than planned: requests waited for others

    def tell_drained(self, slot: int) -> None:
        """Tells the pools that a draining engine has served its last request."""
        for pool in self.pools:
            pool.tell_drained(slot)

    def watch(self) -> Generator[Any, Any, None]:
        """The timeline: at the end of every interval, what each pool shows, and a recount of the running sums."""
        while True:
            yield self.env.timeout(self.horizon.timeline_interval_s)
            self.write_interval()

    def write_interval(self) -> None:
        """Writes the gauges of the interval that ends now."""
        self.audit.look(self.plane.fleet, self.plane.recounts(), self.plane.recount_unrouted())
        self.sink.write_interval([self.gauges(pool, self.interval_started_at_s) for pool in self.pools])
        self.interval_started_at_s = float(self.env.now)

    def close_books(self) -> None:
        """Ends the run: the last interval, the machines still held, the requests still in flight, and the audit."""
        if self.is_cut_short:
            self.drop_unsent()
        if self.env.now > self.interval_started_at_s:
            self.write_interval()
        for pool in self.pools:
            pool.end()
        self.plane.halt()
        for first_id, rows in self.plane.take_ended(everything=True):
            self.write(first_id, rows)
        self.audit.close(self.plane.fleet, self.env.now)

    def gauges(self, pool: Pool, started_at_s: float) -> dict[str, Any]:
        """Returns one pool's row of the timeline."""
        view, spec = pool.view(), pool.spec
        num_waiting, num_running = pool.num_draining_requests()
        gpu_hours = pool.take_bill() / 3600
        return {
            "pool": spec.name,
            "start_s": started_at_s,
            "end_s": self.env.now,
            "num_ready": view.num_ready,
            "num_starting": view.num_starting,
            "num_draining": view.num_draining,
            "desired": pool.desired,
            "num_waiting": view.num_waiting + num_waiting,
            "num_running": view.num_running + num_running,
            "kv_cache_usage": view.kv_cache_usage,
            "gpu_hours": gpu_hours,
            "dollars": None if spec.price_per_gpu_hour is None else gpu_hours * spec.price_per_gpu_hour,
            "capacity_per_s": None if spec.replica_requests_per_s is None else view.num_ready * spec.replica_requests_per_s,
        }

    def write(self, first_id: int, rows: Any) -> None:
        """Passes ended requests on to the results, and through the audit."""
        for machine in self.machines[self.num_machines_told :]:
            self.sink.add_machine(machine.id, self.names.index(machine.pool))
        self.num_machines_told = len(self.machines)
        self.audit.count(rows)
        self.sink.write_requests(first_id, rows)
