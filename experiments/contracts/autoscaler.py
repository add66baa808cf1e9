"""What every autoscaler must do."""

import math
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np

from autoscalers import Autoscaler, Decision
from experiments.contracts.checks import undescribed
from sim.views import PoolView


class AutoscalerContract:
    """Subclass it and set `scaler`: an autoscaler with its parameters."""

    scaler: Autoscaler

    def test_decisions_are_whole_numbers_within_bounds_with_a_reason(self) -> None:
        """Whatever the gauges show, idle or overloaded, with replicas or without."""
        for decision in self._decisions():
            assert type(decision.desired) is int, f"desired {decision.desired!r}"
            assert type(decision.wanted) is int, f"wanted {decision.wanted!r}"
            assert decision.wanted >= 0, f"wanted {decision.wanted}"
            assert decision.desired == self.scaler.bounded(decision.desired), f"{decision.desired} lies outside the bounds"
            assert decision.reason, "no reason"

    def test_same_seed_same_decisions(self) -> None:
        """Each run has a memory of its own, and all chance comes from its seed."""
        assert self._decisions() == self._decisions(), "two runs of one seed decided differently"

    def test_two_pools_do_not_share_memory(self) -> None:
        """Two deciders of one autoscaler, asked in turns, decide as one alone does."""
        first, second = self.scaler.start(known_rate, 1), self.scaler.start(known_rate, 1)
        interleaved = [(first.decide(view), second.decide(view)) for view in views()]
        alone = self._decisions()
        assert [a for a, _ in interleaved] == alone, "the first decided differently beside another"
        assert [b for _, b in interleaved] == alone, "the second decided differently beside another"

    def test_only_an_oracle_looks_at_the_future(self) -> None:
        """And one that says it is an oracle does."""
        asked: list[float] = []

        def spied_rate(start_s: float, end_s: float) -> float:
            asked.append(end_s)
            return known_rate(start_s, end_s)

        controller = self.scaler.start(spied_rate, 1)
        for view in views(20):
            controller.decide(view)
        assert bool(asked) == self.scaler.is_oracle, f"is_oracle is {self.scaler.is_oracle}, and it asked {len(asked)} times"

    def test_an_idle_pool_without_replicas_gets_an_answer(self) -> None:
        """From the first tick on, before any request."""
        controller = self.scaler.start(lambda start_s, end_s: 0.0, 1)
        for i in range(3):
            view = PoolView(15.0 * i, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 120.0, 5.0, 4000.0)
            assert controller.decide(view).desired >= 0

    def test_memory_stays_bounded(self) -> None:
        """Four times the ticks keep no more entries in lists, tables and mappings than a tick or ten."""
        controller = self.scaler.start(known_rate, 1)
        sizes = []
        for i, view in enumerate(views(2400)):
            controller.decide(view)
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

    def _decisions(self) -> list[Decision]:
        controller = self.scaler.start(known_rate, 1)
        return [controller.decide(view) for view in views()]


def known_rate(start_s: float, end_s: float) -> float:
    """The traffic's rate, requests/s."""
    return 20.0 + 15.0 * math.sin((start_s + end_s) / 600.0)


def views(num_ticks: int = 200, seed: int = 1) -> Iterator[PoolView]:
    """A pool's history with every gauge somewhere between idle and overloaded, and times without replicas."""
    random, num_arrived = np.random.default_rng(seed), 0
    for i in range(num_ticks):
        num_arrived += int(random.poisson(300))
        tokens = random.integers(0, 50_000, size=2)
        yield PoolView(
            now_s=15.0 * i,
            num_ready=int(random.integers(0, 20)),
            num_starting=int(random.integers(0, 5)),
            num_draining=int(random.integers(0, 5)),
            num_waiting=int(tokens[0]) // 500,
            num_running=int(tokens[1]) // 500,
            waiting_tokens=int(tokens[0]),
            running_tokens=int(tokens[1]),
            num_arrived=num_arrived,
            kv_cache_usage=float(random.random()),
            cold_start_s=120.0,
            replica_requests_per_s=5.0,
            replica_tokens=4000.0,
        )


def entries(thing: Any, depth: int = 5) -> int:
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
