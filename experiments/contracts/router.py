"""What every router must do."""

import inspect
from typing import Any

import numpy as np

import routers
from experiments.contracts.checks import unless
from experiments.contracts.fleets import Ran, Script, arrivals, engine, run
from routers import Choose, RouterKind
from sim.params import Params
from sim.records import FINISHED, LOAD, records
from sim.routing import Routing

NUM_REPLICAS = 4
LIVE_OR_STALE_S = (0.0, 1000.0)
"""Seconds between scrapes: loads as they are, and loads that are never seen again after the start."""


class RouterContract:
    """Subclass it and set `router`, and `options` where it takes any. What it declares decides what is asked of it."""

    router: RouterKind | Choose
    options: Params | None = None

    @property
    def kind(self) -> RouterKind:
        """The router with what it declares."""
        router = inspect.getattr_static(self, "router")  # a plain function would be bound as a method
        return router if isinstance(router, RouterKind) else RouterKind(router)

    def test_chooses_a_candidate_whatever_the_loads(self) -> None:
        """Any subset of the replicas, in any order; and whichever prefix a request has, where it is shown that."""
        random, router = np.random.default_rng(1), self._start()
        router.make_room(num_keys := 8 if router.key_block_size else 0)
        for _ in range(300):
            candidates = random.permutation(NUM_REPLICAS)[: random.integers(1, NUM_REPLICAS + 1)]
            router.view.keys[:num_keys] = 1 + random.integers(0, 3) + np.arange(num_keys)
            chosen = self._ask(busy(random), candidates, router, num_keys)
            assert chosen in candidates, f"chose {chosen} of {candidates.tolist()}"

    def test_works_with_one_replica(self) -> None:
        """Where there is no choice it is that one, and the requests are served."""
        assert [self._ask(idle(), [2], self._start()) for _ in range(10)] == [2] * 10
        assert (self._through([(0.1 * i, 50, 5) for i in range(20)]).requests.status == FINISHED).all()

    def test_same_seed_same_choices(self) -> None:
        """Whatever it draws comes from the state that it is given; one that draws at every request differs by another seed."""

        def choices(seed: int) -> list[int]:
            random, router = np.random.default_rng(2), self._start(seed)
            return [self._ask(busy(random), range(NUM_REPLICAS), router) for _ in range(200)]

        assert choices(seed=7) == choices(seed=7), "the same seed gave other choices"
        if self.kind.draws_always:
            assert choices(seed=7) != choices(seed=8), "another seed gave the same choices"

    def test_changes_nothing_but_its_own_memory(self) -> None:
        """Loads, candidates, the request, times and options are only looked at."""
        random, router = np.random.default_rng(3), self._start()
        router.view.loads[:] = busy(random)
        view = router.shown(range(NUM_REPLICAS))
        seen = ("loads", "candidates", "request", "times", "clients", "options")
        before = {name: getattr(view, name).tobytes() for name in seen}
        for _ in range(100):
            router.choose(view)
        changed = [name for name in seen if getattr(view, name).tobytes() != before[name]]
        assert not changed, f"changed {', '.join(changed)}"

    def test_counters_grow_by_one_a_request_at_most(self) -> None:
        """So they are far from overflow in the longest run. A router has no memory but the arrays that it was given."""
        router = self._start()
        unless(router.view.memory.dtype != np.int64, "what it remembers is no plain counters")
        for _ in range(2000):
            self._ask(idle(), range(NUM_REPLICAS), router)
        assert abs(router.view.memory).max() <= 2000, f"2,000 requests made a counter {abs(router.view.memory).max():,}"

    def test_no_random_number_is_drawn_without_a_tie(self) -> None:
        """One replica is better by every measure: whoever draws here makes runs differ that have no reason to."""
        unless(self.kind.draws_always, "it draws at every request")
        router, loads = self._start(), idle()
        for name in ("num_waiting", "num_running", "num_inflight", "waiting_tokens", "running_tokens"):
            loads[name] = [30, 10, 20, 40]
        before = router.view.random.tolist()
        for _ in range(50):
            self._ask(loads, range(NUM_REPLICAS), router)
        assert router.view.random.tolist() == before, "it drew"

    def test_ties_are_spread_over_all_replicas(self) -> None:
        """One request at a time finds four idle replicas: a fair draw gives each 100 of 400, give or take 43 (5 deviations)."""
        router = self._start()
        choices = [self._ask(idle(), range(NUM_REPLICAS), router) for _ in range(400)]
        counts = np.bincount(choices, minlength=NUM_REPLICAS)
        assert counts.min() >= 57, f"of 400 requests that found all idle, replicas got {counts.tolist()}"

    def test_ties_are_spread_among_the_best_only(self) -> None:
        """Replicas 1 and 3 are idle, the others have ten requests: a router that sees loads uses both, and only them."""
        router, loads = self._start(), idle()
        for name in ("num_waiting", "num_running", "num_inflight", "waiting_tokens", "running_tokens"):
            loads[name] = [10, 0, 10, 0]
        choices = {self._ask(loads, range(NUM_REPLICAS), router) for _ in range(100)}
        best = {1, 3} if self.kind.sees_load else {0, 1, 2, 3}
        assert choices == best, f"used {sorted(choices)}, the best are {sorted(best)}"

    def test_all_replicas_are_used(self) -> None:
        """By loads as they are, and by loads never seen again."""
        for scrape_interval_s in LIVE_OR_STALE_S:
            rows = [(0.01 * i, 50, 20) for i in range(200)]
            counts = sent_to(self._through(rows, replicas=NUM_REPLICAS, scrape_interval_s=scrape_interval_s))
            assert min(counts) > 0, f"with a scrape each {scrape_interval_s:g} s replicas got {counts}"

    def test_a_request_counts_from_its_dispatch(self) -> None:
        """A long prompt, 32 k tokens for one answer token, then three more while its only step runs: each goes elsewhere."""
        unless(not self.kind.balances, "it does not balance")
        for scrape_interval_s in LIVE_OR_STALE_S:
            ran = self._through(
                [(0.1 * i, 32_000, 1) for i in range(4)],
                engines=engine(overhead_s=1.0, max_num_batched_tokens=32_000),
                replicas=NUM_REPLICAS,
                scrape_interval_s=scrape_interval_s,
            )
            assert sent_to(ran) == [1, 1, 1, 1], f"with a scrape each {scrape_interval_s:g} s replicas got {sent_to(ran)}"

    def test_simultaneous_arrivals_each_see_those_before_them(self) -> None:
        """Four first turns at one instant, four idle replicas: one each."""
        unless(not self.kind.balances, "it does not balance")
        for scrape_interval_s in LIVE_OR_STALE_S:
            ran = self._through([(0.0, 100, 10)] * 4, replicas=NUM_REPLICAS, scrape_interval_s=scrape_interval_s)
            assert sent_to(ran) == [1, 1, 1, 1], f"with a scrape each {scrape_interval_s:g} s replicas got {sent_to(ran)}"

    def test_an_old_view_does_not_make_a_herd(self) -> None:
        """No scrape in the whole run: what the router has sent itself is all it knows, and enough to give each its share."""
        unless(not self.kind.balances, "it does not balance")
        ran = self._through([(0.1 * i, 100, 10) for i in range(40)], replicas=NUM_REPLICAS, scrape_interval_s=1000.0)
        assert sent_to(ran) == [10, 10, 10, 10], f"replicas got {sent_to(ran)}"

    def test_a_drained_replica_is_not_chosen_again_and_nothing_is_lost(self) -> None:
        """Three of four replicas are let go at 2 s, amid the traffic; what they cannot finish goes to the fourth."""
        for scrape_interval_s in LIVE_OR_STALE_S:
            for drain_timeout_s in (0.5, 600.0):
                self._drains(scrape_interval_s, drain_timeout_s)

    def _drains(self, scrape_interval_s: float, drain_timeout_s: float) -> None:
        ran = self._through(
            [(0.01 * i, 50, 100) for i in range(400)],
            engines=engine(max_num_seqs=16),
            max_replicas=NUM_REPLICAS,
            autoscaler=Script([4, 1]),
            interval_s=2.0,
            drain_timeout_s=drain_timeout_s,
            scrape_interval_s=scrape_interval_s,
        )
        drained = [machine for machine in ran.simulation.machines if machine.draining_at_s is not None]
        assert len(drained) == 3
        for machine in drained:
            late = ran.requests.routed_at_s[ran.requests.machine == machine.id] > 2.0
            assert not late.any(), f"{late.sum()} requests went to a replica that drains"
        assert (ran.requests.status == FINISHED).all(), "requests were lost"
        num_evicted = sum(machine.num_evicted for machine in drained)
        assert (num_evicted > 0) == (drain_timeout_s < 1), f"{num_evicted} were taken off after {drain_timeout_s:g} s"

    def test_an_overloaded_replica_is_avoided_until_the_next_sample_shows_it_healthy(self) -> None:
        """Twenty requests find one replica, and are done at 8 s. A second comes at 2 s; samples are taken each 10 s.

        From 2 to 10 s the first one's mark stands, so the second gets all; after the sample at 10 s both are idle, and share.
        """
        unless(not self.kind.sees_load, "it does not look at loads")
        rows = [(0.0, 100, 8)] * 20 + [(3.0 + i, 100, 1) for i in range(3)] + [(11.0 + 2 * i, 100, 1) for i in range(20)]
        ran = self._through(
            rows,
            engines=engine(overhead_s=1.0),
            max_replicas=2,
            autoscaler=Script([1, 2]),
            interval_s=2.0,
            stages=lambda: [],
            scrape_interval_s=10.0,
        )
        early, later = set(ran.requests.machine[20:23].tolist()), set(ran.requests.machine[23:].tolist())
        assert early == {1}, f"while the first was marked overloaded, {sorted(early)} got requests"
        assert later == {0, 1}, f"when both were idle, {sorted(later)} got requests"

    def _start(self, seed: int = 1) -> Routing:
        return routers.start(self.kind, NUM_REPLICAS, seed, self.options)

    def _ask(self, loads: Any, candidates: Any, router: Routing, num_keys: int = 0) -> int:
        router.view.loads[:], router.view.request.num_prompt_tokens = loads, 100
        return int(router.choose(router.shown(candidates, num_keys)))

    def _through(self, rows: list[tuple[float, int, int]], **fleet: Any) -> Ran:
        return run(arrivals(rows), router=self.kind, options=self.options, **fleet)


def idle(num_replicas: int = NUM_REPLICAS) -> Any:
    """(n,) LOAD of replicas without work."""
    loads = records(LOAD, num_replicas)
    loads["num_usable_blocks"] = loads["num_free_blocks"] = 100
    return loads


def busy(random: np.random.Generator) -> Any:
    """(n,) LOAD with everything somewhere between idle and overloaded, and often equal."""
    loads = idle()
    for name in ("num_waiting", "num_running", "num_inflight"):
        loads[name] = random.integers(0, 4, NUM_REPLICAS)
    for name in ("waiting_tokens", "running_tokens"):
        loads[name] = 100 * random.integers(0, 4, NUM_REPLICAS)
    loads["num_free_blocks"] = random.integers(0, 101, NUM_REPLICAS)
    return loads


def sent_to(ran: Ran) -> list[int]:
    """How many requests each machine got."""
    return np.bincount(ran.requests.machine, minlength=NUM_REPLICAS).tolist()
