"""Replicas of several data-parallel ranks: each rank is an engine of its own, a machine is all of its ranks."""

from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest

from experiments import run
from experiments.contracts.fleets import arrivals, engine
from experiments.contracts.fleets import run as run_fleet
from planning.steps import equal_requests
from replicas.calibration.file import write
from replicas.calibration.fit import predicted_s
from replicas.calibration.shapes import Shape
from replicas.catalog import gpu, model
from replicas.step_time import step_time, step_time_among
from replicas.surrogate import Surrogate
from sim.records import BATCH, records
from tests.unit.replicas.calibration.test_calibrated import a_calibration

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
    model: {model}
    gpu: h100-sxm
    replicas: {{kind: surrogate, data_parallel_size: {ranks}, max_model_len: 8000, num_gpu_blocks: 600}}
    autoscaler: {autoscaler}
    lifecycle: {{provision_s: 5, image_s: 0, weights_gb_per_s: 100, start_s: 0, drain_timeout_s: {drain_timeout_s}}}
    price_per_gpu_hour: 3.6
"""


def result(folder: Path, ranks: int, autoscaler: str, drain_timeout_s: int = 600, model_name: str = "llama-3.1-8b") -> Any:
    folder.mkdir(parents=True)
    path = folder / "ranks.yaml"
    path.write_text(CONFIG.format(ranks=ranks, autoscaler=autoscaler, drain_timeout_s=drain_timeout_s, model=model_name))
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


@pytest.mark.parametrize("model_name", ["llama-3.1-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("drain_timeout_s", [0, 600])
def test_a_machine_is_released_when_its_last_rank_is_empty(tmp_path: Path, drain_timeout_s: int, model_name: str) -> None:
    """Machines come and go with the load; the run's own invariants see that no request and no GPU-second is lost."""
    scaled = "{kind: queue_target, min_replicas: 1, max_replicas: 4, interval_s: 5, scale_down_stabilization_s: 0}"
    ran = result(tmp_path / "scaled", 2, scaled, drain_timeout_s, model_name)
    machines, requests = ran.replicas, ran.requests
    assert (requests["status"] == "finished").all()
    gone = machines[machines["reason"] != "end of run"]
    assert len(gone) > 0
    for machine in gone.itertuples():
        last = requests[requests["replica"] == machine.id]["finished_at_s"].max()
        assert not last > machine.released_at_s


# Ranks of a model with experts step together.

TOGETHER: dict[str, Any] = {"data_parallel_size": 2, "num_together": 2}
TOKENS: dict[str, Any] = {"flops_per_token": 1.0, "flops_per_s": 100.0, "overhead_s": 0.0}


@pytest.mark.parametrize(
    ("engines", "first_tokens_s", "finishes_s"),
    [(TOKENS | TOGETHER, [1.0, 1.1], [1.11, 1.11]), (TOKENS, [1.0, 0.6], [1.02, 0.61])],
)
def test_a_rank_waits_for_the_longest_step_of_all(
    engines: dict[str, Any], first_tokens_s: list[float], finishes_s: list[float]
) -> None:
    """A hundredth of a second a token: 100 on one rank; 10 on the other, which come at 0.5 s, in the middle of that step."""
    ran = run_fleet(arrivals([(0.0, 100, 3), (0.5, 10, 2)]), engine(**engines), num_ranks=2, router="round_robin")
    assert ran.requests.first_token_at_s == pytest.approx(first_tokens_s)
    assert ran.requests.finished_at_s == pytest.approx(finishes_s)


@pytest.mark.parametrize("async_scheduling", [0, 1])
def test_ranks_that_all_do_the_same_are_as_fast_as_one_alone(async_scheduling: int) -> None:
    random = Random(1)
    rows = sorted((random.uniform(0, 20), random.randint(1, 300), random.randint(1, 40)) for _ in range(200))
    limits = {"max_num_batched_tokens": 256, "num_usable_blocks": 120, "async_scheduling": async_scheduling, **TOKENS}
    alone = run_fleet(arrivals(rows), engine(**limits)).requests
    twice = arrivals([row for row in rows for _ in range(2)])
    both = run_fleet(twice, engine(**limits | TOGETHER), num_ranks=2, router="round_robin").requests
    for name in ("scheduled_at_s", "first_token_at_s", "finished_at_s", "num_preemptions"):
        assert both[name][::2].tolist() == both[name][1::2].tolist() == alone[name].tolist()
    assert alone.num_preemptions.sum() > 0


