"""Builds a simulation from a config: the one place where concrete classes meet."""

from collections.abc import Callable
from typing import Any

from autoscalers import KnownRate, Limiter
from experiments import guards
from experiments.live_start import start_engines
from experiments.results.asked import Asked
from experiments.settings.experiment import Experiment, RequestKind
from experiments.settings.experiment import Pool as PoolConfig
from experiments.settings.gateway import Gateway
from replicas.capacity import Capacity, capacity
from replicas.live.plane import LivePlane
from replicas.plane import DataPlane
from replicas.record_limits import check_held_tokens
from sim.errors import ConfigError
from sim.metrics import NUM_ITL_BINS
from sim.pool import PoolSpec
from sim.randomness import stream
from sim.records import CLASS, ENGINE, records
from sim.simulation import Horizon, Simulation, Sink
from traces.traffic import TrafficStream

CHUNK_ROWS = 1 << 15
"""Arrivals let in at a time: their records and those in flight stay in the processor's cache."""


class Guarded:
    """The rate of what a pool can serve, with a count of who looked at it (invariant 10: none but a declared oracle may).

    Args:
        known_rate: the traffic's rate law.
        share: of the requests, those that the pool can serve; the others cost it nothing.
    """

    def __init__(self, known_rate: KnownRate, share: float) -> None:
        self.known_rate, self.share = known_rate, share
        self.num_looks = 0

    def __call__(self, start_s: float, end_s: float) -> float:
        """Returns the mean rate over [start_s, end_s], in requests/s."""
        self.num_looks += 1
        return self.known_rate(start_s, end_s) * self.share


def slots_of(pool: PoolConfig) -> int:
    """Returns how many engines a pool has at most: the data-parallel ranks of all its machines."""
    return pool.autoscaler.max_machines * pool.replicas.data_parallel_size


def classes_of(experiment: Experiment, gateway: Gateway) -> Any:
    """Returns (num_classes,) CLASS records, in the order of the traffic's class ids; adapters are numbered from 1."""
    names = experiment.traffic.class_names
    kinds = [experiment.classes.get(name, RequestKind()) for name in names]
    adapters = sorted({kind.lora for kind in kinds if kind.lora is not None})
    classes = records(CLASS, len(names))
    models = experiment.models
    for number, kind in enumerate(kinds):
        adapter = 0 if kind.lora is None else 1 + adapters.index(kind.lora)
        classes[number] = (
            kind.priority,
            adapter,
            0 if kind.model is None else 1 + models.index(kind.model),
            kind.max_tokens or 0,
            kind.grammar_s,
            kind.num_free_tokens,
            kind.num_forced_tokens,
            kind.timeout_s or 0.0,
            gateway.bucket(names[number]),
            *gateway.admitted,
            0,
        )
    return classes


