"""Same config, same seed, same bytes: in any process, with any PYTHONHASHSEED, compiled or not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import run
from tests.commands import ROOT

TABLES = ("requests.parquet", "timeline.parquet", "replicas.parquet", "summary.parquet", "summary.json", "config.yaml")

# Everything that draws from chance: bursts, noise, classes, tied lengths, start-up times, the router; and everything that
# could be iterated in the order of a hash: two pools, classes, targets by class.
CONFIG = """
name: chancy
traffic:
  kind: diurnal
  peak_per_s: 15
  trough_per_s: 4
  peak_hour: 0.1
  duration_s: 400
  cv: 2
  noise: 0.2
  noise_interval_s: 60
  classes:
    - name: chat
      share: 3
      lengths:
        prompt: {kind: lognormal, mean: 700, p99: 4000, max: 6000}
        output: {kind: exponential, mean: 120, max: 1500}
        correlation: 0.5
    - name: batch
      share: 1
      lengths: {prompt: {kind: uniform, low: 100, high: 3000}, output: {kind: fixed, tokens: 50}}
slo: {ttft_s: {p99: 1.0}, tpot_s: {p90: 0.05}, classes: {batch: {e2e_s: {p90: 30}}}}
router: {kind: power_of_d_choices, scrape_interval_s: 0.5}
timeline_interval_s: 20
pools:
  - name: small
    model: llama-3.1-8b
    gpu: l40s
    replicas: {kind: surrogate, max_model_len: 8000, num_gpu_blocks: 520, async_scheduling: false}
    lifecycle: {provision_s: {mean_s: 20, std_s: 10}, image_s: 5, weights_gb_per_s: 4, start_s: 5, drain_timeout_s: 5}
    autoscaler: {kind: queue_target, min_replicas: 1, max_replicas: 8, scale_down_stabilization_s: 0, interval_s: 10}
    price_per_gpu_hour: 1.0
  - name: large
    model: llama-3.1-8b
    gpu: h100-sxm
    replicas: {kind: surrogate, max_model_len: 8000, num_gpu_blocks: 520}
    autoscaler: {kind: fixed, replicas: 1}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repeatability") / "chancy.yaml"
    path.write_text(CONFIG)
    return path


SCRIPT = "import sys; from experiments import run; run(sys.argv[1], out=sys.argv[2], sets=sys.argv[3:], progress=False)"


def started(config: Path, out: Path, *sets: str, **environment: str) -> "subprocess.Popen[bytes]":
    """Starts a run in a process of its own."""
    arguments = [sys.executable, "-c", SCRIPT, str(config), str(out), *sets]
    return subprocess.Popen(arguments, env=os.environ | environment, cwd=ROOT)


def differing(one: Path, other: Path) -> list[str]:
    return [name for name in TABLES if (one / "chancy" / name).read_bytes() != (other / "chancy" / name).read_bytes()]


def test_two_processes_with_different_hash_seeds_write_the_same_bytes(config: Path, tmp_path: Path) -> None:
    runs = [started(config, tmp_path / seed, PYTHONHASHSEED=seed) for seed in ("0", "4242")]
    assert [one.wait() for one in runs] == [0, 0]
    assert differing(tmp_path / "0", tmp_path / "4242") == []
    requests = run(config, out=tmp_path / "here", progress=False).requests
    assert differing(tmp_path / "0", tmp_path / "here") == []
    # ... and it was no empty comparison
    assert len(requests) > 3000
    assert set(requests["class"]) == {"chat", "batch"}
    assert set(requests["pool"]) == {"small", "large"}
    assert requests["num_preemptions"].sum() > 0


def test_another_seed_is_another_day(config: Path, tmp_path: Path) -> None:
    one, other = (run(config, out=tmp_path / str(seed), seed=seed, progress=False).requests for seed in (1, 2))
    assert len(one) != len(other) or (one["arrived_at_s"] != other["arrived_at_s"]).any()


def test_traffic_is_the_same_whatever_router_and_autoscaler(config: Path, tmp_path: Path) -> None:
    given = ["id", "class", "arrived_at_s", "num_prompt_tokens"]  # output tokens are those delivered: all, as all finish
    base = run(config, out=tmp_path / "base", progress=False).requests
    changes = {
        "router": ["router={kind: round_robin}"],
        "live": ["router.scrape_interval_s=0"],
        "scaler": ["pools.small.autoscaler={kind: forecast, forecaster: oracle, max_replicas: 8}"],
        "fleet": ["pools.small.autoscaler={kind: fixed, replicas: 3}", "pools.large.gpu=h200-sxm"],
    }
    for name, sets in changes.items():
        other = run(config, out=tmp_path / name, sets=sets, progress=False).requests
        assert (other["status"] == "finished").all()
        assert other[given].equals(base[given])
        assert other["num_output_tokens"].equals(base["num_output_tokens"])
        assert not other["finished_at_s"].equals(base["finished_at_s"])


def test_plain_python_gives_the_same_requests_as_compiled_code(config: Path, tmp_path: Path) -> None:
    """NUMBA_DISABLE_JIT=1 runs the same source without a compiler: the same floats, to the last bit."""
    quick = "{provision_s: {mean_s: 0.5, std_s: 0.5}, image_s: 0, weights_gb_per_s: 100, start_s: 0, capture_s: 0}"
    sets = ["traffic.limit=80", "traffic.rate_scale=4"]
    sets += ["pools.small.autoscaler.interval_s=0.5", f"pools.small.lifecycle={quick}"]
    plain = started(config, tmp_path / "plain", *sets, NUMBA_DISABLE_JIT="1")
    requests = run(config, out=tmp_path / "compiled", sets=sets, progress=False).requests
    assert plain.wait() == 0
    assert differing(tmp_path / "plain", tmp_path / "compiled") == []
    assert len(requests) == 80
    assert requests["num_preemptions"].sum() > 0
    assert requests["replica"].nunique() > 3
