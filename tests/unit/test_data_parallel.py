"""Replicas of several data-parallel ranks: each rank is an engine of its own, a machine is all of its ranks."""

from pathlib import Path
from typing import Any

import pytest

from experiments import run
from replicas.catalog import gpu, model
from replicas.surrogate import Surrogate

CONFIG = """
name: ranks
traffic:
  kind: diurnal
  peak_per_s: 5
  trough_per_s: 5
  flash_crowds: [{{at_s: 30, height_per_s: 200, width_s: 20}}]
  duration_s: 120
  lengths: {{prompt: {{kind: uniform, low: 100, high: 2000}}, output: {{kind: uniform, low: 50, high: 400}}}}
router: {{kind: round_robin}}
pools:
  - name: main
    model: llama-3.1-8b
    gpu: h100-sxm
    replicas: {{kind: surrogate, data_parallel_size: {ranks}, max_model_len: 8000, num_gpu_blocks: 600}}
    autoscaler: {autoscaler}
    lifecycle: {{provision_s: 5, image_s: 0, weights_gb_per_s: 100, start_s: 0, drain_timeout_s: {drain_timeout_s}}}
    price_per_gpu_hour: 3.6
"""


def result(folder: Path, ranks: int, autoscaler: str, drain_timeout_s: int = 600) -> Any:
    folder.mkdir(parents=True)
    path = folder / "ranks.yaml"
    path.write_text(CONFIG.format(ranks=ranks, autoscaler=autoscaler, drain_timeout_s=drain_timeout_s))
    return run(path, out=folder, progress=False)


def test_two_machines_of_two_ranks_serve_as_four_of_one(tmp_path: Path) -> None:
    """Round robin over four engines either way: every request sees the same, and so does the bill."""
    pairs = result(tmp_path / "pairs", 2, "{kind: fixed, replicas: 2}")
    single = result(tmp_path / "single", 1, "{kind: fixed, replicas: 4}")
    instants = ["arrived_at_s", "scheduled_at_s", "first_token_at_s", "finished_at_s"]
    assert pairs.requests[instants].equals(single.requests[instants])
    assert pairs.requests["replica"].nunique() == 2
    assert pairs.summary["gpu_hours"][0] == pytest.approx(single.summary["gpu_hours"][0], rel=1e-12)
    assert list(pairs.replicas["num_gpus"]) == [2, 2]


@pytest.mark.parametrize("drain_timeout_s", [0, 600])
def test_a_machine_is_released_when_its_last_rank_is_empty(tmp_path: Path, drain_timeout_s: int) -> None:
    """Machines come and go with the load; the run's own invariants see that no request and no GPU-second is lost."""
    scaled = "{kind: queue_target, min_replicas: 1, max_replicas: 4, interval_s: 5, scale_down_stabilization_s: 0}"
    ran = result(tmp_path / "scaled", 2, scaled, drain_timeout_s)
    machines, requests = ran.replicas, ran.requests
    assert (requests["status"] == "finished").all()
    gone = machines[machines["reason"] != "end of run"]
    assert len(gone) > 0
    for machine in gone.itertuples():
        last = requests[requests["replica"] == machine.id]["finished_at_s"].max()
        assert not last > machine.released_at_s


def test_ranks_with_experts_are_refused() -> None:
    with pytest.raises(ValueError, match="data_parallel_size 2: mixtral-8x7b has experts"):
        Surrogate(data_parallel_size=2, tensor_parallel_size=4).engine(model("mixtral-8x7b"), gpu("h100-sxm"))
