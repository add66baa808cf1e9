"""Small fleets to try a policy on: an engine whose steps last what you say, arrivals that you list, and what came of them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import routers
from replicas.live.plane import EngineSource, LivePlane
from replicas.live.process import Watch
from replicas.plane import DataPlane
from sim.metrics import NUM_ITL_BINS
from sim.pool import PoolSpec
from sim.records import ARRIVAL, CLASS, ENGINE, REQUEST, SEGMENT, records
from sim.scaling import Alone
from sim.simulation import Horizon, Simulation

ASKED = ["priority", "adapter", "max_tokens", "grammar_s", "num_free_tokens", "num_forced_tokens"]
"""What requests of a class ask of the engine: fields of CLASS."""


def engine(**fields: Any) -> Any:
    """(1,) ENGINE: every step lasts `overhead_s` (0.01) whatever it does, unless other coefficients are given."""
    made = records(ENGINE, 1)
    defaults: dict[str, Any] = {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "block_size": 16,
        "num_usable_blocks": 100_000,
        "max_model_len": 1_000_000,
        "data_parallel_size": 1,
        "num_together": 1,
        "num_stages": 1,
        "prefill_schedule_interval": 1,
        "enable_chunked_prefill": 1,
        "scheduler_reserve_full_isl": 1,
        "flops_per_s": np.inf,
        "bytes_per_s": np.inf,
        "overhead_s": 0.01,
    }
    for name, value in (defaults | fields).items():
        made[name] = value
    return made


def arrivals(rows: Sequence[tuple[float, int, int] | tuple[float, int, int, int]]) -> Any:
    """(n,) ARRIVAL from (arrived_at_s, num_prompt_tokens, num_output_tokens), and perhaps class_id."""
    made = np.zeros(len(rows), ARRIVAL)
    names = ("arrived_at_s", "num_prompt_tokens", "num_output_tokens", "class_id")
    for name, values in zip(names, zip(*rows, strict=True), strict=False):
        made[name] = values
    return made


def classes(*rows: tuple[Any, ...]) -> Any:
    """(n,) CLASS from (priority, adapter, max_tokens, grammar_s), perhaps (num_free_tokens, num_forced_tokens, timeout_s)."""
    made = records(CLASS, len(rows))
    for number, row in enumerate(rows):
        made[[*ASKED, "timeout_s"]][number] = (*row, *(1, 0, 0.0)[len(row) - 4 :])
    return made


class Constant:
    """An autoscaler that always wants the same."""

    def __init__(self, desired: int) -> None:
        self.desired = desired

    def decide(self, view: Any) -> "Constant":
        """Returns itself, as the decision."""
        return self


class Script:
    """An autoscaler that reads its decisions from a list, and keeps to the last."""

    def __init__(self, decisions: list[int]) -> None:
        self.decisions = decisions
        self.num_decided = 0

    def decide(self, view: Any) -> Any:
        """Returns itself, as the next decision."""
        self.desired = self.decisions[min(self.num_decided, len(self.decisions) - 1)]
        self.num_decided += 1
        return self


class Kept:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.intervals: list[dict[str, Any]] = []

    def add_machine(self, machine: int, pool: int) -> None:
        """Forgets it: requests name their machine."""

    def write_requests(self, first_id: int, rows: Any) -> None:
        """Keeps (n,) REQUEST."""
        assert first_id == sum(map(len, self.rows))
        self.rows.append(rows.copy())

    def write_interval(self, rows: list[dict[str, Any]]) -> None:
        """Keeps an interval's row of each pool."""
        self.intervals += rows


class Contents:
    """What traffic knows of its requests' tokens: for each one its segments, as (content, num_tokens)."""

    def __init__(self, arriving: Any, segments: Sequence[Sequence[tuple[int, int]]]) -> None:
        counts = [len(own) for own in segments] or [0] * len(arriving)
        self.arriving = arriving.copy()
        self.arriving["num_segments"] = counts
        self.arriving["first_segment"] = np.cumsum(counts, dtype=np.int64) - self.arriving["num_segments"]
        self.segments = np.array([one for own in segments for one in own], SEGMENT)

    def segments_of(self, rows: Any) -> Any:
        """(m,) SEGMENT of arrivals that follow one another."""
        return self.segments[rows["first_segment"][0] : rows["first_segment"][-1] + rows["num_segments"][-1]]


class Ran(NamedTuple):
    """A run that has ended."""

    requests: Any  # (n,) REQUEST by id
    simulation: Simulation
    plane: DataPlane
    intervals: list[dict[str, Any]]
    ended_at_s: float


