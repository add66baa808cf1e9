"""Two pools of different kinds in one fleet."""

from pathlib import Path

import pandas as pd

from experiments import run

CONFIG = """
traffic:
  kind: poisson
  rate_per_s: 10
  duration_s: 60
  classes:
    - {name: chat, share: 0.9, lengths: {prompt: {kind: fixed, tokens: 500}, output: {kind: fixed, tokens: 50}}}
    - {name: doc, share: 0.1, lengths: {prompt: {kind: fixed, tokens: 20000}, output: {kind: fixed, tokens: 50}}}
slo: {ttft_s: {p99: 1.0}, classes: {doc: {ttft_s: {p99: 5.0}}}}
router: {kind: random}
pools:
  - name: long
    model: llama-3.1-8b
    gpu: h100-sxm
    replicas: {kind: surrogate}
    autoscaler: {kind: fixed, replicas: 1}
    price_per_gpu_hour: 2.0
  - name: short
    model: llama-3.1-8b
    gpu: l40s
    replicas: {kind: surrogate, max_model_len: 4096}
    autoscaler: {kind: fixed, replicas: 2}
    price_per_gpu_hour: 1.0
"""


def test_a_long_prompt_is_offered_only_to_the_pool_that_can_serve_it(tmp_path: Path) -> None:
    config = tmp_path / "two_pools.yaml"
    config.write_text(CONFIG)
    result = run(config, out=tmp_path, progress=False)
    requests: pd.DataFrame = result.requests
    assert (requests["status"] == "finished").all()
    assert set(requests[requests["class"] == "doc"]["pool"]) == {"long"}
    assert set(requests[requests["class"] == "chat"]["pool"]) == {"long", "short"}
    machines = result.replicas
    hours = machines["released_at_s"].max() / 3600
    assert abs(machines["dollars"].sum() - hours * (2.0 + 2 * 1.0)) < 1e-9  # one GPU at $2, two at $1


def test_what_no_pool_could_serve_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = tmp_path / "two_pools.yaml"
    config.write_text(CONFIG.replace("replicas: {kind: surrogate}", "replicas: {kind: surrogate, max_model_len: 8192}"))
    requests = run(config, out=tmp_path, progress=False).requests
    refused = requests[requests["status"] == "rejected"]
    assert set(refused["class"]) == {"doc"}
    assert set(refused["reason"]) == {"over_max_model_len"}
    assert requests[requests["class"] == "chat"]["status"].eq("finished").all()
