"""A run's requests.parquet is traffic: replayed through the same fleet it leaves the same requests.parquet, row by row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pydantic import ValidationError

from experiments import run
from sim.errors import TraceError
from traces import KINDS, Traffic

FLEET = """
slo: {ttft_s: {p99: 1.0}, tpot_s: {p90: 0.05}}
gateway: {rate_limits: {limited: {tokens_per_s: 400, capacity_tokens: 3000}}}
classes: {cut: {max_tokens: 20, priority: 1}}
router: {kind: power_of_d_choices}
pools:
  - name: main
    model: llama-3.1-8b
    gpu: h100-sxm
    replicas: {kind: surrogate, max_model_len: 4096, max_num_seqs: 6, num_gpu_blocks: 900}
    lifecycle: {provision_s: 5.0, image_s: 0.0, start_s: 3.0, capture_s: 0.0}
    autoscaler: {kind: queue_target, min_replicas: 1, max_replicas: 4, interval_s: 15}
timeline_interval_s: 10
"""
LENGTHS = {
    "prompt": {"kind": "lognormal", "mean": 900.0, "p99": 5000.0},
    "output": {"kind": "exponential", "mean": 60.0},
}
CLASSES = [{"name": name, "share": 1.0, "lengths": LENGTHS} for name in ("plain", "limited", "cut", "unheard")]
CLASSES[3]["share"] = 1e-9  # nobody asks for it
PREFIXES = {"num": 5, "tokens": {"kind": "uniform", "low": 100, "high": 700}, "share": 0.7}


def mooncake(folder: Path) -> dict[str, Any]:
    with (folder / "trace.jsonl").open("w") as file:
        for i in range(300):
            ids = [i % 5, *range(10 * (i % 90), 10 * (i % 90) + 3)]
            row = {"timestamp": 300 * (i // 3), "input_length": 2000 - i, "output_length": 1 + i % 50, "hash_ids": ids}
            file.write(json.dumps(row) + "\n")
    return {"kind": "mooncake", "path": str(folder / "trace.jsonl"), "rate_scale": 1.5, "start_s": 2.0, "time_unit": "ms"}


def table(folder: Path) -> dict[str, Any]:
    rows = [f"{1e9 + i / 3},{100 + i % 900},{1 + i % 80},{['a', '', 'b'][i % 3]},{i % 60},{i % 40 or ''}" for i in range(300)]
    (folder / "trace.csv").write_text("\n".join(["at,in,out,app,app_tokens,user", *rows]))
    names = {"arrived_at": "at", "num_prompt_tokens": "in", "num_output_tokens": "out"}
    names |= {"prefix_id": "app", "num_prefix_tokens": "app_tokens", "session_id": "user"}
    return {"kind": "table", "path": str(folder / "trace.csv"), "time_unit": "s", "columns": names}


TRAFFIC = {
    "classes and prefixes": {
        "kind": "poisson",
        "rate_per_s": 4.0,
        "duration_s": 90.0,
        "classes": CLASSES,
        "prefixes": PREFIXES,
    },
    "nothing shared": {"kind": "gamma", "rate_per_s": 4.0, "cv": 3.0, "duration_s": 60.0, "classes": CLASSES},
    "a day with noise": {
        "kind": "diurnal",
        "duration_s": 90.0,
        "peak_per_s": 5.0,
        "trough_per_s": 1.0,
        "peak_hour": 0.01,
        "noise": 0.5,
        "noise_interval_s": 10.0,
        "classes": CLASSES,
    },
    "a limit": {"kind": "poisson", "rate_per_s": 4.0, "duration_s": 600.0, "limit": 150, "classes": CLASSES},
    "a closed loop": {"kind": "concurrent", "limit": 200, "max_concurrency": 17, "classes": CLASSES, "prefixes": PREFIXES},
    "a loop that is nearly open": {
        "kind": "poisson",
        "rate_per_s": 6.0,
        "duration_s": 60.0,
        "max_concurrency": 17,
        "classes": CLASSES,
    },
}


def simulated(folder: Path, traffic: dict[str, Any], name: str, **changes: Any) -> Path:
    document = yaml.safe_load(FLEET) | {"name": name, "traffic": traffic} | changes
    if "classes" not in traffic:
        document.pop("classes", None), document.pop("gateway", None)
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
    return run(folder / f"{name}.yaml", out=folder / "results", progress=False).folder


def replayed(folder: Path, first: Path, name: str = "again", **traffic: Any) -> Path:
    """The same fleet with the first run's requests."""
    document = yaml.safe_load((first / "config.yaml").read_text())
    document |= {"name": name, "traffic": {"kind": "table", "path": str(first / "requests.parquet"), **traffic}}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
    return run(folder / f"{name}.yaml", out=folder / "results", progress=False).folder


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder / "requests.parquet").to_pylist()
    return found


