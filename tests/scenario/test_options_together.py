"""Options that are right each on its own, and were not together: whole configs, as small as they fail."""

from pathlib import Path
from typing import Any

import yaml

from experiments import run
from experiments.running import Result

LENGTHS = {"prompt": {"kind": "fixed", "tokens": 100}, "output": {"kind": "fixed", "tokens": 5}}


def run_pool(folder: Path, engine: dict[str, Any], traffic: dict[str, Any] | None = None, **more: Any) -> Result:
    """Runs one pool of a small model under 20 requests."""
    pool = {
        "name": "main",
        "model": "qwen3-0.6b",
        "gpu": "l4",
        "replicas": {"kind": "surrogate", "max_model_len": 1000, **engine},
        "autoscaler": {"kind": "fixed", "replicas": 1},
    }
    sent = {"kind": "constant", "rate_per_s": 10, "duration_s": 2, "lengths": LENGTHS, **(traffic or {})}
    path = folder / "together.yaml"
    document = {"traffic": sent, "router": {"kind": "random"}, "pools": [pool | more.pop("pool", {})], **more}
    path.write_text(yaml.safe_dump(document))
    return run(path, out=folder, progress=False)


def test_a_queue_sorted_by_prefix_has_a_cache_to_look_in_though_the_traffic_shares_nothing(tmp_path: Path) -> None:
    result = run_pool(tmp_path, {"scheduling_policy": "lpm"}, pool={"autoscaler": {"kind": "fixed", "replicas": 3}})
    assert (result.requests["status"] == "finished").all()
    assert not result.requests["num_cached_tokens"].any()
