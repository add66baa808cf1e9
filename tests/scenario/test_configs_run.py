"""The recorded configs in full: every row of the trace is accounted for. (All configs with --smoke: test_shipped_configs.)"""

import json
from pathlib import Path

import pandas as pd
import pytest

from experiments.cli import main
from tests.commands import ROOT
from tests.shared import shared

CONFIGS = ROOT / "configs"
NUM_ROWS = {"conv": 19_366, "code": 8_819}


@pytest.mark.parametrize("name", NUM_ROWS)
def test_every_row_of_the_azure_trace_is_kept_or_dropped_with_a_reason(name: str, tmp_path: Path) -> None:
    """kept + dropped = rows, and what is kept ends in requests.parquet with the row's own tokens."""
    trace = shared(f"data/traces/azure2023/AzureLLMInferenceTrace_{name}.csv")
    config = str(CONFIGS / f"azure_{name}.yaml")
    assert main([config, "--jobs", "1", "--out", str(tmp_path), "--set", f"traffic.path={trace}"]) == 0
    folder = tmp_path / f"azure_{name}"
    counts = json.loads((folder / "manifest.json").read_text())["counts"]["traffic"]
    dropped = {reason: rows for reason, rows in counts.items() if reason.startswith("dropped_")}
    assert counts["read"] == NUM_ROWS[name]
    assert counts["kept"] + sum(dropped.values()) == NUM_ROWS[name]
    requests = pd.read_parquet(folder / "requests.parquet")
    assert len(requests) == counts["kept"]
    # Neither file has a row that must be dropped, so nothing is missing, and each request is its row.
    assert dropped == {}
    rows = pd.read_csv(trace)
    assert (requests["num_prompt_tokens"] == rows["ContextTokens"]).all()
    finished = requests["status"] == "finished"
    assert (requests["num_output_tokens"][finished] == rows["GeneratedTokens"][finished]).all()
    assert not requests["status"].isin(["failed", "timed_out", "in_flight"]).any()
    summary = json.loads((folder / "summary.json").read_text())["all"]["requests"]
    assert summary["arrived"] == NUM_ROWS[name]
    assert summary["finished"] + summary["rejected"] == NUM_ROWS[name]