@pytest.mark.parametrize("name", [*TRAFFIC, "mooncake", "table"])
def test_a_replay_leaves_the_same_rows(tmp_path: Path, name: str) -> None:
    files = {"mooncake": mooncake, "table": table}
    first = simulated(tmp_path, files[name](tmp_path) if name in files else TRAFFIC[name], "first")
    again = replayed(tmp_path, first)
    assert rows(again) == rows(first)
    for table_name in ("timeline", "replicas"):
        pd.testing.assert_frame_equal(*(pd.read_parquet(one / f"{table_name}.parquet") for one in (first, again)))
    assert pq.read_schema(again / "requests.parquet").names == pq.read_schema(first / "requests.parquet").names
    third = replayed(tmp_path, again, "third")
    assert (third / "requests.parquet").read_bytes() == (again / "requests.parquet").read_bytes()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated(tmp_path_factory.mktemp("first"), TRAFFIC["classes and prefixes"], "first")


def again(first: Path, **settings: Any) -> Traffic:
    return KINDS["table"](path=str(first / "requests.parquet"), **settings)


def test_the_run_is_one_that_refuses_cuts_and_scales(first: Path) -> None:
    """Else the test above proves little."""
    requests = pd.read_parquet(first / "requests.parquet")
    assert {"over_max_model_len", "rate_limit"} <= set(requests["reason"].dropna())
    assert (requests["num_output_tokens"] < requests["num_asked_tokens"])[requests["status"] == "finished"].any()
    assert pd.read_parquet(first / "timeline.parquet")["num_ready"].nunique() > 1
    assert requests["num_cached_tokens"].sum() > 0
    assert requests["arrived_at_s"].iloc[0] > 0


def test_rejected_requests_ask_again_for_all_that_they_asked(first: Path) -> None:
    requests = pd.read_parquet(first / "requests.parquet")
    arrivals = np.concatenate(list(again(first).stream(1).chunks()))
    assert arrivals["arrived_at_s"].tolist() == requests["arrived_at_s"].tolist()
    assert arrivals["num_output_tokens"].tolist() == requests["num_asked_tokens"].tolist()
    assert requests["num_asked_tokens"][requests["status"] == "rejected"].min() >= 1


def test_what_was_known_of_the_whole_traffic_stays_known(first: Path) -> None:
    original = KINDS["poisson"](**{key: value for key, value in TRAFFIC["classes and prefixes"].items() if key != "kind"})
    whole = again(first)
    assert whole.class_names == original.class_names == ("plain", "limited", "cut", "unheard")
    assert whole.ends_at_s == original.ends_at_s == 90.0
    assert whole.mean_prompt_tokens == original.mean_prompt_tokens
    assert whole.mean_output_tokens == original.mean_output_tokens
    assert whole.shares_tokens


@pytest.mark.parametrize("part", [{"limit": 20}, {"start_s": 5.0}, {"end_s": 50.0}, {"rate_scale": 0.5}])
def test_of_a_part_of_the_run_the_means_and_the_end_are_its_own(first: Path, part: dict[str, Any]) -> None:
    some, whole = again(first, **part), again(first)
    assert some.ends_at_s < 90.0
    assert some.mean_prompt_tokens != whole.mean_prompt_tokens


def test_a_stretched_run_ends_later_and_asks_no_more(first: Path) -> None:
    slow, whole = again(first, time_scale=2.0), again(first)
    assert slow.ends_at_s == 180.0
    assert slow.mean_prompt_tokens == whole.mean_prompt_tokens
    stretched, plain = (np.concatenate(list(one.stream(1).chunks()))["arrived_at_s"] for one in (slow, whole))
    assert stretched.tolist() == (2 * plain).tolist()


