"""Autoscalers of the user's own by what a view offers beyond the load: latencies, single replicas, ages, and several pools."""

import re
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from autoscalers import KINDS, Autoscaler, Deciding
from experiments import run
from experiments.contracts.__main__ import main as check
from experiments.contracts.autoscaler import known_rate, views
from experiments.contracts.fleets import arrivals, engine
from experiments.contracts.fleets import run as run_fleet
from sim.errors import ConfigError
from sim.kinds import imported
from sim.views import PoolView

MINE = '''
from pydantic import Field

from autoscalers import Autoscaler, JointAutoscaler, Wanted


class SlowFirstTokens(Autoscaler):
    """One replica more while the p95 of the TTFT over the last minute is above a limit."""

    limit_s: float = Field(default=1.0, gt=0, description="Of the p95.")
    past_s = property(lambda self: 60.0)

    def policy(self, known_rate, seed):
        def wanted(view):
            ttft_s = view.latency_s("ttft_s", percent=95, window_s=60.0)
            return Wanted(view.num_ready + view.num_starting + (ttft_s > self.limit_s), f"p95 {ttft_s:.3g} s")

        return wanted


class FullestReplica(Autoscaler):
    """One replica more when the fullest has less than a share of its KV cache left."""

    most: float = Field(description="Share of the KV cache that may be in use.")

    def policy(self, known_rate, seed):
        return lambda view: Wanted(1 + (view.replicas.kv_cache_usage.max(initial=0.0) > self.most), "the fullest")


class Ratio(JointAutoscaler):
    """So many decode replicas to a prefill replica, and of those as many as the requests of both pools ask for."""

    decodes_per_prefill: int = Field(ge=1, description="The ratio.")
    requests_each: float = Field(default=20.0, gt=0, description="In flight for each prefill replica.")

    def policy(self, known_rates, seed):
        def wanted(views):
            in_flight = sum(view.num_waiting + view.num_running for view in views.values())
            prefill = max(1, round(in_flight / self.requests_each))
            return {"prefill": Wanted(prefill, "load"), "decode": Wanted(self.decodes_per_prefill * prefill, "ratio")}

        return wanted


class LeavesOneOut(Ratio):
    """Forgets a pool, or makes one up."""

    answers: list[str] = Field(description="The pools that it answers for.")

    def policy(self, known_rates, seed):
        return lambda views: {name: Wanted(1, "one") for name in self.answers}


class LooksTooFar(SlowFirstTokens):
    """Looks back further than it says."""

    past_s = property(lambda self: 30.0)


class Scribbles(FullestReplica):
    """Writes into what it is shown."""

    def policy(self, known_rate, seed):
        def wanted(view):
            view.replicas.num_waiting[:] = 0
            return Wanted(1, "none waits any more")

        return wanted
'''

POOL = {"model": "llama-3.1-8b", "gpu": "l40s", "replicas": {"kind": "surrogate", "max_model_len": 4096}}
CONFIG: dict[str, Any] = {
    "traffic": {
        "kind": "poisson",
        "rate_per_s": 20,
        "duration_s": 300,
        "lengths": {"prompt": {"kind": "fixed", "tokens": 1500}, "output": {"kind": "fixed", "tokens": 100}},
    },
    "router": {"kind": "least_tokens"},
    "timeline_interval_s": 15.0,
}


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "my_scalers.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_scalers", None)


def ran(tmp_path: Path, pools: list[dict[str, Any]], **changes: Any) -> Any:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(CONFIG | {"pools": [POOL | pool for pool in pools]} | changes))
    return run(tmp_path / "mine.yaml", out=tmp_path, progress=False)


def one_pool(kind: str, **options: Any) -> dict[str, Any]:
    return {"name": "main", "autoscaler": {"kind": f"my_scalers:{kind}", **options}}


