"""One pool of identical replicas: its machines come, serve, drain and go, each a SimPy process that tells its life."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import simpy

from sim.records import DRAIN_TIMEOUT, REPLICA_FAILED, Fleet
from sim.scrapes import Scrapes
from sim.views import GAUGES, PoolView, read_only


class Plane(Protocol):
    """What the control plane asks of the data plane."""

    fleet: Fleet

    def open(self, slot: int, machine: int, now_s: float) -> None:
        """Makes a replica ready."""

    def unrouted(self, pool: int) -> tuple[int, int, int]:
        """Returns how many requests wait for a replica that this pool could serve, their tokens, and how many are new."""

    def close(self, slot: int) -> bool:
        """Stops sending it requests; tells whether it is empty."""

    def vacate(self, slot: int, *, requeue: bool, reason: int = DRAIN_TIMEOUT) -> int:
        """Takes what is left off it and returns how many requests that were; those not requeued have failed, for `reason`."""


class Decides(Protocol):
    """An autoscaler at work, for the pools that have it as theirs: one, or several that are decided together."""

    def decide(self, views: Mapping[str, PoolView]) -> Mapping[str, Any]:
        """Returns a decision for each pool; its `desired` is the number of replicas to have ready or starting."""


@dataclass
class Machine:
    """One machine's life, as replicas.parquet shows it: what it is, and when it passed each stage (None = never)."""

    id: int
    pool: str
    slot: int
    num_gpus: int
    price_per_gpu_hour: float | None
    requested_at_s: float
    provisioned_at_s: float | None = None
    image_pulled_at_s: float | None = None
    weights_loaded_at_s: float | None = None
    started_at_s: float | None = None
    ready_at_s: float | None = None
    draining_at_s: float | None = None
    released_at_s: float | None = None
    num_evicted: int = 0
    reason: str = ""


@dataclass
class PoolSpec:
    """What the wiring knows of a pool before it runs."""

    name: str
    first_slot: int
    max_replicas: int
    num_gpus: int  # of a machine, all its ranks together
    price_per_gpu_hour: float | None
    interval_s: float
    stages: Callable[[], list[tuple[str, float]]]  # the stages of one cold start: column, seconds
    cold_start_s: float
    warm_start: bool
    drain_timeout_s: float
    requeue_on_timeout: bool
    replica_requests_per_s: float | None  # None = it can serve none of the traffic
    replica_tokens: float | None
    autoscaler: Decides  # the same object as another pool's where they are decided together
    scrape_interval_s: float = 0.0  # age that what the autoscaler is shown reaches; 0 = live
    past_s: float = 0.0  # how far back it is shown
    class_names: Sequence[str] = ()
    num_ranks: int = 1  # data-parallel engines of a machine, each in a slot of its own
    time_to_failure_s: Callable[[], float] | None = None  # from a machine's readiness; None = none fails
    requeue_on_failure: bool = True


