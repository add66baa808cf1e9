"""What an autoscaler is shown: the past and the present of one pool, never the future."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "itl_s")
"""What `PoolView.latency_s` knows, as sim/metrics.py defines it."""

GAUGES = np.dtype(
    [
        ("machine", "i8"),  # its id in replicas.parquet; data-parallel ranks of one machine are replicas of their own
        ("num_waiting", "i8"),
        ("num_running", "i8"),
        ("waiting_tokens", "i8"),
        ("running_tokens", "i8"),
        ("kv_cache_usage", "f8"),
    ],
    align=True,
)
"""What one ready replica exposes; each field as `PoolView` has it for the pool."""

ROUNDING_S = 1e-9
"""Instants are sums of floats: what is that close to a window's edge lies on it."""


def read_only(array: Any) -> Any:
    """Returns the array, which nobody can write to from here on."""
    array.flags.writeable = False
    return array


NO_REPLICAS = read_only(np.recarray((0,), GAUGES))


class ClassCounts(NamedTuple):
    """Requests of one class since the start of the run, counted as `PoolView.num_arrived` is."""

    num_arrived: int
    num_prompt_tokens: int  # of those that arrived
    num_finished: int
    num_output_tokens: int  # of those that finished: nobody knows how long the other answers will be


class History(NamedTuple):
    """What was read off a pool before, oldest first, for as long as its policy looks back."""

    past_s: float = 0.0
    views: "Sequence[PoolView]" = ()  # the last one is what is shown now


@dataclass(frozen=True)
class PoolView:
    """One pool at one instant. A replica is counted in exactly one of ready, starting and draining.

    Requests and tokens are those that the pool's ready replicas hold, and those that no replica has taken yet. What a draining
    replica holds is not among them: it finishes that itself, and no other replica takes it over unless it comes back.

    With a `scrape_interval_s`, gauges and counters are those of the last scrape, `age_s` ago. How many machines are ready,
    starting and draining is known without a scrape, and never old. Nothing in a view can be written to.
    """

    now_s: float
    num_ready: int
    num_starting: int
    num_draining: int
    num_waiting: int  # requests: in engines' queues, and those no replica has taken yet
    num_running: int
    waiting_tokens: int  # prompt tokens of the waiting
    running_tokens: int  # tokens whose KV is held
    num_arrived: int  # requests since the start that more replicas could have served, those turned away by full queues included
    kv_cache_usage: float  # 0 to 1, mean over ready replicas; 0 with none
    cold_start_s: float  # expected time from request to ready
    replica_requests_per_s: float | None  # what one replica sustains within the targets; None if it can serve no request at all
    replica_tokens: float | None  # waiting + running tokens of a replica at that load; None as well
    scraped_at_s: float = math.nan  # when gauges and counters were read; not given = now
    replicas: Any = field(default_factory=lambda: NO_REPLICAS, compare=False, repr=False)  # (num_replicas,) GAUGES
    class_names: Sequence[str] = ()
    class_counts: Any = field(default=None, compare=False, repr=False)  # (num_classes,) DEMAND
    latencies: Any = field(default=None, compare=False, repr=False)  # by LATENCIES: bins, counts
    history: History = field(default=History(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if math.isnan(self.scraped_at_s):
            object.__setattr__(self, "scraped_at_s", self.now_s)

    @property
    def age_s(self) -> float:
        """How old the gauges and counters are."""
        return self.now_s - self.scraped_at_s

    @property
    def by_class(self) -> dict[str, ClassCounts]:
        """Arrivals and tokens of each class. A rate is how much they differ from a view of the `past`, per second between."""
        counts = [] if self.class_counts is None else self.class_counts.tolist()
        return {name: ClassCounts(*row) for name, row in zip(self.class_names, counts, strict=False)}

    def past(self, window_s: float) -> "Sequence[PoolView]":
        """Returns what was read no earlier than `window_s` before what is shown now, oldest first; the last is
        the scrape shown now.

        Raises:
            ValueError: the window is longer than the `past_s` that the autoscaler declares.
        """
        return self._since(window_s, self.scraped_at_s - window_s - ROUNDING_S)

    def latency_s(self, metric: str, percent: float, window_s: float) -> float:
        """Returns a percentile of what was measured within `window_s` before the scrape shown now; NaN where nothing was.

        A request counts for `ttft_s` when it gets its first token, for `tpot_s` and `e2e_s` when it finishes, and each gap
        between tokens for `itl_s` at its end. Those that still wait do not count: under overload all four look better than
        they will be. Values are known to 0.5 %.

        Args:
            metric: one of LATENCIES.
            percent: 0 to 100.
            window_s: how far to look back; from the start of the run at most.

        Raises:
            ValueError: there is no such metric, or the window is longer than the `past_s` that the autoscaler declares.
        """
        from sim.metrics import NUM_ITL_BINS, NUM_LATENCY_BINS, latency_percentile  # compiled: not for those who read a config

        if metric not in LATENCIES:
            raise ValueError(f"no latency named {metric!r}; known: {', '.join(LATENCIES)}")
        total = np.zeros(NUM_ITL_BINS if metric == "itl_s" else NUM_LATENCY_BINS, np.int64)
        for view in self._since(window_s, self.scraped_at_s - window_s + ROUNDING_S):
            if view.latencies is not None:
                bins, counts = view.latencies[LATENCIES.index(metric)]
                total[bins] += counts
        return latency_percentile(total, percent)

    def _since(self, window_s: float, start_s: float) -> "Sequence[PoolView]":
        if window_s > self.history.past_s:
            raise ValueError(
                f"a look back over {window_s:g} s, but the autoscaler's past_s, which says how much is kept, is "
                f"{self.history.past_s:g}"
            )
        return tuple(view for view in self.history.views if view.scraped_at_s >= start_s) or (self,)