def test_a_policy_grows_at_the_first_tick_whose_last_minute_had_a_p95_of_the_ttft_above_its_limit(tmp_path: Path) -> None:
    """Judged by the requests that the run wrote: those whose first token came within the minute before the tick."""
    pool = one_pool("SlowFirstTokens", limit_s=10.0) | {"lifecycle": {"provision_s": 600.0}}
    result = ran(tmp_path, [pool], traffic=CONFIG["traffic"] | {"rate_per_s": 15})
    requests: pd.DataFrame = result.requests
    first_at_s, ttft_s = requests["first_token_at_s"], requests["first_token_at_s"] - requests["arrived_at_s"]
    ticks = np.arange(15.0, 300.0, 15.0)
    seen = [np.percentile(ttft_s[(first_at_s > tick - 60) & (first_at_s <= tick)], 95) for tick in ticks]
    too_late = np.flatnonzero(np.array(seen) > 10.0)[0]
    assert too_late >= 2
    assert abs(seen[too_late] / 10.0 - 1) > 0.01
    timeline: pd.DataFrame = result.timeline
    grew_at_s = timeline.loc[timeline["desired"] > 1, "end_s"].min()
    assert grew_at_s == ticks[too_late]


@pytest.mark.parametrize(("scrape_interval_s", "grows_at_s"), [(0.0, 45.0), (15.0, 60.0), (30.0, 75.0)])
def test_the_older_the_scrape_the_later_a_policy_sees_a_replica_fill_up(scrape_interval_s: float, grows_at_s: float) -> None:
    """160 tokens in blocks of 16, of which there are 100, and a token a second: the 13th block comes within 33 s.

    A tick goes by the scrape before it: that of 30 s, still at 12 blocks, is shown up to 60 s.
    """
    scaler = imported("my_scalers:FullestReplica")(most=0.125)
    controller = scaler.start(known_rate, seed=1)
    decided: list[tuple[float, float, int]] = []

    class Noting:
        def decide(self, view: PoolView) -> Any:
            decision = controller.decide(view)
            decided.append((view.now_s, view.age_s, decision.desired))
            assert f"as of {view.age_s:g} s ago" in decision.reason or view.age_s == 0
            return decision

    run_fleet(
        arrivals([(0.0, 160, 100)]),
        engine(overhead_s=1.0, num_usable_blocks=100),
        autoscaler=Noting(),
        autoscaler_scrape_interval_s=scrape_interval_s,
        max_replicas=2,
    )
    assert min(now_s for now_s, _, desired in decided if desired > 1) == grows_at_s
    ages = {0.0: [0.0], 15.0: [15.0], 30.0: [15.0, 30.0]}
    assert sorted({age_s for _, age_s, _ in decided[1:]}) == ages[scrape_interval_s]


def test_the_age_is_a_key_of_every_autoscaler(tmp_path: Path) -> None:
    """The queue that a tick at 15 s sees at once is seen at 30 s where scrapes are 15 s apart."""
    grew_at_s = []
    for scrape_interval_s in (0.0, 15.0):
        scaler = {"kind": "queue_target", "warm_buffer": 0, "scrape_interval_s": scrape_interval_s}
        timeline = ran(tmp_path, [{"name": "main", "autoscaler": scaler}]).timeline
        grew_at_s.append(timeline.loc[timeline["desired"] > 1, "end_s"].min())
    assert grew_at_s == [15.0, 30.0]


TWO = [
    {"name": "prefill", "autoscaler": {"kind": "my_scalers:Ratio", "decodes_per_prefill": 2, "max_replicas": 4}},
    {"name": "decode", "autoscaler": {"kind": "joint", "with_pool": "prefill", "max_replicas": 7}},
]


def two(**joint: Any) -> list[dict[str, Any]]:
    return [TWO[0], {**TWO[1], "autoscaler": TWO[1]["autoscaler"] | joint}]