@dataclass
class Pool:
    """A pool at work."""

    spec: PoolSpec
    index: int
    env: simpy.Environment
    plane: Plane
    machines: list[Machine]  # all that the fleet ever had, in order of their ids
    desired: int = 0
    billed_gpu_s: float = 0.0  # integral of the GPUs held, up to billed_until_s
    billed_until_s: float = 0.0
    reported_gpu_s: float = 0.0  # the part of it that the timeline has shown

    def __post_init__(self) -> None:
        first, num_slots = self.spec.first_slot, self.spec.max_replicas * self.spec.num_ranks
        self.free_slots = list(range(first, first + num_slots, self.spec.num_ranks))  # a machine is known by its first
        self.starting: dict[int, Any] = {}  # slot -> its process
        self.ready: dict[int, Any] = {}  # slot -> the event that asks it to drain
        self.draining: dict[int, Any] = {}  # slot -> the event of its last request
        self.busy: dict[int, set[int]] = {}  # slot of a draining machine -> those of its ranks that still have requests
        self.machine_in: dict[int, Machine] = {}
        mine = slice(first, first + num_slots)
        loads = self.plane.fleet.loads.view(np.ndarray)  # a recarray's fields are slow to get at
        self.loads = {name: loads[name][mine] for name in loads.dtype.names}
        self.loads["machine"] = self.plane.fleet.replicas.view(np.ndarray)["machine"][mine]
        self.scrapes = Scrapes(self.spec.past_s)

    def apply(self, desired: int, *, warm: bool = False) -> None:
        """Starts or lets go as many replicas as it takes; machines that still drain keep their GPUs until they are gone."""
        self.desired = desired
        change = desired - len(self.starting) - len(self.ready)
        for _ in range(min(change, len(self.free_slots))):
            self.request_machine(warm=warm)
        for _ in range(-change):
            self.let_one_go()

    def request_machine(self, *, warm: bool = False) -> None:
        """Asks for a machine; from here on it is billed."""
        self.bill()
        slot = self.free_slots.pop(0)
        spec = self.spec
        machine = Machine(
            id=len(self.machines),
            pool=spec.name,
            slot=slot,
            num_gpus=spec.num_gpus,
            price_per_gpu_hour=spec.price_per_gpu_hour,
            requested_at_s=self.env.now,
        )
        self.machines.append(machine)
        self.machine_in[slot] = machine
        stages = [] if warm else spec.stages()
        self.starting[slot] = self.env.process(self.live(machine, stages))

    def live(self, machine: Machine, stages: list[tuple[str, float]]) -> Generator[Any, Any, None]:
        """A machine's life: it comes up stage by stage, serves, drains, and is released."""
        try:
            for column, duration_s in stages:
                yield self.env.timeout(duration_s)
                setattr(machine, column, self.env.now)
        except simpy.Interrupt:
            self.release(machine, "cancelled")
            return
        machine.ready_at_s = self.env.now
        del self.starting[machine.slot]
        self.ready[machine.slot] = self.env.event()
        for slot in self.ranks(machine.slot):
            self.plane.open(slot, machine.id, self.env.now)
        is_to_drain = self.ready[machine.slot]
        if self.spec.time_to_failure_s is not None:
            yield is_to_drain | self.env.timeout(self.spec.time_to_failure_s())
            if not is_to_drain.triggered:
                self.fail(machine)
                return
        yield is_to_drain
        yield from self.drain(machine)

    def fail(self, machine: Machine) -> None:
        """Loses a ready machine from one instant to the next; its requests go back to the router or have failed."""
        del self.ready[machine.slot]
        for slot in self.ranks(machine.slot):
            self.plane.close(slot)
        requeue = self.spec.requeue_on_failure
        machine.num_evicted = sum(
            self.plane.vacate(slot, requeue=requeue, reason=REPLICA_FAILED) for slot in self.ranks(machine.slot)
        )
        self.release(machine, "failed")

    def drain(self, machine: Machine) -> Generator[Any, Any, None]:
        """Takes no new requests, finishes the running ones, or gives up on them after the timeout."""
        machine.draining_at_s = self.env.now
        del self.ready[machine.slot]
        self.draining[machine.slot] = drained = self.env.event()
        self.busy[machine.slot] = {slot for slot in self.ranks(machine.slot) if not self.plane.close(slot)}
        if self.busy[machine.slot]:
            yield drained | self.env.timeout(self.spec.drain_timeout_s)
        requeue = self.spec.requeue_on_timeout
        machine.num_evicted = sum(self.plane.vacate(slot, requeue=requeue) for slot in self.ranks(machine.slot))
        self.release(machine, "drain timeout" if machine.num_evicted else "scaled down")

    def ranks(self, slot: int) -> range:
        """Returns the slots of a machine's ranks."""
        return range(slot, slot + self.spec.num_ranks)

    def tell_drained(self, rank: int) -> None:
        """Notes that a rank of a draining machine, or several that step together, have served their last request.

        With the last rank the machine has drained.
        """
        for slot, busy in self.busy.items():
            if rank in self.ranks(slot):
                busy -= {other for other in busy if other == rank or self._is_empty(other)}
            if not busy and slot in self.draining and not self.draining[slot].triggered:
                self.draining[slot].succeed()

    def _is_empty(self, rank: int) -> bool:
        fleet = self.plane.fleet
        return not (fleet.replicas[rank].num_in_flight or fleet.loads[rank].num_waiting)

    def release(self, machine: Machine, reason: str) -> None:
        """Gives a machine back; its bill ends."""
        self.bill()
        machine.released_at_s, machine.reason = self.env.now, reason
        for slots in (self.starting, self.draining, self.busy, self.machine_in):
            slots.pop(machine.slot, None)
        self.free_slots.append(machine.slot)
        self.free_slots.sort()

    def let_one_go(self) -> None:
        """Cancels the youngest starting machine, else drains the ready one with the fewest requests, the youngest of equals."""
        if self.starting:
            youngest = max(self.starting, key=lambda slot: self.machine_in[slot].id)
            self.starting.pop(youngest).interrupt()
        elif self.ready:
            seen = self.plane.fleet.seen
            open_slots = [slot for slot, asked in self.ready.items() if not asked.triggered]
            num_inflight = {slot: sum(int(seen[rank].num_inflight) for rank in self.ranks(slot)) for slot in open_slots}
            idlest = min(open_slots, key=lambda slot: (num_inflight[slot], -self.machine_in[slot].id))
            self.ready[idlest].succeed()

    def bill(self) -> None:
        """Carries the integral of the GPUs held forward to now."""
        self.billed_gpu_s += len(self.machine_in) * self.spec.num_gpus * (self.env.now - self.billed_until_s)
        self.billed_until_s = self.env.now

    def take_bill(self) -> float:
        """Returns the GPU-seconds held since the last call."""
        self.bill()
        gpu_s = self.billed_gpu_s - self.reported_gpu_s
        self.reported_gpu_s = self.billed_gpu_s
        return gpu_s

    def end(self) -> None:
        """Releases every machine that is still held when the run ends."""
        for machine in list(self.machine_in.values()):
            self.release(machine, "end of run")

    def indices(self, machines: Iterable[int]) -> list[int]:
        """Returns where in `loads` the ranks of these machines are, each machine known by its first slot."""
        return [rank - self.spec.first_slot for slot in machines for rank in self.ranks(slot)]

    def view(self) -> PoolView:
        """Returns gauges and counters as they are now, without a past."""
        loads, fleet = self.loads, self.plane.fleet
        ready = self.indices(self.ready)
        replicas = np.recarray((len(ready),), GAUGES)
        for name in ("machine", "num_waiting", "num_running", "waiting_tokens", "running_tokens"):
            replicas[name] = loads[name][ready]
        replicas["kv_cache_usage"] = usage = 1 - loads["num_free_blocks"][ready] / loads["num_usable_blocks"][ready]
        num_unrouted, unrouted_tokens, _ = self.plane.unrouted(self.index)
        demand = fleet.demand.view(np.ndarray)[self.index].copy()
        return PoolView(
            now_s=self.env.now,
            num_ready=len(self.ready),
            num_starting=len(self.starting),
            num_draining=len(self.draining),
            num_waiting=int(replicas["num_waiting"].sum()) + num_unrouted,
            num_running=int(replicas["num_running"].sum()),
            waiting_tokens=int(replicas["waiting_tokens"].sum()) + unrouted_tokens,
            running_tokens=int(replicas["running_tokens"].sum()),
            num_arrived=int(demand["num_arrived"].sum()),
            kv_cache_usage=float(usage.mean()) if ready else 0.0,
            cold_start_s=self.spec.cold_start_s,
            replica_requests_per_s=self.spec.replica_requests_per_s,
            replica_tokens=self.spec.replica_tokens,
            replicas=read_only(replicas),
            class_names=self.spec.class_names,
            class_counts=read_only(demand),
        )

    def scrape(self, view: PoolView) -> None:
        """Takes a view as what the autoscaler is shown from now on."""
        fleet = self.plane.fleet
        self.scrapes.add(view, [*fleet.latency_counts[self.index], fleet.itl_counts[self.index]])

    def shown(self) -> PoolView:
        """Returns what the autoscaler is shown now: the last scrape, or with live gauges one that is made for it."""
        live = self.view()
        if self.spec.scrape_interval_s == 0 or not self.scrapes.kept:
            self.scrape(live)
        return self.scrapes.shown(live)

    def keep_scraping(self) -> Generator[Any, Any, None]:
        """Scrapes at every `scrape_interval_s`. A decision at the same instant still goes by the scrape before."""
        while True:
            yield self.env.timeout(self.spec.scrape_interval_s)
            yield self.env.timeout(0)
            self.scrape(self.view())

    def num_draining_requests(self) -> tuple[int, int]:
        """Returns the requests that wait and those that run on draining replicas: the autoscaler's view leaves them out."""
        draining = self.indices(self.draining)
        return int(self.loads["num_waiting"][draining].sum()), int(self.loads["num_running"][draining].sum())
