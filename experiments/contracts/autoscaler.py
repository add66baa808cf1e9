"""What every autoscaler must do."""

import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from autoscalers import Autoscaler, Deciding, Decision, Joint, JointAutoscaler, KnownRate, Limits
from experiments.contracts.checks import undescribed, unless
from sim.metrics import NUM_ITL_BINS, NUM_LATENCY_BINS, itl_bin, latency_bin
from sim.records import DEMAND
from sim.scaling import Alone
from sim.scrapes import Scrapes
from sim.views import GAUGES, LATENCIES, PoolView, read_only

Shown = dict[str, PoolView]


class AutoscalerContract:
    """Subclass it and set `scaler`: an autoscaler with its parameters, of one pool or several."""

    scaler: Deciding
    pools: tuple[str, ...] = ("prefill", "decode")  # those that a joint autoscaler decides for; the first has it as its own

    def test_decisions_are_whole_numbers_within_bounds_with_a_reason(self) -> None:
        """Whatever the gauges show, idle or overloaded, with replicas or without."""
        self._check(self._decisions())

    def test_decides_by_gauges_of_any_age(self) -> None:
        """Scrapes two and a half ticks apart: some ticks show what the one before did, only older."""
        self._check(self._decisions(scrape_interval_s=37.5))

    def test_what_is_shown_stays_as_it_was(self) -> None:
        """A view is the same for all who look at it, and what a policy notes in it would be lost."""
        decide = self._start()
        for shown in self._shown(50):
            before = pickle.dumps(_contents(shown))
            decide(shown)
            assert pickle.dumps(_contents(shown)) == before, "it has changed what it was shown"

    def test_same_seed_same_decisions(self) -> None:
        """Each run has a memory of its own, and all chance comes from its seed."""
        assert self._decisions() == self._decisions(), "two runs of one seed decided differently"

    def test_two_runs_do_not_share_memory(self) -> None:
        """Two deciders of one autoscaler, asked in turns, decide as one alone does."""
        first, second = self._start(), self._start()
        interleaved = [(first(shown), second(shown)) for shown in self._shown()]
        alone = self._decisions()
        assert [a for a, _ in interleaved] == alone, "the first decided differently beside another"
        assert [b for _, b in interleaved] == alone, "the second decided differently beside another"

    def test_every_pool_has_limits_of_its_own(self) -> None:
        """What a joint autoscaler wants of one pool does not count for another."""
        unless(not isinstance(self.scaler, JointAutoscaler), "it decides for one pool")
        held = Joint(with_pool=self.pools[0], min_replicas=3, max_replicas=3)
        decide = self._start(limits=dict.fromkeys(self.pools, held))
        found = {decision.desired for shown in self._shown() for decision in decide(shown).values()}
        assert found == {3}, f"pools held to 3 replicas got {sorted(found)}"

    def test_only_an_oracle_looks_at_the_future(self) -> None:
        """And one that says it is an oracle does."""
        asked: list[float] = []

        def spied_rate(start_s: float, end_s: float) -> float:
            asked.append(end_s)
            return known_rate(start_s, end_s)

        decide = self._start(spied_rate)
        for shown in self._shown(20):
            decide(shown)
        assert bool(asked) == self.scaler.is_oracle, f"is_oracle is {self.scaler.is_oracle}, and it asked {len(asked)} times"

    def test_an_idle_pool_without_replicas_gets_an_answer(self) -> None:
        """From the first tick on, before any request."""
        decide, scrapes = self._start(lambda start_s, end_s: 0.0), Scrapes(self.scaler.past_s)
        for i in range(3):
            view = PoolView(15.0 * i, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 120.0, 5.0, 4000.0)
            scrapes.add(view, no_latencies())
            shown = scrapes.shown(view)
            assert all(decision.desired >= 0 for decision in decide(dict.fromkeys(self._limits(), shown)).values())

    def test_memory_stays_bounded(self) -> None:
        """Four times the ticks keep no more entries in lists, tables and mappings than a tick or ten."""
        controller = self._controller()
        sizes = []
        for i, shown in enumerate(self._shown(2400)):
            controller.decide(shown)
            if i in (600, 2399):
                sizes.append(entries(controller))
        assert sizes[1] <= sizes[0] + 10, f"{sizes[0]} entries after 600 ticks, {sizes[1]} after 2,400"

    def test_parameters_survive_pickling_and_their_own_dump(self) -> None:
        """So that worker processes and resolved configs have the same autoscaler."""
        assert pickle.loads(pickle.dumps(self.scaler)) == self.scaler
        assert type(self.scaler)(**self.scaler.model_dump()) == self.scaler

    def test_every_field_is_described(self) -> None:
        """The reference page is made of the descriptions."""
        silent = list(undescribed(self.scaler))
        assert not silent, f"no description of {', '.join(silent)}"

    def _limits(self) -> dict[str, Limits]:
        if not isinstance(self.scaler, JointAutoscaler):
            return {"main": self.scaler}
        others = {name: Joint(with_pool=self.pools[0]) for name in self.pools[1:]}
        return {self.pools[0]: self.scaler, **others}

    def _controller(self, rate: KnownRate | None = None, limits: Mapping[str, Limits] | None = None) -> Any:
        rate, limits = rate or known_rate, limits or self._limits()
        if isinstance(self.scaler, JointAutoscaler):
            return self.scaler.start(limits, dict.fromkeys(limits, rate), 1)
        assert isinstance(self.scaler, Autoscaler)
        return Alone(self.scaler.start(rate, 1))

    def _start(self, *given: Any, **limits: Any) -> Callable[[Shown], dict[str, Decision]]:
        decide: Callable[[Shown], dict[str, Decision]] = self._controller(*given, **limits).decide
        return decide

    def _shown(self, num_ticks: int = 200, scrape_interval_s: float = 0.0) -> Iterator[Shown]:
        pools = self._limits()
        each = [views(num_ticks, seed, self.scaler.past_s, scrape_interval_s) for seed, _ in enumerate(pools, start=1)]
        for shown in zip(*each, strict=True):
            yield dict(zip(pools, shown, strict=True))

    def _decisions(self, scrape_interval_s: float = 0.0) -> list[dict[str, Decision]]:
        decide = self._start()
        return [decide(shown) for shown in self._shown(scrape_interval_s=scrape_interval_s)]

    def _check(self, decisions: list[dict[str, Decision]]) -> None:
        limits = self._limits()
        for name, decision in ((name, one[name]) for one in decisions for name in limits):
            assert type(decision.desired) is int, f"desired {decision.desired!r}"
            assert type(decision.wanted) is int, f"wanted {decision.wanted!r}"
            assert decision.wanted >= 0, f"wanted {decision.wanted}"
            assert decision.desired == limits[name].bounded(decision.desired), f"{decision.desired} lies outside the bounds"
            assert decision.reason, "no reason"