def run(
    arriving: Any,
    engines: Any = None,
    *,
    replicas: int = 1,
    router: Any = "least_loaded",
    options: Any = None,
    seed: int = 1,
    scrape_interval_s: float = 0.0,
    autoscaler: Any = None,
    autoscaler_scrape_interval_s: float = 0.0,
    past_s: float = 0.0,
    max_replicas: int | None = None,
    num_ranks: int = 1,
    num_gpus: int = 1,
    interval_s: float = 15.0,
    stages: Callable[[], list[tuple[str, float]]] = lambda: [("ready_at_s", 60.0)],
    cold_start_s: float = 60.0,
    warm_start: bool = True,
    drain_timeout_s: float = 600.0,
    requeue_on_timeout: bool = True,
    time_to_failure_s: Callable[[], float] | None = None,
    requeue_on_failure: bool = True,
    replica_requests_per_s: float = 1.0,
    replica_tokens: float = 1000.0,
    ends_at_s: float | None = None,
    max_drain_s: float = 1e6,
    timeline_interval_s: float = 60.0,
    chunk: int = 1000,
    classes: Any = None,
    segments: Sequence[Sequence[tuple[int, int]]] = (),
    max_concurrency: int | None = None,
    source: EngineSource | None = None,
    watches: Sequence[Watch] = (),
) -> Ran:
    """Runs one pool to the end and checks all invariants.

    Args:
        arriving: (n,) ARRIVAL.
        engines: (1,) ENGINE.
        autoscaler: has `decide(view)`, which answers what has `desired`; None = keeps the `replicas`.
        autoscaler_scrape_interval_s: age that the autoscaler's view reaches; 0 = live.
        past_s: how far back the autoscaler is shown.
        classes: (num_classes,) CLASS; None = one that asks for nothing special. Autoscalers see them as c0, c1 ...
        segments: each request's content, as (content, num_tokens); () = no request shares a token with another.
        max_concurrency: requests that the client has in flight at most.
        source: of live engines; None = the replicas are simulated.
        watches: are shown each step of the live replicas.
    """
    contents = Contents(arriving, segments)
    arriving = contents.arriving
    engines = engine() if engines is None else engines
    max_replicas = replicas if max_replicas is None else max_replicas
    kind = routers.KINDS[router] if isinstance(router, str) else router
    kind = kind if isinstance(kind, routers.RouterKind) else routers.RouterKind(kind)
    routing = routers.start(kind, max_replicas * num_ranks, seed, options)
    loads = (engines, [max_replicas * num_ranks], NUM_ITL_BINS, scrape_interval_s)
    max_follows = int(arriving["follows"].max(initial=0))
    parts = (*loads, routing, classes, contents.segments_of, max_concurrency, max_follows)
    plane = DataPlane(*parts) if source is None else LivePlane(*parts, sources={0: source})
    spec = PoolSpec(
        name="main",
        first_slot=0,
        max_replicas=max_replicas,
        num_gpus=num_gpus,
        num_ranks=num_ranks,
        price_per_gpu_hour=1.0,
        interval_s=interval_s,
        stages=stages,
        cold_start_s=cold_start_s,
        warm_start=warm_start,
        drain_timeout_s=drain_timeout_s,
        requeue_on_timeout=requeue_on_timeout,
        time_to_failure_s=time_to_failure_s,
        requeue_on_failure=requeue_on_failure,
        replica_requests_per_s=replica_requests_per_s,
        replica_tokens=replica_tokens,
        autoscaler=Alone(autoscaler or Constant(replicas)),
        scrape_interval_s=autoscaler_scrape_interval_s,
        past_s=past_s,
        class_names=tuple(f"c{number}" for number in range(1 if classes is None else len(classes))),
    )
    kept = Kept()
    last_s = float(arriving["arrived_at_s"][-1]) if len(arriving) else 0.0
    horizon = Horizon(last_s if ends_at_s is None else ends_at_s, False, timeline_interval_s, max_drain_s)
    chunks = (arriving[i : i + chunk] for i in range(0, len(arriving), chunk))
    simulation = Simulation(plane, [spec], chunks, horizon, kept)
    if isinstance(plane, LivePlane):
        plane.attach(simulation.env)
        plane.watches += watches
    ended_at_s = simulation.run()
    rows = np.concatenate(kept.rows) if kept.rows else np.zeros(0, REQUEST)
    return Ran(rows.view(np.recarray), simulation, plane, kept.intervals, ended_at_s)
