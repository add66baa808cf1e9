"""Two pools of different kinds in one fleet."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from experiments import run
from experiments.cli import main
from sim.errors import ConfigError

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


MODELS = """
traffic:
  kind: poisson
  rate_per_s: 120
  duration_s: 60
  classes:
    - {name: small, share: 3, lengths: {prompt: {kind: fixed, tokens: 500}, output: {kind: fixed, tokens: 50}}}
    - {name: large, share: 1, lengths: {prompt: {kind: fixed, tokens: 3000}, output: {kind: fixed, tokens: 100}}}
classes: {small: {model: llama-3.1-8b}, large: {model: llama-3.1-70b}}
slo: {tpot_s: {p90: 0.05}}
router: {kind: least_tokens}
pools:
  - name: cheap
    model: llama-3.1-8b
    gpu: l40s
    replicas: {kind: surrogate, max_model_len: 4096}
    autoscaler: {kind: forecast, forecaster: oracle, min_replicas: 1, max_replicas: 40}
  - name: good
    model: llama-3.1-70b
    gpu: h100-sxm
    replicas: {kind: surrogate, tensor_parallel_size: 4, quantization: fp8, max_model_len: 4096}
    autoscaler: {kind: forecast, forecaster: oracle, min_replicas: 1, max_replicas: 40}
"""


def test_a_request_goes_to_a_pool_of_its_model_which_is_sized_for_such_requests_alone(tmp_path: Path) -> None:
    """Beside another model's pool, each has the machines, and the capacity, that it has for its own traffic by itself."""
    config = tmp_path / "two_models.yaml"
    config.write_text(MODELS)
    both = run(config, out=tmp_path, progress=False)
    requests = both.requests
    assert (requests["status"] == "finished").all()
    assert set(zip(requests["class"], requests["pool"], strict=True)) == {("small", "cheap"), ("large", "good")}
    for name, index, rate_per_s in (("small", 0, 90), ("large", 1, 30)):
        document = yaml.safe_load(MODELS)
        kind = document["traffic"].pop("classes")[index]
        document["traffic"] |= {"rate_per_s": rate_per_s, "lengths": kind["lengths"]}
        document |= {"classes": {}, "pools": [document["pools"][index]]}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(document))
        alone = run(tmp_path / f"{name}.yaml", out=tmp_path, progress=False)
        pool = document["pools"][0]["name"]
        beside = both.timeline[both.timeline["pool"] == pool]
        assert beside["desired"].max() == alone.timeline["desired"].max() > 1
        assert beside["capacity_per_s"].max() == pytest.approx(alone.timeline["capacity_per_s"].max(), rel=1e-12)


@pytest.mark.parametrize(("classes", "silent"), [("{}", "small"), ("{small: {model: llama-3.1-8b}}", "large")])
def test_requests_that_name_no_model_go_to_any_and_the_report_says_so(classes: str, silent: str, tmp_path: Path) -> None:
    document = yaml.safe_load(MODELS) | {"classes": yaml.safe_load(classes)}
    (tmp_path / "silent.yaml").write_text(yaml.safe_dump(document))
    result = run(tmp_path / "silent.yaml", out=tmp_path, progress=False)
    requests = result.requests
    assert set(requests[requests["class"] == silent]["pool"]) == {"cheap", "good"}
    said = f"pools serve llama-3.1-8b and llama-3.1-70b, and classes.{silent}.model does not say which of them"
    assert any(said in line for line in json.loads((result.folder / "summary.json").read_text())["warnings"])


def test_a_class_that_asks_for_a_model_of_no_pool_is_refused(tmp_path: Path) -> None:
    document = yaml.safe_load(MODELS) | {"classes": {"small": {"model": "qwen3-0.6b"}}}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(document))
    message = "classes.small.model: no pool serves qwen3-0.6b; served: llama-3.1-8b, llama-3.1-70b"
    with pytest.raises(ConfigError, match=re.escape(message)):
        run(tmp_path / "wrong.yaml", out=tmp_path, progress=False)


def test_a_pool_whose_model_nobody_asks_for_has_no_capacity_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = MODELS.replace("large: {model: llama-3.1-70b}", "large: {model: llama-3.1-8b}")
    (tmp_path / "unasked.yaml").write_text(text)
    assert main([str(tmp_path / "unasked.yaml"), "--dry-run"]) == 0
    assert "no capacity: none of the traffic's requests asks for its model" in capsys.readouterr().out