def test_a_joint_policy_keeps_two_pools_at_a_ratio_each_within_its_own_limits(tmp_path: Path) -> None:
    result = ran(tmp_path, TWO)
    timeline = result.timeline
    desired = timeline.pivot(index="end_s", columns="pool", values="desired")
    assert set(desired["prefill"]) == {3, 4}
    assert (desired["decode"] == np.minimum(7, 2 * desired["prefill"])).all()
    assert (result.requests["status"] == "finished").all()
    again = run(result.folder / "config.yaml", out=tmp_path / "again", progress=False)  # as it was resolved
    pd.testing.assert_frame_equal(again.timeline, timeline)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_a_joint_policy_decides_at_its_own_interval_whichever_pool_comes_first(order: list[int], tmp_path: Path) -> None:
    pools = [two()[i] for i in order]
    pools[order.index(0)] = pools[order.index(0)] | {"autoscaler": TWO[0]["autoscaler"] | {"interval_s": 45.0}}
    timeline = ran(tmp_path, pools).timeline
    for pool in ("prefill", "decode"):
        mine = timeline[timeline["pool"] == pool]
        changed_at_s = mine.loc[mine["desired"].diff().fillna(0) != 0, "end_s"]
        assert len(changed_at_s) > 0
        assert (changed_at_s % 45.0 == 0).all()


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        (
            two(with_pool="prefil"),
            "autoscaler.with_pool: no pool named 'prefil'; did you mean 'prefill'? known: prefill",
        ),
        (
            two(with_pool="decode"),
            "autoscaler.with_pool: the autoscaler of pool 'decode' decides for no other",
        ),
        (
            [one_pool("FullestReplica", most=0.5), {**two(with_pool="main")[1]}],
            "'main' decides for no other",
        ),
        ([*two(), two()[1]], "pools: two pools are named 'decode'; names must differ"),
        (two(interval_s=5.0), "autoscaler.interval_s: unknown key here; it belongs at pools.prefill"),
        ([one_pool("FullestReplica", most=0.5, scrape_interval_s=-1.0)], "pools.main.autoscaler.scrape_interval_s: "),
    ],
)
def test_a_mistake_is_said_in_one_line(pools: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        ran(tmp_path, pools)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (["prefill"], "a joint policy answers for every pool; it left out 'decode'"),
        (
            ["prefill", "decode", "decod"],
            "answered for a pool that it does not decide for: no pool named 'decod'",
        ),
    ],
)
def test_a_joint_policy_that_answers_for_other_pools_than_its_own_is_told_so(
    answers: list[str], message: str, tmp_path: Path
) -> None:
    scaler = {"kind": "my_scalers:LeavesOneOut", "decodes_per_prefill": 1, "answers": answers}
    with pytest.raises(ConfigError, match=re.escape(message)):
        ran(tmp_path, [{"name": "prefill", "autoscaler": scaler}, TWO[1]])


def test_a_policy_that_looks_back_further_than_it_declares_is_told_so(tmp_path: Path) -> None:
    message = "a look back over 60 s, but the autoscaler's past_s, which says how much is kept, is 30"
    with pytest.raises(ConfigError, match=re.escape(message)):
        ran(tmp_path, [one_pool("LooksTooFar")])


@dataclass(frozen=True)
class MoreToSee(PoolView):
    """The view of a later version: with one more thing to see."""

    saturation: float = 0.5


def test_a_new_field_changes_no_policy() -> None:
    """Every autoscaler that there is, and those above, decide alike by a view that has one field more."""
    scalers: list[Autoscaler] = [imported("my_scalers:SlowFirstTokens")(), imported("my_scalers:FullestReplica")(most=0.5)]
    scalers += [
        found(**({"replicas": 3} if name == "fixed" else {}))  # type: ignore[misc]
        for name, found in KINDS.items()
        if issubclass(found, Deciding)
    ]
    for scaler in scalers:
        now, later = scaler.start(known_rate, seed=1), scaler.start(known_rate, seed=1)
        for view in views(50, past_s=scaler.past_s):
            more = MoreToSee(**{one.name: getattr(view, one.name) for one in fields(view)})
            assert now.decide(view) == later.decide(more)


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["my_scalers:SlowFirstTokens"], 0, "10 of 10 checks hold, and the others do not apply"),
        (["my_scalers:FullestReplica", "most=0.5"], 0, "10 of 10 checks hold, and the others do not apply"),
        (["my_scalers:Ratio", "decodes_per_prefill=2"], 0, "11 of 11 checks hold"),
        (["my_scalers:LeavesOneOut", "decodes_per_prefill=2", "answers=[a, b]", "pools=[a, b]"], 0, "11 of 11 checks hold"),
        (
            ["my_scalers:Scribbles", "most=0.5"],
            1,
            "FAILS  what is shown stays as it was: ValueError: assignment",
        ),
        (["my_scalers:LooksTooFar"], 1, "FAILS  decides by gauges of any age: ValueError: a look back over 60 s, but"),
    ],
)
def test_the_contract_holds_them_to_what_a_view_offers(
    arguments: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(arguments) == code
    assert line in capsys.readouterr().out
