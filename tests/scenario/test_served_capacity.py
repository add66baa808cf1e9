"""A capacity is that for the requests that an engine serves, at the lengths at which it serves them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import run as run_config
from experiments.cli import main
from experiments.contracts.fleets import arrivals, classes, engine, run
from replicas.served import served
from sim.records import ARRIVAL, REJECTED
from traces import KINDS
from traces.traffic import SAMPLE_ROWS


def config(**changes: Any) -> dict[str, Any]:
    """10 requests/s for a minute, 1,000 tokens in and 200 out, on one replica of an 8B model."""
    plain: dict[str, Any] = {
        "traffic": {"kind": "poisson", "rate_per_s": 10, "duration_s": 60, "lengths": lengths(1000, 200)},
        "router": {"kind": "least_tokens"},
        "pools": [pool()],
    }
    return plain | changes


def pool(name: str = "main", replicas: Any = None, autoscaler: Any = None) -> dict[str, Any]:
    return {
        "name": name,
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "replicas": {"kind": "surrogate", "max_model_len": 8192} | (replicas or {}),
        "autoscaler": autoscaler or {"kind": "fixed", "replicas": 1},
    }


def lengths(prompt: int, output: int) -> dict[str, Any]:
    return {"prompt": {"kind": "fixed", "tokens": prompt}, "output": {"kind": "fixed", "tokens": output}}


def mixed(*shares: tuple[str, float, int, int]) -> dict[str, Any]:
    kinds = [{"name": n, "share": share, "lengths": lengths(prompt, output)} for n, share, prompt, output in shares]
    return {"kind": "poisson", "rate_per_s": 10, "duration_s": 60, "classes": kinds}


def table(path: Path, rows: list[tuple[int, int]]) -> dict[str, Any]:
    """A recorded trace, a request each tenth of a second."""
    made = pd.DataFrame(rows, columns=["prompt", "output"]).assign(at=np.arange(len(rows)) / 10)
    made.to_csv(path, index=False)
    columns = {"arrived_at": "at", "num_prompt_tokens": "prompt", "num_output_tokens": "output"}
    return {"kind": "table", "path": str(path), "columns": columns, "time_unit": "s"}


def ran(tmp_path: Path, **changes: Any) -> Any:
    path = tmp_path / "served.yaml"
    path.write_text(yaml.safe_dump(config(**changes)))
    return run_config(path, out=tmp_path / "out", progress=False)


def rate_per_s(tmp_path: Path, name: str = "main", **changes: Any) -> float | None:
    capacity = ran(tmp_path, **changes).manifest["pools"][name]["replica_capacity"]
    return None if capacity is None else float(capacity["requests_per_s"])


@pytest.fixture(scope="module")
def plain_per_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    found = rate_per_s(tmp_path_factory.mktemp("plain"))
    assert found is not None
    return found


def test_requests_that_are_refused_cost_no_capacity(tmp_path: Path, plain_per_s: float) -> None:
    traffic = mixed(("short", 0.9, 1000, 200), ("long", 0.1, 60_000, 200))
    assert rate_per_s(tmp_path, traffic=traffic) == pytest.approx(plain_per_s)


def test_refused_rows_of_a_file_cost_no_capacity(tmp_path: Path, plain_per_s: float) -> None:
    rows = [(60_000, 200) if i % 10 == 3 else (1000, 200) for i in range(200)]
    assert rate_per_s(tmp_path, traffic=table(tmp_path / "t.csv", rows)) == pytest.approx(plain_per_s)


def test_one_huge_row_of_a_file_costs_no_capacity(tmp_path: Path, plain_per_s: float) -> None:
    rows = [(1000, 200)] * 99 + [(1_000_000, 200)]
    assert rate_per_s(tmp_path, traffic=table(tmp_path / "t.csv", rows)) == pytest.approx(plain_per_s)


def test_answers_count_as_long_as_their_class_lets_them_be(tmp_path: Path, plain_per_s: float) -> None:
    traffic = mixed(("chat", 1.0, 1000, 2000))
    assert rate_per_s(tmp_path, traffic=traffic, classes={"chat": {"max_tokens": 200}}) == pytest.approx(plain_per_s)


def test_answers_count_as_long_as_the_context_lets_them_be(tmp_path: Path, plain_per_s: float) -> None:
    traffic = mixed(("chat", 1.0, 1000, 5000))
    short = [pool(replicas={"max_model_len": 1200})]
    found = rate_per_s(tmp_path, traffic=traffic, classes={"chat": {"max_tokens": 100_000}}, pools=short)
    assert found == pytest.approx(plain_per_s)


def test_each_pool_counts_what_it_can_serve_itself(tmp_path: Path, plain_per_s: float) -> None:
    traffic = mixed(("short", 0.5, 1000, 200), ("long", 0.5, 20_000, 200))
    pools = [pool("short"), pool("long", {"max_model_len": 32_768}), pool("none", {"max_model_len": 500})]
    found = ran(tmp_path, traffic=traffic, pools=pools).manifest["pools"]
    assert found["short"]["replica_capacity"]["requests_per_s"] == pytest.approx(plain_per_s)
    assert found["long"]["replica_capacity"]["requests_per_s"] < plain_per_s / 2
    assert found["none"]["replica_capacity"] is None


def test_an_oracle_starts_no_replica_for_requests_that_are_refused(tmp_path: Path, plain_per_s: float) -> None:
    """Half of 1.4 replicas' worth is too long: with it two would be asked for, without it one."""
    traffic = mixed(("short", 0.5, 1000, 200), ("long", 0.5, 60_000, 200)) | {"rate_per_s": 1.4 * plain_per_s, "duration_s": 20}
    oracle = {"kind": "forecast", "forecaster": "oracle", "target_utilization": 1.0}
    assert len(ran(tmp_path, traffic=traffic, pools=[pool(autoscaler=oracle)]).replicas) == 1


