"""The `gateway` section of a config: who it turns away is counted with the reason, and what it cannot mean is said."""

from pathlib import Path

import pytest

from experiments import run
from sim.errors import ConfigError
from tests.commands import ROOT

CONFIG = ROOT / "configs" / "cpu_overlap.yaml"
ONE_RUN = ["sweep=null", "traffic.duration_s=30"]


def test_a_class_gets_its_rate_and_one_burst(tmp_path: Path) -> None:
    """40 requests/s of 900 + 150 tokens are 42,000 tokens/s; 10,500 are let in, and at the start 21,000 more: about 3 in 10."""
    limit = "gateway.rate_limits={default: {tokens_per_s: 10500, capacity_tokens: 21000}}"
    rows = run(CONFIG, out=tmp_path, sets=[*ONE_RUN, limit], progress=False).requests
    served = rows[rows.status == "finished"]
    used = int((served.num_prompt_tokens + served.num_output_tokens).sum())
    assert set(rows.reason[rows.status == "rejected"]) == {"rate_limit"}
    at_most = 10_500 * rows.arrived_at_s.max() + 21_000
    assert at_most - 1850 <= used <= at_most  # the longest request is of 1,850 tokens: more than that is never left


def test_admission_is_counted_apart(tmp_path: Path) -> None:
    admission = "gateway.admission={ttft_s: 0.05, prefill_tokens_per_s: 10000}"
    rows = run(CONFIG, out=tmp_path, sets=[*ONE_RUN, admission], progress=False).requests
    refused = rows.status == "rejected"
    assert set(rows.reason[refused]) == {"predicted_ttft"}
    assert rows.num_prompt_tokens[~refused].max() <= 500 < rows.num_prompt_tokens[refused].max()  # alone: 0.05 s x 10,000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("gateway.rate_limits={chat: {tokens_per_s: 1, capacity_tokens: 1}}", "the traffic has no class named 'chat'"),
        ("gateway.rate_limits={default: {tokens_per_s: 0, capacity_tokens: 1}}", "tokens_per_s"),
        ("gateway.admission={ttft_s: 1.0}", "prefill_tokens_per_s"),
    ],
)
def test_what_it_cannot_mean_is_said(given: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        run(CONFIG, out=tmp_path, sets=[*ONE_RUN, given], progress=False)