def _contents(shown: Shown) -> Any:
    """What is in the views, arrays as bytes: two that are equal are pickled alike."""
    return {
        name: [getattr(view, one.name) for one in fields(view) if one.name not in ("history", "replicas")]
        + [view.replicas.tobytes(), [past.replicas.tobytes() for past in view.history.views]]
        for name, view in shown.items()
    }


def known_rate(start_s: float, end_s: float) -> float:
    """The traffic's rate, requests/s."""
    return 20.0 + 15.0 * math.sin((start_s + end_s) / 600.0)


def no_latencies() -> list[Any]:
    """Counts of each of LATENCIES before the first request."""
    return [np.zeros(NUM_ITL_BINS if name == "itl_s" else NUM_LATENCY_BINS, np.int64) for name in LATENCIES]


def views(num_ticks: int = 200, seed: int = 1, past_s: float = 0.0, scrape_interval_s: float = 0.0) -> Iterator[PoolView]:
    """A pool's history with every gauge somewhere between idle and overloaded, and times without replicas.

    Args:
        num_ticks: how many views, 15 s apart.
        seed: of what they show.
        past_s: how far back each shows.
        scrape_interval_s: age that they reach; 0 = all are live.
    """
    random, scrapes = np.random.default_rng(seed), Scrapes(past_s)
    demand, latency_counts = np.zeros(2, DEMAND), no_latencies()
    next_scrape_at_s = 0.0
    for i in range(num_ticks):
        new = random.poisson(150, size=2)
        demand["num_arrived"] += new
        demand["num_prompt_tokens"] += 400 * new
        demand["num_finished"] += new // 2
        demand["num_output_tokens"] += 100 * (new // 2)
        for counts in latency_counts:
            seconds = float(random.exponential(0.5))
            counts[itl_bin(seconds) if counts.size == NUM_ITL_BINS else latency_bin(seconds)] += 100
        view = _view(15.0 * i, random, demand)
        if scrape_interval_s == 0 or view.now_s >= next_scrape_at_s:
            scrapes.add(view, latency_counts)
            next_scrape_at_s += scrape_interval_s
        yield scrapes.shown(view)


def _view(now_s: float, random: np.random.Generator, demand: Any) -> PoolView:
    replicas = np.recarray((int(random.integers(0, 20)),), GAUGES)
    replicas["machine"] = np.arange(replicas.size)
    for name, most in (("num_waiting", 5), ("num_running", 100), ("waiting_tokens", 2500), ("running_tokens", 50_000)):
        replicas[name] = random.integers(0, most, size=replicas.size)
    replicas["kv_cache_usage"] = random.random(replicas.size)
    unrouted = int(random.integers(0, 50))
    return PoolView(
        now_s=now_s,
        num_ready=replicas.size,
        num_starting=int(random.integers(0, 5)),
        num_draining=int(random.integers(0, 5)),
        num_waiting=int(replicas["num_waiting"].sum()) + unrouted,
        num_running=int(replicas["num_running"].sum()),
        waiting_tokens=int(replicas["waiting_tokens"].sum()) + 500 * unrouted,
        running_tokens=int(replicas["running_tokens"].sum()),
        num_arrived=int(demand["num_arrived"].sum()),
        kv_cache_usage=float(replicas["kv_cache_usage"].mean()) if replicas.size else 0.0,
        cold_start_s=120.0,
        replica_requests_per_s=5.0,
        replica_tokens=4000.0,
        replicas=read_only(replicas),
        class_names=("chat", "doc"),
        class_counts=read_only(demand.copy()),
    )


def entries(thing: Any, depth: int = 7) -> int:
    """Entries in all containers that hang on `thing`."""
    if isinstance(thing, str | int | float | None) or depth == 0:
        return 0
    if isinstance(thing, dict):
        return len(thing) + sum(entries(value, depth - 1) for value in thing.values())
    if hasattr(thing, "__len__"):
        return len(thing)
    owner = getattr(thing, "__self__", None)
    if owner is not None:
        return entries(vars(owner), depth - 1)
    captured = [cell.cell_contents for cell in getattr(thing, "__closure__", None) or ()]
    return entries(getattr(thing, "__dict__", {}), depth - 1) + sum(entries(one, depth - 1) for one in captured)
