"""Clients that give up on a request after so long: by hand, and from the config to the results."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from experiments import run as run_experiment
from experiments.contracts.fleets import Ran, Script, arrivals, classes, engine, run
from replicas.schedulers import STATIC
from sim.records import CLIENT_TIMEOUT, FINISHED, NO_REASON, TIMED_OUT

EVERY_ENGINE = pytest.mark.parametrize(
    "fields",
    [
        {},
        {"async_scheduling": 1},
        {"enable_prefix_caching": 1},
        {"enable_prefix_caching": 1, "async_scheduling": 1},
        {"num_speculative_tokens": 2},
        {"num_stages": 2},
        {"scheduler": STATIC, "reserves_output": 1, "enable_chunked_prefill": 0},
        {"scheduler": STATIC, "reserves_output": 1, "enable_chunked_prefill": 0, "async_scheduling": 1},
    ],
)


def served(rows: list[tuple[Any, ...]], *timeouts_s: float, fields: dict[str, Any] | None = None, **fleet: Any) -> Ran:
    """Runs rows on an engine whose steps last a second, where the n-th class waits for the n-th time."""
    kinds = classes(*((0, 0, 0, 0.0, 1, 0, timeout_s) for timeout_s in timeouts_s))
    return run(arrivals(rows), engine(overhead_s=1.0, **(fields or {})), classes=kinds, timeline_interval_s=0.25, **fleet)


@pytest.mark.parametrize(("timeout_s", "num_tokens"), [(0.5, 0), (1.0, 1), (3.0, 3), (3.5, 3)])
@pytest.mark.parametrize("scheduler", [0, STATIC])
@pytest.mark.parametrize("async_scheduling", [0, 1])
def test_a_request_keeps_the_tokens_that_came_before_its_client_gave_up(
    timeout_s: float, num_tokens: int, scheduler: int, async_scheduling: int
) -> None:
    """A token comes each second, from 1 s on; the one that comes at the very instant counts."""
    fields = {"scheduler": scheduler, "reserves_output": int(scheduler == STATIC), "async_scheduling": async_scheduling}
    ran = served([(0.0, 10, 10)], timeout_s, fields=fields)
    request = ran.requests[0]
    assert (request.status, request.reason) == (TIMED_OUT, CLIENT_TIMEOUT)
    assert (request.finished_at_s, request.num_generated_tokens) == (timeout_s, num_tokens)
    if num_tokens > 0:
        assert request.last_token_at_s == float(num_tokens)
    assert ran.plane.fleet.replicas.num_delivered_tokens[0] == num_tokens


def test_a_request_whose_last_token_comes_at_that_instant_has_finished() -> None:
    request = served([(0.0, 10, 3)], 3.0).requests[0]
    assert (request.status, request.reason, request.finished_at_s) == (FINISHED, NO_REASON, 3.0)


def test_a_client_of_another_class_waits_for_ever() -> None:
    ran = served([(0.0, 10, 100, 0), (0.0, 10, 100, 1)], 5.0, 0.0)
    assert ran.requests.status.tolist() == [TIMED_OUT, FINISHED]
    assert ran.requests.finished_at_s.tolist() == [5.0, 100.0]


@EVERY_ENGINE
def test_what_an_aborted_request_held_goes_to_the_next_in_the_step_after_the_one_that_runs(fields: dict[str, Any]) -> None:
    """The second waits for the only place. It is free from 2.5 s on, and the next plan is at 3 s; async, that step begins at 4.

    In a pipeline of two stages, which take turns, half a second each, the step that runs ends at 2.5 s already, or is about to.
    """
    ran = served([(0.0, 10, 10, 0), (0.5, 10, 1, 1)], 2.25, 0.0, fields={"max_num_seqs": 1, **fields})
    assert ran.requests.status.tolist() == [TIMED_OUT, FINISHED]
    assert ran.requests.finished_at_s[0] == 2.25
    if not fields.get("num_stages") and not fields.get("num_speculative_tokens"):
        is_async = fields.get("async_scheduling", 0)
        assert (ran.requests.scheduled_at_s[1], ran.requests.finished_at_s[1]) == (3.0, 4.0 + is_async)


def test_a_request_that_waits_lets_those_behind_it_go_first() -> None:
    ran = served([(0.0, 10, 10, 1), (0.5, 10, 10, 0), (0.5, 10, 1, 1)], 3.0, 0.0, fields={"max_num_seqs": 1})
    assert ran.requests.status.tolist() == [FINISHED, TIMED_OUT, FINISHED]
    assert np.isnan(ran.requests.scheduled_at_s[1])
    assert ran.requests.finished_at_s.tolist() == [10.0, 3.5, 11.0]


def test_a_request_that_finds_no_replica_gives_up_too_and_has_still_arrived() -> None:
    ran = served([(0.0, 10, 2), (9.0, 10, 2)], 3.0, warm_start=False, stages=lambda: [("ready_at_s", 10.0)])
    assert ran.requests.status.tolist() == [TIMED_OUT, FINISHED]
    assert np.isnan(ran.requests.routed_at_s[0])
    assert ran.requests.finished_at_s.tolist() == [3.0, 12.0]
    assert ran.plane.fleet.demand.num_arrived.tolist() == [[2]]
    assert ran.plane.fleet.unrouted.tolist() == [[0, 0, 0]]


def test_the_time_of_a_request_that_is_held_back_begins_when_it_is_sent() -> None:
    ran = served([(0.0, 10, 10), (0.0, 10, 2), (0.0, 10, 10)], 2.5, max_concurrency=1)
    assert ran.requests.arrived_at_s.tolist() == [0.0, 2.5, 5.0]
    assert ran.requests.finished_at_s.tolist() == [2.5, 5.0, 7.5]
    assert ran.requests.status.tolist() == [TIMED_OUT, FINISHED, TIMED_OUT]


def test_a_turn_that_follows_a_request_that_timed_out_is_never_sent() -> None:
    rows = arrivals([(0.0, 10, 10), (0.0, 10, 1)])
    rows["follows"] = 0, 1
    ran = run(rows, engine(overhead_s=1.0), classes=classes((0, 0, 0, 0.0, 1, 0, 2.5)))
    assert ran.requests.status.tolist() == [TIMED_OUT]
    assert ran.simulation.num_never_sent.tolist() == [1]


def test_tokens_that_a_rate_limit_had_set_aside_come_back() -> None:
    """Of a bucket of 100 tokens: the first was scheduled, and has used its prompt and two tokens; the second only waited."""
    kinds = classes((0, 0, 50, 0.0, 1, 0, 2.5))
    kinds[0].bucket = (1e-9, 200.0, 200.0, 0.0)
    ran = run(arrivals([(0.0, 10, 40), (0.0, 20, 40)]), engine(overhead_s=1.0, max_num_seqs=1), classes=kinds)
    assert ran.requests.status.tolist() == [TIMED_OUT, TIMED_OUT]
    assert kinds[0].bucket.level_tokens == pytest.approx(200 - 10 - 2, abs=1e-6)


def test_a_machine_that_drains_goes_when_the_last_client_gives_up() -> None:
    """Its only request waits for a grammar of 50 s, and nothing runs; its client gives up 5 s after it came."""
    ran = run(
        arrivals([(0.0, 10, 2), (30.0, 10, 2)]), engine(overhead_s=1.0), autoscaler=Script([1, 0, 0, 1]), interval_s=4.0,
        max_replicas=1, stages=lambda: [("ready_at_s", 0.0)], classes=classes((0, 0, 0, 20.0, 1, 0, 5.0)),
    )  # fmt: skip
    assert ran.requests.finished_at_s.tolist()[0] == 5.0
    first = ran.simulation.machines[0]
    assert (first.draining_at_s, first.released_at_s) == (4.0, 5.0)


LENGTHS = {"prompt": {"kind": "fixed", "tokens": 100}, "output": {"kind": "fixed", "tokens": 400}}
TRAFFIC = {
    "kind": "constant",
    "rate_per_s": 20,
    "duration_s": 10,
    "lengths": None,
    "classes": [{"name": name, "share": 0.5, "lengths": LENGTHS} for name in ("chat", "batch")],
}
POOL = {
    "name": "main",
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "replicas": {"kind": "surrogate", "max_num_seqs": 16},
    "autoscaler": {"kind": "fixed", "replicas": 1},
}


def test_results_show_who_gave_up_and_why(tmp_path: Path) -> None:
    document = {
        "traffic": TRAFFIC,
        "router": {"kind": "round_robin"},
        "pools": [POOL],
        "classes": {"chat": {"timeout_s": 6}},
        "slo": {"e2e_s": {"p50": 100}},
    }
    path = tmp_path / "impatient.yaml"
    path.write_text(yaml.safe_dump(document))
    ran = run_experiment(path, out=tmp_path, progress=False)
    requests: pd.DataFrame = ran.requests
    late = requests[requests["status"] == "timed_out"]
    assert 10 < len(late) < 100
    assert set(late["class"]) == {"chat"}
    assert set(late["reason"]) == {"client_timeout"}
    assert (late["finished_at_s"] == late["arrived_at_s"] + 6).all()
    counts = json.loads((ran.folder / "summary.json").read_text())["all"]["requests"]
    assert (counts["timed_out"], counts["reasons"]) == (len(late), {"client_timeout": len(late)})
