"""What every kind of traffic must keep, whoever wrote it."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.records import ARRIVAL, SEGMENT
from traces import KINDS, Traffic

LENGTHS = {
    "prompt": {"kind": "lognormal", "mean": 2000.0, "p99": 8000.0, "max": 30_000},
    "output": {"kind": "exponential", "mean": 400.0},
    "correlation": 0.3,
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "diurnal": {"peak_per_s": 3.0, "trough_per_s": 0.5, "cv": 1.5, "noise": 0.3, "duration_s": 7200.0},
    "poisson": {"rate_per_s": 2.0, "duration_s": 3600.0},
    "gamma": {"rate_per_s": 2.0, "cv": 2.0, "duration_s": 3600.0, "prefixes": {"num": 9, "tokens": 700, "share": 0.6}},
    "constant": {"rate_per_s": 2.0, "duration_s": 3600.0},
    "concurrent": {"limit": 2000, "max_concurrency": 64, "prefixes": {"num": 9, "tokens": 700, "share": 0.6}},
    "azure": {"rate_scale": 1.5},
    "mooncake": {"rate_scale": 2.5, "trace_block_tokens": 32},
    "table": {"rate_scale": 1.7, "time_unit": "iso8601", "time_scale": 2.0},
}
WITH_CONTENT = ("gamma", "concurrent", "mooncake", "table")
COLUMNS = {
    "arrived_at": "TIMESTAMP",
    "num_prompt_tokens": "ContextTokens",
    "num_output_tokens": "GeneratedTokens",
    "prefix_id": "app",
    "num_prefix_tokens": "app_tokens",
    "session_id": "user",
}


def settings_of(kind: str, folder: Path) -> dict[str, Any]:
    if kind == "mooncake":
        return EXAMPLES[kind] | {"path": str(mooncake_file(folder / "trace.jsonl"))}
    if kind not in ("azure", "table"):
        return EXAMPLES[kind] | {"lengths": LENGTHS}
    path = folder / "trace.csv"
    stamps = np.datetime64("2023-11-16T18:15:46", "ms") + np.arange(3000) * 700
    rows = [
        f"{str(stamp).replace('T', ' ')}0000,{100 + i % 7},{1 + i % 50},{['', 'app'][i % 2]},{i % 60},{i % 300 or ''}"
        for i, stamp in enumerate(stamps)
    ]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens,app,app_tokens,user\n" + "\n".join(rows))
    columns = {"columns": COLUMNS} if kind == "table" else {}
    return EXAMPLES[kind] | {"path": str(path)} | columns


def mooncake_file(path: Path) -> Path:
    with path.open("w") as file:
        for i in range(3000):
            ids = [i % 5, *range(10 * (i % 900), 10 * (i % 900) + 3)]
            row = {"timestamp": 3000 * (i // 10), "input_length": 100 + i % 7, "output_length": 1 + i % 50, "hash_ids": ids}
            file.write(json.dumps(row) + "\n")
    return path


@pytest.fixture(params=KINDS)
def traffic(request: pytest.FixtureRequest, tmp_path: Path) -> Traffic:
    kind = str(request.param)
    return KINDS[kind](**settings_of(kind, tmp_path))


def arrivals(traffic: Traffic, seed: int = 1, chunk_rows: int = 100_000) -> Any:
    return np.concatenate(list(traffic.stream(seed, chunk_rows).chunks()))


def test_arrivals_are_sorted_whole_and_within_the_known_end(traffic: Traffic) -> None:
    rows = arrivals(traffic)
    assert rows.dtype == ARRIVAL
    assert len(rows) > 500
    assert (np.diff(rows["arrived_at_s"]) >= 0).all()
    assert rows["arrived_at_s"][0] >= 0
    assert rows["arrived_at_s"][-1] <= traffic.ends_at_s
    assert rows["num_prompt_tokens"].min() >= 1
    assert rows["num_output_tokens"].min() >= 1
    assert set(rows["class_id"]) <= set(range(len(traffic.class_names)))
    assert 0 <= rows["follows"].min() <= rows["follows"].max() <= traffic.max_follows
    assert rows["delay_s"].min() >= 0


def test_same_seed_same_bytes_however_it_is_cut(traffic: Traffic) -> None:
    whole = arrivals(traffic).tobytes()
    for chunk_rows in (3, 1000):
        assert arrivals(traffic, chunk_rows=chunk_rows).tobytes() == whole


def segments(traffic: Traffic, chunk_rows: int = 100_000) -> Any:
    stream = traffic.stream(1, chunk_rows)
    return np.concatenate([stream.segments_of(rows) for rows in stream.chunks()])


def test_segments_are_within_their_rows_and_the_same_however_it_is_cut(traffic: Traffic) -> None:
    whole = segments(traffic)
    assert whole.dtype == SEGMENT
    assert (whole["num_tokens"] >= 1).all()
    rows = arrivals(traffic)
    row = np.repeat(np.arange(len(rows)), rows["num_segments"])
    tokens = np.bincount(row, weights=whole["num_tokens"], minlength=len(rows))
    assert (tokens <= rows["num_prompt_tokens"] + rows["num_output_tokens"]).all()
    for chunk_rows in (3, 1000):
        assert segments(traffic, chunk_rows).tobytes() == whole.tobytes()


def test_where_segments_begin_never_falls(traffic: Traffic) -> None:
    rows = arrivals(traffic)
    assert (np.diff(rows["first_segment"]) >= 0).all()
    assert rows["num_segments"].min() >= 0


def test_only_traffic_that_knows_content_has_segments(traffic: Traffic) -> None:
    has_content = type(traffic) in [KINDS[kind] for kind in WITH_CONTENT]
    rows = arrivals(traffic)
    assert (len(segments(traffic)) > 0) == rows["num_segments"].any() == rows["first_segment"].any() == has_content


def test_chunks_are_no_larger_than_asked_for(traffic: Traffic) -> None:
    assert max(len(rows) for rows in traffic.stream(1, chunk_rows=64).chunks()) <= 64


def test_every_row_is_accounted_for(traffic: Traffic) -> None:
    stream = traffic.stream(3)
    num_rows = sum(len(rows) for rows in stream.chunks())
    counts = stream.counts
    assert counts["kept"] == num_rows
    dropped = sum(num for reason, num in counts.items() if reason.startswith("dropped"))
    assert counts["read"] + counts["copied"] == counts["kept"] + dropped


def test_limit_takes_the_first_requests(traffic: Traffic) -> None:
    some = type(traffic)(**traffic.model_dump() | {"limit": 123})
    np.testing.assert_array_equal(arrivals(some), arrivals(traffic)[:123])


def test_pickled_copy_gives_the_same_traffic(traffic: Traffic) -> None:
    copy = pickle.loads(pickle.dumps(traffic))
    assert copy == traffic
    assert arrivals(copy).tobytes() == arrivals(traffic).tobytes()


def test_known_rate_and_means_are_those_of_the_arrivals(traffic: Traffic) -> None:
    rows = arrivals(traffic, seed=5)
    ends_at_s = traffic.ends_at_s or 1.0  # all at once
    expected = traffic.mean_rate_per_s(0.0, ends_at_s) * ends_at_s
    assert len(rows) == pytest.approx(expected, rel=0.25)  # gamma gaps and noise vary; exact tests are in theory/
    for name, mean in (
        ("num_prompt_tokens", traffic.mean_prompt_tokens),
        ("num_output_tokens", traffic.mean_output_tokens),
    ):
        assert rows[name].mean() == pytest.approx(mean, abs=5 * rows[name].std() / len(rows) ** 0.5 + 1e-9)


def test_known_rate_adds_up_over_windows(traffic: Traffic) -> None:
    half = (traffic.ends_at_s or 1.0) / 2  # all at once
    parts = traffic.mean_rate_per_s(0, half) + traffic.mean_rate_per_s(half, 2 * half)
    assert parts / 2 == pytest.approx(traffic.mean_rate_per_s(0, 2 * half))


def test_asking_changes_nothing(traffic: Traffic) -> None:
    before = arrivals(traffic).tobytes()
    settings = traffic.model_dump()
    traffic.describe(), traffic.class_names, traffic.mean_rate_per_s(10.0, 20.0)
    assert traffic.model_dump() == settings
    assert arrivals(traffic).tobytes() == before


SCRIPT = """
import hashlib, sys
from traces import KINDS
lengths = {"prompt": {"kind": "lognormal", "mean": 9.0, "p90": 20.0}, "output": {"kind": "uniform", "low": 1, "high": 9}}
mix = [{"name": name, "share": 1, "lengths": lengths} for name in "abc"]
day = KINDS["diurnal"](peak_per_s=2, trough_per_s=1, noise=0.2, duration_s=3600, classes=mix)
print(hashlib.sha256(b"".join(rows.tobytes() for rows in day.stream(1).chunks())).hexdigest())
"""


def test_w12_another_process_and_hash_seed_give_the_same_bytes() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(digests) == 1


def test_every_setting_is_described() -> None:
    for kind, traffic in KINDS.items():
        for name, field in traffic.model_fields.items():
            assert field.description, f"{kind}.{name} has no description"
