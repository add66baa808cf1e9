"""Every kind of traffic keeps the contract."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.contracts import TrafficContract
from traces import KINDS

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


class TestEveryTraffic(TrafficContract):
    @pytest.fixture(autouse=True, params=KINDS)
    def _each(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.traffic = KINDS[request.param](**settings_of(request.param, tmp_path))


def test_the_kinds_that_know_content_are_these(tmp_path: Path) -> None:
    assert [kind for kind in KINDS if KINDS[kind](**settings_of(kind, tmp_path)).shares_tokens] == list(WITH_CONTENT)


SCRIPT = """
import hashlib, sys
from traces import KINDS
lengths = {"prompt": {"kind": "lognormal", "mean": 9.0, "p90": 20.0}, "output": {"kind": "uniform", "low": 1, "high": 9}}
mix = [{"name": name, "share": 1, "lengths": lengths} for name in "abc"]
day = KINDS["diurnal"](peak_per_s=2, trough_per_s=1, noise=0.2, duration_s=3600, classes=mix)
print(hashlib.sha256(b"".join(rows.tobytes() for rows in day.stream(1).chunks())).hexdigest())
"""


def test_another_process_and_hash_seed_give_the_same_bytes() -> None:
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
