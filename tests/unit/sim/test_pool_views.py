"""What an autoscaler's view shows of a pool: the counts of classes, latencies, its past, and nothing of the future."""

import pickle
from typing import Any

import numpy as np
import pytest

from experiments.contracts.fleets import Constant, Ran, arrivals, classes, engine, run
from sim import metrics
from sim.records import FINISHED
from sim.views import LATENCIES, PoolView
from tests.pools import view

STEP_OF_A_SECOND = engine(overhead_s=1.0)


class Looks(Constant):
    """Keeps what it is shown, and what it was when it was shown."""

    def __init__(self, desired: int) -> None:
        super().__init__(desired)
        self.views: list[PoolView] = []
        self.pickled: list[bytes] = []

    def decide(self, view: PoolView) -> Constant:
        self.views.append(view)
        self.pickled.append(contents(view))
        return self


def contents(view: PoolView) -> bytes:
    latencies = [[view.latency_s(name, 50, past_s) for name in LATENCIES] for past_s in (0.0, view.history.past_s)]
    return pickle.dumps((repr(view), view.replicas.tobytes(), view.by_class, latencies, len(view.past(view.history.past_s))))


def looked(rows: Any, replicas: int = 1, **options: Any) -> tuple[Looks, Ran]:
    looks = Looks(replicas)
    ran = run(rows, autoscaler=looks, max_replicas=replicas, **options)
    return looks, ran


def busy(num: int = 400) -> Any:
    random = np.random.default_rng(3)
    at_s = np.cumsum(random.exponential(0.5, num))
    return arrivals([(t, int(random.integers(1, 900)), int(random.integers(1, 60)), i % 2) for i, t in enumerate(at_s)])


MANY: dict[str, Any] = {
    "engines": engine(overhead_s=0.05, max_num_seqs=8, cpu_s_per_request=0.01),
    "classes": classes((0, 0, 0, 0), (0, 0, 0, 0)),
}


def test_arrivals_and_tokens_are_counted_by_class() -> None:
    """At 15 s two of class 0 have arrived and one has finished, and one of class 1 runs."""
    rows = arrivals([(0.0, 10, 3, 0), (1.0, 20, 100, 1), (14.5, 30, 3, 0), (15.5, 40, 3, 1)])
    looks, _ = looked(rows, engines=STEP_OF_A_SECOND, classes=classes((0, 0, 0, 0), (0, 0, 0, 0)))
    assert looks.views[0].by_class == {"c0": (0, 0, 0, 0), "c1": (0, 0, 0, 0)}
    assert looks.views[1].by_class == {"c0": (2, 40, 1, 3), "c1": (1, 20, 0, 0)}
    assert looks.views[1].by_class["c0"].num_output_tokens == 3


def test_requests_that_wait_for_a_first_replica_have_arrived_and_are_counted_once() -> None:
    cold: dict[str, Any] = {"warm_start": False, "stages": lambda: [("ready_at_s", 20.0)]}
    looks, _ = looked(arrivals([(1.0, 10, 3), (2.0, 30, 100)]), engines=STEP_OF_A_SECOND, **cold)
    assert [one.num_waiting for one in looks.views[:3]] == [0, 2, 0]
    assert [one.by_class["c0"][:2] for one in looks.views[:3]] == [(0, 0), (2, 40), (2, 40)]


def test_all_counts_at_the_end_are_those_of_the_requests() -> None:
    looks, ran = looked(busy(), 2, **MANY, ends_at_s=600.0)
    requests, last = ran.requests, looks.views[-1]
    assert (requests.status == FINISHED).all()
    for number, name in enumerate(("c0", "c1")):
        mine = requests[requests.class_id == number]
        tokens = int(mine.num_prompt_tokens.sum()), int(mine.num_generated_tokens.sum())
        assert last.by_class[name] == (len(mine), tokens[0], len(mine), tokens[1])


@pytest.mark.parametrize("metric", ["ttft_s", "tpot_s", "e2e_s"])
def test_a_percentile_is_that_of_the_requests_within_the_window(metric: str) -> None:
    """Against the written requests, for each of the last ticks; known to 0.5 %."""
    looks, ran = looked(busy(), 2, **MANY, past_s=60.0)
    requests = ran.requests
    at_s = requests.first_token_at_s if metric == "ttft_s" else requests.finished_at_s
    values = metrics.REQUEST_METRICS[metric](requests)
    num_compared = 0
    for one in looks.views[2:]:
        for window_s in (30.0, 60.0):
            within = values[(at_s > one.now_s - window_s) & (at_s <= one.now_s) & ~np.isnan(values)]
            if within.size:
                assert one.latency_s(metric, 95, window_s) == pytest.approx(np.percentile(within, 95), rel=5e-3)
                num_compared += 1
    assert num_compared > 10