def test_experts_work_for_the_tokens_of_all_and_lie_on_all_gpus() -> None:
    """Mixtral in bf16 takes 93 GB, 90 of them experts: too much for one H100, but two hold half of those each."""
    mixtral, h100 = model("mixtral-8x7b"), gpu("h100-sxm")
    with pytest.raises(ValueError, match="does not fit"):
        Surrogate(max_model_len=8000).engine(mixtral, h100)
    two = Surrogate(data_parallel_size=2, max_model_len=8000, enforce_eager=True)
    expert_bytes = 2.0 * mixtral.num_expert_params
    assert two.memory(mixtral, h100).weight_bytes == pytest.approx(2.0 * mixtral.num_params - expert_bytes / 2)
    shared, whole = two.engine(mixtral, h100)[0], Surrogate(tensor_parallel_size=2, enforce_eager=True).engine(mixtral, h100)[0]
    # each of two ranks does half of the experts' work for the tokens of both
    assert shared.flops_per_token + 2 * shared.expert_flops_per_token == pytest.approx(whole.flops_per_token, rel=1e-12)
    assert shared.expert_flops_per_token == pytest.approx(2 * mixtral.num_expert_params * (2 / 8) / 2)  # 2 of 8, on 2 GPUs
    batch = equal_requests(4, 1, 0)
    # reading: its own dense weights and KV, and half of the experts that eight tokens hit
    touched = 1 - (1 - 2 / 8) ** 8
    read = 2.0 * mixtral.num_params - expert_bytes + touched * expert_bytes / 2 + batch.kv_tokens * shared.kv_bytes_per_token
    # all-gather and reduce-scatter: each rank sends the hidden states of four tokens, and gets those of four, in each layer
    num_messages, message_bytes = 2 * mixtral.moe_layers, 4 * mixtral.hidden * 2
    exchange_s = num_messages * (two.link_latency_s + message_bytes / h100.link_bytes_per_s)
    expected_s = read / h100.bytes_per_s + exchange_s
    assert step_time_among(batch, shared, 4, 8) == step_time(batch, shared) == pytest.approx(expected_s)


def test_a_calibration_of_one_engine_is_not_that_of_ranks_with_experts(tmp_path: Path) -> None:
    path = tmp_path / "measured.yaml"
    write(a_calibration(model=model("mixtral-8x7b")), path)
    with pytest.raises(ValueError, match="data_parallel_size must be 1 for mixtral-8x7b"):
        Surrogate(data_parallel_size=2, calibration=str(path)).engine(model("mixtral-8x7b"), gpu("h100-sxm"))