SCALERS = [
    {"kind": "queue_target", "min_replicas": 0},
    {"kind": "forecast", "forecaster": "naive"},
    {"kind": "forecast", "forecaster": "oracle"},
    {"kind": "fixed", "replicas": 1},
]


@pytest.mark.parametrize("scaler", SCALERS, ids=lambda scaler: str(scaler.get("forecaster", scaler["kind"])))
@pytest.mark.parametrize("too_small", [{"num_gpu_blocks": 2}, {"max_model_len": 1000}])
def test_where_nothing_can_be_served_all_is_rejected_and_counted(tmp_path: Path, scaler: Any, too_small: Any) -> None:
    result = ran(tmp_path, pools=[pool(replicas=too_small, autoscaler=scaler)])
    assert set(result.requests["status"]) == {"rejected"}
    assert result.manifest["pools"]["main"]["replica_capacity"] is None
    assert result.timeline["capacity_per_s"].isna().all()
    summary = json.loads((tmp_path / "out" / "served" / "summary.json").read_text())
    assert any("pool main: no capacity: it can serve none of the traffic's requests" in line for line in summary["warnings"])


def test_a_given_capacity_is_used_where_none_can_be_computed(tmp_path: Path) -> None:
    small = pool(replicas={"num_gpu_blocks": 2}, autoscaler={"kind": "forecast", "forecaster": "oracle"})
    result = ran(tmp_path, pools=[small | {"replica_requests_per_s": 3.0}])
    assert result.timeline["capacity_per_s"].max() == 3.0


def test_a_large_watermark_is_no_error(tmp_path: Path) -> None:
    result = ran(tmp_path, pools=[pool(replicas={"num_gpu_blocks": 200, "watermark": 0.9})])
    assert set(result.requests["status"]) == {"finished"}
    assert result.manifest["pools"]["main"]["replica_capacity"]["batch"] == pytest.approx(1.0)