def test_a_window_counts_from_the_start_of_the_run(first: Path) -> None:
    requests = pd.read_parquet(first / "requests.parquet")
    arrivals = np.concatenate(list(again(first, start_s=30.0, end_s=40.0).stream(1).chunks()))
    inside = requests["arrived_at_s"].between(30.0, 40.0, inclusive="left")
    np.testing.assert_allclose(arrivals["arrived_at_s"], requests["arrived_at_s"][inside] - 30.0, atol=1e-12)


def test_rows_that_somebody_has_picked_keep_their_instants_and_ask_in_full(first: Path, tmp_path: Path) -> None:
    requests = pd.read_parquet(first / "requests.parquet")
    requests[requests["class"] == "cut"].to_parquet(tmp_path / "requests.parquet")
    some = again(tmp_path)
    arrivals = np.concatenate(list(some.stream(1).chunks()))
    assert arrivals["arrived_at_s"].tolist() == requests["arrived_at_s"][requests["class"] == "cut"].tolist()
    assert arrivals["num_output_tokens"].max() > 20
    assert some.class_names == ("cut",)
    assert some.ends_at_s == arrivals["arrived_at_s"][-1]


def test_other_columns_make_it_a_table_like_any(first: Path) -> None:
    names = {"arrived_at": "finished_at_s"}
    other = again(first, columns=names, time_unit="s", bad_rows="drop", sort_rows=True)
    assert next(other.stream(1).chunks())["arrived_at_s"][0] == 0.0
    with pytest.raises(ValidationError, match="time_unit: missing; one of s, ms"):
        again(first, columns=names)


def test_a_unit_that_it_does_not_count_in_is_refused(first: Path) -> None:
    assert again(first, time_unit="s").ends_at_s == 90.0
    with pytest.raises(ValidationError, match=r"time_unit is ms; a run's own requests\.parquet counts in s"):
        again(first, time_unit="ms")


def test_segments_that_do_not_fit_are_named(first: Path, tmp_path: Path) -> None:
    requests = pq.read_table(first / "requests.parquet").to_pylist()
    for wrong in ({"segment_tokens": [10**6]}, {"segment_tokens": [0]}, {"segment_tokens": []}, {"segment_ids": None}):
        changed = [requests[0] | {"segment_ids": [7], "segment_tokens": [5]} | wrong, *requests[1:]]
        pq.write_table(pa.Table.from_pylist(changed), tmp_path / "requests.parquet")
        with pytest.raises(TraceError, match=r"row 1: segment_ids is .* and segment_tokens .*; allowed: lists of equal length"):
            list(again(tmp_path).stream(1).chunks())
        dropped = again(tmp_path, bad_rows="drop").stream(1)
        assert sum(map(len, dropped.chunks())) == len(requests) - 1
        assert dropped.counts["dropped_unreadable"] == 1


def test_segments_may_cover_all_of_a_request_and_no_more(first: Path, tmp_path: Path) -> None:
    requests = pq.read_table(first / "requests.parquet").to_pylist()
    num_tokens = requests[0]["num_prompt_tokens"] + requests[0]["num_asked_tokens"]
    for length, num_dropped in ((num_tokens, 0), (num_tokens + 1, 1)):
        changed = [requests[0] | {"segment_ids": [7], "segment_tokens": [length]}, *requests[1:]]
        pq.write_table(pa.Table.from_pylist(changed), tmp_path / "requests.parquet")
        stream = again(tmp_path, bad_rows="drop").stream(1)
        assert sum(map(len, stream.chunks())) == len(requests) - num_dropped


def test_of_rows_picked_with_all_that_the_file_says_the_means_and_the_end_are_their_own(first: Path, tmp_path: Path) -> None:
    requests = pq.read_table(first / "requests.parquet")
    said = pq.read_metadata(first / "requests.parquet").metadata  # of the whole; not all versions of pyarrow carry it over
    pq.write_table(requests.slice(0, 100).replace_schema_metadata(said), tmp_path / "requests.parquet")
    some = again(tmp_path)
    assert some.mean_prompt_tokens == np.mean(requests["num_prompt_tokens"][:100])
    assert some.ends_at_s == requests["arrived_at_s"][99].as_py()
    assert some.class_names == again(first).class_names
