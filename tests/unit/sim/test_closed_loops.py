"""A client that limits its requests in flight, from the config to the results."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from experiments import report, run
from experiments.contracts.fleets import Constant, arrivals, classes, engine
from experiments.contracts.fleets import run as run_fleet
from sim.errors import ConfigError
from sim.records import FAILED, FINISHED, IN_FLIGHT
from traces import KINDS

LENGTHS = {"prompt": {"kind": "fixed", "tokens": 200}, "output": {"kind": "uniform", "low": 5, "high": 40}}


def experiment(folder: Path, traffic: dict[str, Any], **more: Any) -> Path:
    pool = {"name": "main", "model": "llama-3.1-8b", "gpu": "h100-sxm", "replicas": {"kind": "surrogate"}}
    document = {
        "traffic": {"lengths": LENGTHS, **traffic},
        "router": {"kind": "round_robin"},
        "pools": [{**pool, "autoscaler": {"kind": "fixed", "replicas": 1}}],
        **more,
    }
    path = folder / "closed.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def most_in_flight(requests: Any) -> int:
    """Counted from the instants alone; an end comes before an arrival at the same instant."""
    arrived, finished = np.sort(requests["arrived_at_s"]), np.sort(requests["finished_at_s"])
    return int((np.arange(1, len(arrived) + 1) - np.searchsorted(finished, arrived, side="right")).max())


def test_a_closed_loop_keeps_as_many_in_flight_until_the_last_are_sent(tmp_path: Path) -> None:
    result = run(experiment(tmp_path, {"kind": "concurrent", "limit": 300, "max_concurrency": 8}), out=tmp_path, progress=False)
    requests = result.requests
    assert (requests["status"] == "finished").all()
    assert most_in_flight(requests) == 8
    until_s = requests["arrived_at_s"].max()
    area = (np.minimum(requests["finished_at_s"], until_s) - requests["arrived_at_s"]).sum()
    assert area / until_s == pytest.approx(8)  # Little's law: never one less while there is one to send
    assert (requests["arrived_at_s"].to_numpy()[:8] == 0).all()
    assert requests["arrived_at_s"].is_monotonic_increasing


def test_the_result_says_how_many_were_held_and_for_how_long(tmp_path: Path) -> None:
    result = run(experiment(tmp_path, {"kind": "concurrent", "limit": 20, "max_concurrency": 8}), out=tmp_path, progress=False)
    assert result.manifest["counts"]["held_back"] == 12
    (line,) = json.loads((result.folder / "summary.json").read_text())["warnings"]
    assert line.startswith("traffic: 12 requests were held back by max_concurrency 8, for ")


def test_an_open_loop_holds_nothing_back_and_a_limit_that_is_never_reached_changes_nothing(tmp_path: Path) -> None:
    traffic = {"kind": "poisson", "rate_per_s": 20.0, "duration_s": 20.0}
    free = run(experiment(tmp_path, traffic), out=tmp_path / "free", progress=False)
    limited = run(experiment(tmp_path, {**traffic, "max_concurrency": 10_000}), out=tmp_path / "limited", progress=False)
    assert free.manifest["counts"]["held_back"] == limited.manifest["counts"]["held_back"] == 0
    for table in ("requests", "timeline", "replicas"):
        ours, theirs = ((one.folder / f"{table}.parquet").read_bytes() for one in (free, limited))
        assert ours == theirs


def test_everything_at_once_without_a_limit(tmp_path: Path) -> None:
    result = run(experiment(tmp_path, {"kind": "concurrent", "limit": 50}), out=tmp_path, progress=True)
    assert (result.requests["arrived_at_s"] == 0).all()


def test_the_number_of_requests_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="traffic: give `limit`, the number of requests"):
        run(experiment(tmp_path, {"kind": "concurrent", "max_concurrency": 8}), out=tmp_path, progress=False)


def test_a_limit_is_told_of_any_traffic() -> None:
    plain = {"rate_per_s": 1.0, "duration_s": 10.0, "lengths": LENGTHS}
    assert "requests/s), at most 5 in flight, of 200 prompt" in KINDS["poisson"](max_concurrency=5, **plain).describe()


def test_held_requests_are_sent_after_the_traffics_end() -> None:
    """Ten at 0 s, a second each, one at a time: the drain's five seconds count from the last one sent, at 9 s."""
    ran = run_fleet(arrivals([(0.0, 10, 1)] * 10), engine(overhead_s=1.0), max_concurrency=1, max_drain_s=5.0)
    assert (ran.requests.status == FINISHED).all()
    assert ran.requests.arrived_at_s.tolist() == [float(second) for second in range(10)]
    assert not ran.simulation.is_cut_short


@pytest.mark.parametrize("chunk", [4, 10])
def test_a_client_that_waits_for_ever_is_given_up_and_what_it_held_never_arrived(chunk: int) -> None:
    """Those that were held back are counted, whether they had been let into the window or not."""
    no_replica = Constant(0)
    ran = run_fleet(
        arrivals([(0.0, 10, 1)] * 10), replicas=0, max_replicas=1, autoscaler=no_replica, max_concurrency=3, max_drain_s=5.0,
        chunk=chunk,
    )  # fmt: skip
    assert ran.simulation.is_cut_short
    assert ran.ended_at_s == 5.0
    assert ran.requests.status.tolist() == [IN_FLIGHT] * 3
    assert ran.simulation.num_never_sent.tolist() == [7]