def test_gaps_between_tokens_within_the_window() -> None:
    """Steps of 50 ms for a lone request, and of 90 ms for nine at once, from 30 s on."""
    rows = arrivals([(0.0, 1, 1500), *((30.0, 1, 500) for _ in range(8))])
    looks, _ = looked(rows, engines=engine(overhead_s=0.05, cpu_s_per_request=0.01), past_s=15.0)
    first, second, third, fourth = (one.latency_s("itl_s", 50, 15.0) for one in looks.views[1:5])
    assert first == second == pytest.approx(0.06, rel=1e-3)
    assert third == fourth == pytest.approx(0.14, rel=1e-3)


def test_where_nothing_was_measured_there_is_no_latency() -> None:
    looks, _ = looked(arrivals([(0.0, 10, 3)]), ends_at_s=60.0, past_s=15.0)
    seen = [one.latency_s("ttft_s", 95, 15.0) for one in looks.views]
    assert np.isnan(seen[0])
    assert seen[1] > 0
    assert np.isnan(seen[2:]).all()
    with pytest.raises(ValueError, match="no latency named 'ttft'; known: ttft_s, tpot_s, e2e_s, itl_s"):
        looks.views[1].latency_s("ttft", 95, 15.0)


def test_each_ready_replica_shows_its_own_gauges_and_they_add_up() -> None:
    looks, ran = looked(busy(), 3, **MANY)
    loaded = [one for one in looks.views if one.num_running > 0]
    assert len(loaded) > 5
    for one in loaded:
        assert sorted(one.replicas.machine) == [0, 1, 2]
        for name in ("num_running", "waiting_tokens", "running_tokens", "num_waiting"):
            assert one.replicas[name].sum() == getattr(one, name)
        assert one.replicas.kv_cache_usage.mean() == one.kv_cache_usage
    assert {machine.id for machine in ran.simulation.machines} == {0, 1, 2}


def test_the_past_is_bounded_and_its_oldest_view_begins_the_window() -> None:
    looks, _ = looked(busy(), **MANY, interval_s=10.0, past_s=30.0)
    last = looks.views[-1]
    now_s = last.now_s
    assert [one.scraped_at_s for one in last.past(30.0)] == [now_s - 30, now_s - 20, now_s - 10, now_s]
    assert [one.scraped_at_s for one in last.past(15.0)] == [now_s - 10, now_s]
    assert [one.num_arrived for one in last.past(20.0)] == [one.num_arrived for one in looks.views[-3:]]
    assert len(last.history.views) == 4
    with pytest.raises(ValueError, match=r"a look back over 31 s, but the autoscaler's past_s, .* is 30"):
        last.past(31.0)
    with pytest.raises(ValueError, match="is 0"):
        view().past(1.0)


def test_a_view_that_is_kept_shows_nothing_of_what_came_after_it() -> None:
    for scrape_interval_s in (0.0, 20.0):
        looks, _ = looked(busy(), 2, **MANY, past_s=60.0, autoscaler_scrape_interval_s=scrape_interval_s)
        assert [contents(one) for one in looks.views] == looks.pickled


def test_an_old_view_shows_the_gauges_of_its_scrape_and_the_machines_of_now() -> None:
    """Two machines are asked for at 0 s, a scrape shows none of them ready at 0 s, and they are at 10 s."""
    cold: dict[str, Any] = {"warm_start": False, "stages": lambda: [("ready_at_s", 10.0)], "interval_s": 15.0}
    rows = arrivals([(1.0, 10, 1000), (16.0, 10, 1000)])
    looks, _ = looked(rows, 2, engines=STEP_OF_A_SECOND, autoscaler_scrape_interval_s=30.0, **cold)
    at_15_s, at_30_s, at_45_s = looks.views[1:4]
    assert (at_15_s.age_s, at_15_s.num_ready, len(at_15_s.replicas), at_15_s.num_arrived) == (15.0, 2, 0, 0)
    assert (at_30_s.age_s, at_30_s.num_ready, len(at_30_s.replicas), at_30_s.num_arrived) == (30.0, 2, 0, 0)
    assert (at_45_s.age_s, at_45_s.num_ready, len(at_45_s.replicas), at_45_s.num_arrived) == (15.0, 2, 2, 2)


def test_nothing_in_a_view_can_be_written_to() -> None:
    looks, _ = looked(busy(), **MANY, past_s=30.0)
    seen = looks.views[-1]
    for write in (
        lambda: seen.replicas.num_waiting.__setitem__(0, 7),
        lambda: seen.replicas[0].__setattr__("num_waiting", 7),
        lambda: seen.class_counts.__setitem__(0, (1, 1, 1, 1)),
        lambda: seen.past(30.0)[0].latencies[0][1].__setitem__(slice(None), 9),
        lambda: setattr(seen, "num_ready", 9),
    ):
        with pytest.raises((ValueError, AttributeError)):
            write()