def test_a_sweep_over_limits_keeps_its_good_points(tmp_path: Path) -> None:
    result = ran(tmp_path, sweep={"pools.main.replicas.max_model_len": [1000, 8192]})
    capacities = [one["pools"]["main"]["replica_capacity"] for one in result.manifest.values()]
    assert [capacity is None for capacity in capacities] == [True, False]


def test_a_dry_run_says_what_can_never_be_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "served.yaml"
    path.write_text(json.dumps(config(pools=[pool("none", {"max_model_len": 1000}), pool("all")])))
    assert main([str(path), "--dry-run"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "no capacity" in line]
    [line] = said
    assert "max_model_len 1,000" in line


lengths_asked = st.lists(st.tuples(st.integers(1, 120), st.integers(1, 120), st.integers(0, 2)), min_size=1, max_size=20)


@settings(max_examples=60)
@given(lengths_asked, st.integers(1, 8), st.integers(20, 150), st.integers(1, 60))
def test_what_counts_as_served_is_what_the_door_lets_in(
    asked: list[tuple[int, int, int]], num_blocks: int, max_model_len: int, max_tokens: int
) -> None:
    """Classes: exact, with a limit, and with one that never binds."""
    rows = arrivals([(float(i), *one) for i, one in enumerate(asked)])
    kinds = classes((0, 0, 0, 0.0), (0, 0, max_tokens, 0.0), (0, 0, 10_000, 0.0))
    limits = engine(num_usable_blocks=num_blocks, max_model_len=max_model_len)
    requests = run(rows, limits, classes=kinds).requests
    is_in = requests.status != REJECTED
    found = served(rows, limits[0], kinds["max_tokens"], np.ones(len(kinds), np.bool_))
    assert found.share == is_in.mean()
    if found.share:
        assert found.mean_prompt_tokens == requests.num_prompt_tokens[is_in].mean()
        assert found.mean_output_tokens == requests.num_output_tokens[is_in].mean()
    assert found.is_as_asked == (is_in.all() and (requests.num_output_tokens == rows["num_output_tokens"]).all())


def test_drafts_need_room_for_their_kv() -> None:
    """16 tokens of KV: a prompt of 10 and an answer of 4 take 13, and three drafts with their lookahead 3 and 1 more."""
    rows, exact, asks = arrivals([(0.0, 10, 4)]), np.zeros(1, np.int64), np.ones(1, np.bool_)
    fields = {"num_usable_blocks": 1, "num_speculative_tokens": 3}
    assert served(rows, engine(**fields)[0], exact, asks).share == 1.0
    assert served(rows, engine(**fields, num_lookahead_tokens=1)[0], exact, asks).share == 0.0


def test_a_sample_is_the_same_for_every_seed_and_bounded(tmp_path: Path) -> None:
    law = {"prompt": {"kind": "lognormal", "mean": 100, "p99": 900}, "output": {"kind": "exponential", "mean": 20}}
    traffic = KINDS["poisson"](rate_per_s=1, duration_s=1, lengths=law)
    rows = traffic.sample()
    assert len(rows) == SAMPLE_ROWS
    assert rows.tobytes() == traffic.sample().tobytes()
    assert rows["num_prompt_tokens"].mean() == pytest.approx(100, rel=0.05)


def test_a_sample_of_a_long_file_is_evenly_spaced(tmp_path: Path) -> None:
    """Lengths that rise through the file: the sample rises with them, from the first to the last."""
    num_rows = 3 * SAMPLE_ROWS
    fields = table(tmp_path / "long.csv", [(1 + i, 1) for i in range(num_rows)])
    rows = KINDS[fields.pop("kind")](**fields).sample()
    assert rows.dtype == ARRIVAL
    assert np.unique(np.diff(rows["num_prompt_tokens"])).tolist() == [4]
    assert len(rows) == num_rows // 4
    assert rows["num_prompt_tokens"][0] == 1