class Wiring:
    """Everything that one run is made of, not yet run."""

    def __init__(
        self, experiment: Experiment, sink: Sink, progress: Callable[[float, int], None], asked: Asked | None = None
    ) -> None:
        self.experiment = experiment
        self.traffic: TrafficStream = guards.streamed(experiment.traffic, experiment.seed, CHUNK_ROWS)
        self.engines = records(ENGINE, len(experiment.pools))
        for index, pool in enumerate(experiment.pools):
            self.engines[index] = self.engine_of(pool)
            self.engines[index].model = 1 + experiment.models.index(pool.model.name)
        self.sources = start_engines(experiment, self.engines)  # of the live pools
        pairs = zip(self.engines, experiment.pools, strict=True)
        self.served = [experiment.served_by(engine, pool.model) for engine, pool in pairs]
        self.capacities = [self.capacity_of(index) for index in range(len(experiment.pools))]
        self.guards = [Guarded(experiment.traffic.mean_rate_per_s, found.share) for found in self.served]
        self.deciders: dict[str, guards.Decider] = {}  # by the pool's name; pools that are decided together share one
        self.limiters: dict[str, Limiter] = {}
        self.start_autoscalers()
        self.plane = self.data_plane()
        horizon = Horizon(
            traffic_ends_at_s=experiment.traffic.ends_at_s,
            ends_with_last_arrival=experiment.traffic.limit is not None,
            timeline_interval_s=experiment.timeline_interval_s,
            max_drain_s=experiment.max_drain_s,
        )
        pools = [self.pool_spec(index) for index in range(len(experiment.pools))]
        arrivals = self.traffic.chunks() if asked is None else asked.noting(self.traffic)
        if asked is not None:
            asked.keeps_sample = not all(found.is_as_asked for found in self.served)
        self.simulation = Simulation(self.plane, pools, arrivals, horizon, sink, progress, self.num_looks)
        if isinstance(self.plane, LivePlane):
            self.plane.attach(self.simulation.env)

    def num_looks(self) -> int:
        """Returns how often autoscalers that are no oracles have asked for the future."""
        pairs = zip(self.guards, self.experiment.pools, strict=True)
        return sum(guard.num_looks for guard, pool in pairs if not self.experiment.decides_for(pool).is_oracle)

    def start_autoscalers(self) -> None:
        """Starts every autoscaler for the pools that it decides for."""
        known_rates = {pool.name: guard for pool, guard in zip(self.experiment.pools, self.guards, strict=True)}
        for pools in self.experiment.decided_together:
            limits = {pool.name: pool.autoscaler for pool in pools}
            rates = {name: known_rates[name] for name in limits}
            autoscaler = self.experiment.decides_for(pools[0])
            decider, limiters = guards.started(autoscaler, limits, rates, self.experiment.seed)
            self.deciders |= dict.fromkeys(limits, decider)
            self.limiters |= limiters

    def engine_of(self, pool: PoolConfig) -> Any:
        """Returns a pool's ENGINE record, with what it does only if the traffic gives cause."""
        engine = pool.replicas.engine(pool.model, pool.gpu)[0]
        if pool.replicas.enable_prefix_caching is None and pool.replicas.batching == "continuous":
            engine.enable_prefix_caching |= self.experiment.traffic.shares_tokens  # lpm has it on already
            try:
                check_held_tokens(engine)
            except ValueError as error:
                raise ConfigError(f"pools.{pool.name}.replicas: {error}") from error
        if all(kind.lora is None for kind in self.experiment.classes.values()):
            engine.max_loras = 0
        return engine

    def data_plane(self) -> DataPlane:
        """Returns the empty replicas behind their router."""
        experiment = self.experiment
        num_slots = [slots_of(pool) for pool in experiment.pools]
        parts = (
            self.engines,
            num_slots,
            NUM_ITL_BINS,
            experiment.router.scrape_interval_s,
            experiment.router.start(sum(num_slots), experiment.seed),
            classes_of(experiment, experiment.gateway),
            self.traffic.segments_of,
            experiment.traffic.max_concurrency,
            experiment.traffic.max_follows,
        )
        return LivePlane(*parts, sources=self.sources) if self.sources else DataPlane(*parts)

    def capacity_of(self, index: int) -> Capacity | None:
        """Returns what a replica of this pool sustains within the TPOT target, at the mean lengths of what it serves.

        None where it can serve none of the traffic.
        """
        found, traffic, targets = self.served[index], self.experiment.traffic, self.experiment.slo.tpot_s
        if found.share == 0:
            return None
        lengths = (found.mean_prompt_tokens, found.mean_output_tokens)
        if found.is_as_asked:  # the whole knows its means better than a sample does
            lengths = (traffic.mean_prompt_tokens, traffic.mean_output_tokens)
        return capacity(self.engines[index], *lengths, min(targets.values()) if targets else None)

    def pool_spec(self, index: int) -> PoolSpec:
        """Returns what the control plane knows of a pool."""
        pool: PoolConfig = self.experiment.pools[index]
        before = self.experiment.pools[:index]
        engine, num_ranks = self.engines[index], pool.replicas.data_parallel_size
        each = self.capacities[index]
        num_bytes = float(engine["dense_weight_bytes"] + engine["expert_weight_bytes"])
        rng = stream(self.experiment.seed, f"lifecycle.{pool.name}")
        source = self.sources.get(index)
        lifecycle, autoscaler = pool.lifecycle, self.experiment.decides_for(pool)
        if source is not None and source.is_measured:
            lifecycle = lifecycle.model_copy(update=source.lifecycle(num_bytes))

        def stages() -> list[tuple[str, float]]:
            given = lifecycle.stages(num_bytes, rng)
            return given if source is None else source.stages(given)

        return PoolSpec(
            name=pool.name,
            first_slot=sum(slots_of(other) for other in before),
            max_replicas=pool.autoscaler.max_machines,
            num_gpus=pool.replicas.gpus_per_engine * num_ranks,
            num_ranks=num_ranks,
            price_per_gpu_hour=pool.price_per_gpu_hour,
            interval_s=autoscaler.interval_s,
            stages=stages,
            cold_start_s=lifecycle.cold_start_s(num_bytes),
            warm_start=pool.lifecycle.warm_start,
            drain_timeout_s=pool.lifecycle.drain_timeout_s,
            requeue_on_timeout=pool.lifecycle.on_drain_timeout == "requeue",
            time_to_failure_s=pool.lifecycle.time_to_failure_s(stream(self.experiment.seed, f"failures.{pool.name}")),
            requeue_on_failure=pool.lifecycle.on_failure == "requeue",
            replica_requests_per_s=pool.replica_requests_per_s or (None if each is None else each.requests_per_s * num_ranks),
            replica_tokens=None if each is None else each.inflight_tokens * num_ranks,
            autoscaler=self.deciders[pool.name],
            scrape_interval_s=autoscaler.scrape_interval_s,
            past_s=autoscaler.past_s,
            class_names=tuple(self.experiment.traffic.class_names),
        )