def test_calibrated_ranks_take_what_was_fitted(tmp_path: Path) -> None:
    """Two ranks that do the same take what the fit says of one, experts that few tokens hit and exchange included."""
    mixtral, h100 = model("mixtral-8x7b"), gpu("h100-sxm")
    device = {"s_per_token": 2e-5, "s_per_attended_token": 1e-9, "weights_s": 2e-2, "s_per_kv_token": 2e-8, "serial_share": 0.5,
              "fixed_s": 1e-3, "s_per_request": 1e-5, "link_s": 5e-4, "link_s_per_token": 2e-5}  # fmt: skip
    measured = a_calibration(model=mixtral, data_parallel_size=2, device_time=device, kv_cache=None)
    write(measured, tmp_path / "two.yaml")
    two = Surrogate(data_parallel_size=2, calibration=str(tmp_path / "two.yaml"), max_model_len=8000).engine(mixtral, h100)[0]
    for num_decodes, chunk in ((1, 0), (9, 0), (3, 500), (0, 3000)):
        shape = Shape(num_decodes, 700 if num_decodes else 0, chunk)
        batch = records(BATCH, 1)[0]
        batch.num_requests, batch.num_tokens = shape.num_requests, shape.num_tokens
        batch.kv_tokens, batch.attended_tokens = shape.kv_tokens, shape.attended_tokens
        row = {"num_requests": shape.num_requests, "num_tokens": shape.num_tokens, "attended_tokens": shape.attended_tokens,
               "kv_tokens": shape.kv_tokens}  # fmt: skip
        (expected,) = predicted_s(pd.DataFrame([row]), measured.device_time, two.max_graph_tokens, measured.mixture)
        assert step_time(batch, two) == pytest.approx(expected, rel=1e-9)
    with pytest.raises(ValueError, match="data_parallel_size must be 2 for mixtral-8x7b, as was measured; it is 4"):
        Surrogate(data_parallel_size=4, calibration=str(tmp_path / "two.yaml"), max_model_len=8000).engine(mixtral, h100)


# Prefills in every n-th step only (`prefill_schedule_interval`).


def test_prefills_wait_for_their_step_while_others_decode() -> None:
    """Steps of a second. The first request prefills at once and decodes; one that comes at 0.5 waits for the fifth step."""
    paced = engine(overhead_s=1.0, prefill_schedule_interval=4)
    assert run_fleet(arrivals([(0.0, 4, 20), (0.5, 4, 2)]), paced).requests.scheduled_at_s.tolist() == [0.0, 4.0]
    assert run_fleet(arrivals([(0.0, 4, 2), (2.5, 4, 2)]), paced).requests.scheduled_at_s.tolist() == [0.0, 2.5]  # alone


def test_prefills_do_not_wait_while_more_wait_than_a_step_takes_in() -> None:
    """Three prompts of 8 in steps of 11 tokens: the fifth step takes in one, and as others wait the next two do as well."""
    limits = {"max_num_batched_tokens": 11, "max_num_seqs": 10, "enable_chunked_prefill": 0}
    rows = [(0.0, 4, 20), (0.5, 8, 20), (0.5, 8, 20), (0.5, 8, 20)]
    ran = run_fleet(arrivals(rows), engine(overhead_s=1.0, prefill_schedule_interval=4, **limits))
    assert ran.requests.scheduled_at_s.tolist() == [0.0, 4.0, 5.0, 6.0]


def test_engines_that_step_together_prefill_in_the_same_steps() -> None:
    rows = [(0.0, 4, 30), (0.0, 4, 30), (1.5, 4, 2), (2.5, 4, 2)]
    fields = {"overhead_s": 1.0, "prefill_schedule_interval": 5, **TOGETHER}
    ran = run_fleet(arrivals(rows), engine(**fields), num_ranks=2, router="round_robin")
    assert ran.requests.scheduled_at_s.tolist() == [0.0, 0.0, 5.0, 5.0]


def test_prefill_schedule_interval_is_for_engines_that_step_together() -> None:
    assert (
        Surrogate(data_parallel_size=2, prefill_schedule_interval=4, max_model_len=8000)
        .engine(model("mixtral-8x7b"), gpu("h100-sxm"))[0]
        .prefill_schedule_interval
        == 4
    )
    with pytest.raises(ValueError, match="prefill_schedule_interval 4 is for data-parallel engines that share experts"):
        Surrogate(data_parallel_size=2, prefill_schedule_interval=4).engine(model("llama-3.1-8b"), gpu("h100-sxm"))


def test_a_request_that_waits_for_a_machine_wakes_all_its_ranks() -> None:
    """It is routed when the first rank is open, an instant before the second."""
    fleet = {"num_ranks": 2, "stages": lambda: [("ready_at_s", 5.0)], "warm_start": False}
    ran = run_fleet(arrivals([(0.0, 4, 3)]), engine(overhead_s=1.0, **TOGETHER), **fleet)
    assert ran.requests.finished_at_s.tolist() == [8.0]