def test_a_closed_loop_goes_on_when_a_failure_empties_the_fleet_later_than_the_drain() -> None:
    """A machine fails 3 s after it is ready and the next is ready at once: of the ten requests each dies with one.

    From 6 s on the fleet is empty, for an instant, at times when an open loop's traffic would have been over for a drain.
    """
    ran = run_fleet(
        arrivals([(0.0, 10, 100)] * 10), engine(overhead_s=1.0), max_concurrency=1, max_drain_s=5.0, interval_s=1.0,
        stages=lambda: [("ready_at_s", 0.0)], time_to_failure_s=lambda: 3.0, requeue_on_failure=False,
    )  # fmt: skip
    assert ran.requests.status.tolist() == [FAILED] * 10
    assert ran.requests.arrived_at_s[1:].tolist() == ran.requests.finished_at_s[:-1].tolist()
    assert ran.requests.finished_at_s[-1] > 30.0
    assert not ran.simulation.is_cut_short
    assert ran.simulation.num_never_sent.tolist() == [0]


@pytest.mark.parametrize("chunk", [3, 1000])
def test_what_a_client_never_sent_is_counted_by_class_whether_it_was_loaded_or_not(chunk: int) -> None:
    arriving = arrivals([(0.0, 10, 1)] * 10)
    arriving["class_id"] = [0, 0, 0, 0, 1, 1, 0, 1, 1, 1]
    ran = run_fleet(
        arriving, replicas=0, max_replicas=1, autoscaler=Constant(0), max_concurrency=3, max_drain_s=5.0,
        classes=classes((0, 0, 0, 0.0), (0, 0, 0, 0.0)), chunk=chunk,
    )  # fmt: skip
    assert len(ran.requests) == 3
    assert ran.simulation.num_never_sent.tolist() == [2, 5]


def test_a_run_in_which_all_were_sent_has_none_that_was_not() -> None:
    ran = run_fleet(arrivals([(0.0, 10, 1)] * 10), engine(overhead_s=1.0), max_concurrency=1, max_drain_s=5.0)
    assert ran.simulation.num_never_sent.tolist() == [0]


def test_requests_that_a_client_gave_up_before_it_sent_them_are_in_every_result(tmp_path: Path) -> None:
    """500 of 1,000 tokens, 4 in flight, given up after 2 s: 4 arrived, 496 are said and in no share."""
    lengths = {**LENGTHS, "output": {"kind": "fixed", "tokens": 1000}}
    two = [{"name": name, "share": 0.5, "lengths": lengths} for name in "ab"]
    traffic = {"kind": "concurrent", "limit": 500, "max_concurrency": 4, "lengths": None, "classes": two}
    folder = run(experiment(tmp_path, traffic, max_drain_s=2.0), out=tmp_path, progress=False).folder
    summary = json.loads((folder / "summary.json").read_text())
    requests = summary["all"]["requests"]
    assert (requests["arrived"], requests["in_flight"], requests["never_sent"]) == (4, 4, 496)
    by_class = [part["requests"] for part in summary["classes"].values()]
    assert sum(one["never_sent"] for one in by_class) == 496
    assert all(one["never_sent"] + one["arrived"] > 200 for one in by_class)
    table = pd.read_parquet(folder / "summary.parquet")
    assert table["never_sent"].tolist() == [496, *(one["never_sent"] for one in by_class)]
    assert json.loads((folder / "manifest.json").read_text())["counts"]["never_sent"] == 496
    assert "496 requests were never sent: the run ended while their client held them back" in summary["warnings"][0]
    assert [line.split() for line in report.table([folder]).splitlines() if "never sent" in line] == [
        ["requests", "never", "sent", "496"]
    ]


def test_a_request_that_a_drain_fails_makes_room_too() -> None:
    """One replica goes at 15 s with its two requests; the third is sent at that instant, to the one that comes."""

    class OneThenAnother:
        desired = 1

        def decide(self, view: Any) -> "OneThenAnother":
            self.desired = 0 if view.now_s == 15.0 else 1
            return self

    ran = run_fleet(
        arrivals([(0.0, 10, 100)] * 2 + [(0.0, 10, 1)]), engine(overhead_s=1.0), max_concurrency=2, drain_timeout_s=0.0,
        requeue_on_timeout=False, autoscaler=OneThenAnother(), stages=lambda: [("ready_at_s", 1.0)],
    )  # fmt: skip
    assert ran.requests.finished_at_s.tolist()[:2] == [15.0, 15.0]
    assert ran.requests.arrived_at_s[2] == 15.0
    assert ran.requests.status[2] == FINISHED


def test_nobody_comes_after_the_start_who_was_not_there() -> None:
    assert KINDS["concurrent"](limit=3, lengths=LENGTHS).ends_at_s == 0.0
