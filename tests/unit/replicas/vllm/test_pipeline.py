"""Pipeline parallelism: stages, steps in flight, who gets a token when. Which step holds whom is in tests/conformance."""

from typing import Any

import pytest

from experiments.contracts.fleets import Ran, arrivals, classes, engine, run
from planning.instance import Instance
from planning.steps import equal_requests
from replicas.capacity import capacity
from replicas.catalog import gpu, model
from replicas.roofline import NETWORK_BYTES_PER_S
from replicas.step_time import step_time
from replicas.surrogate import Surrogate

MODEL, GPU = model("llama-3.1-70b"), gpu("h100-sxm")


def served(rows: list[tuple[float, int, int]], **fields: Any) -> Ran:
    """Runs them on one pipeline whose whole way takes a second, unless `fields` say otherwise."""
    return run(arrivals(rows), engine(**{"overhead_s": 1.0, "num_stages": 2, **fields}))


def test_a_request_alone_gets_a_token_each_time_it_has_passed_all_stages() -> None:
    for async_scheduling in (0, 1):
        ran = served([(0.0, 4, 3)], async_scheduling=async_scheduling)
        assert ran.requests.first_token_at_s.tolist() == [1.0]
        assert ran.requests.finished_at_s.tolist() == [3.0]


def test_an_arrival_is_seen_when_the_oldest_step_ends() -> None:
    """Also with the first stage free: vLLM's engine core fills its queue with a plan that finds nothing, and waits."""
    assert served([(0.0, 4, 3), (0.25, 4, 3)]).requests.first_token_at_s.tolist() == [1.0, 2.0]
    assert served([(0.0, 4, 3), (0.0, 4, 3)]).requests.finished_at_s.tolist() == [3.0, 3.0]


def test_chunks_of_one_prompt_follow_one_another_through_the_stages() -> None:
    """Four chunks of a second each, in stages of half: the last leaves after 4 x 0.5 + 0.5 s instead of 4."""
    fields = {"max_num_batched_tokens": 10, "max_num_seqs": 4}
    assert served([(0.0, 40, 1)], **fields).requests.finished_at_s.tolist() == [2.5]
    assert served([(0.0, 40, 1)], num_stages=1, **fields).requests.finished_at_s.tolist() == [4.0]
    assert served([(0.0, 40, 1)], num_stages=4, **fields).requests.finished_at_s.tolist() == [1.75]


def test_the_links_and_the_cpu_lengthen_the_way() -> None:
    """Three hand-overs of 0.1 + 4 x 0.01 s, and half a second to plan."""
    ran = served([(0.0, 4, 1)], num_stages=4, handover_s=0.1, handover_s_per_token=0.01, cpu_s=0.5)
    assert ran.requests.finished_at_s.tolist() == pytest.approx([0.5 + 1.0 + 3 * 0.14])


def test_the_cpu_holds_up_each_step_unless_one_more_is_planned() -> None:
    """Eight chunks in stages of 0.5 s. The CPU's 0.25 s come between them, but for the first two, which are planned at once."""
    fields = {"max_num_batched_tokens": 10, "max_num_seqs": 4, "cpu_s": 0.25}
    planned_late = served([(0.0, 80, 1)], **fields).requests.finished_at_s[0]
    planned_ahead = served([(0.0, 80, 1)], async_scheduling=1, **fields).requests.finished_at_s[0]
    assert planned_ahead == 0.25 + 8 * 0.5 + 0.5
    # two enter back to back and leave at 1.25 and 1.75; each later one is planned when one leaves, and leaves 1.25 s after that
    assert planned_late == 1.75 + 3 * 1.25


def test_a_preempted_request_waits_for_its_token_in_flight() -> None:
    """It would else draw the same token twice. Every request ends with all its tokens, each counted once."""
    rows = [(0.1 * k, 10, 30) for k in range(12)]
    for async_scheduling in (0, 1):
        for num_stages in (2, 3, 5):
            fields = {"block_size": 4, "num_usable_blocks": 25, "max_num_batched_tokens": 32, "max_num_seqs": 8}
            ran = served(rows, num_stages=num_stages, async_scheduling=async_scheduling, **fields)
            assert ran.requests.num_preemptions.sum() > 0
            assert ran.requests.num_generated_tokens.tolist() == [30] * 12


def test_masks_that_need_a_token_in_flight_hold_up_the_next_plan() -> None:
    """With async scheduling a structured request's second step is planned while its first is on the way; none is behind it."""
    rows = [(0.0, 4, 4, 0), (0.0, 4, 4, 1)]
    kinds = classes((0, 0, 0, 0.5), (0, 0, 0, 0.0))
    ran = run(arrivals(rows), engine(overhead_s=1.0, num_stages=2, async_scheduling=1), classes=kinds)
    assert ran.requests.num_generated_tokens.tolist() == [4, 4]
    assert ran.plane.fleet.replicas.num_idle_with_work[0] == 0


def test_each_gpu_is_busy_for_its_stage_only() -> None:
    assert served([(0.0, 4, 3)]).plane.fleet.replicas.busy_s[0] == 1.5


def test_weights_and_cache_are_shared_out_over_the_stages() -> None:
    with pytest.raises(ValueError, match=r"does not fit.*pipeline_parallel_size"):
        Surrogate().engine(MODEL, GPU)
    two = Surrogate(pipeline_parallel_size=4)
    memory = two.memory(MODEL, GPU)
    assert memory.weight_bytes == 2.0 * MODEL.num_params / 4
    assert memory.block_bytes == Surrogate(tensor_parallel_size=4).memory(MODEL, GPU).block_bytes  # 20 of 80 layers, all heads
    assert two.gpus_per_engine == 4


def test_a_step_takes_as_long_as_on_one_stage_and_three_hand_overs() -> None:
    """70B, 2 stages of 2 GPUs: reading 141 GB takes 2 GPUs 21 ms, however many stages there are; planners say the same."""
    options = {"tensor_parallel_size": 2, "max_model_len": 8000, "enforce_eager": True}
    pipeline = Surrogate(pipeline_parallel_size=2, **options).engine(MODEL, GPU)[0]
    batch = equal_requests(8, 1, 1000)
    planned = Instance(Surrogate(**options), MODEL, GPU, num_stages=2)
    hop_s = 2e-6 + 8 * MODEL.hidden * 2 / NETWORK_BYTES_PER_S  # a planner's: without the residuals
    assert step_time(batch, pipeline) == pytest.approx(planned.step_s(16, 1001) - hop_s, rel=1e-3)
    assert pipeline.handover_s_per_token == 2 * MODEL.hidden * 2 / NETWORK_BYTES_PER_S


def test_two_stages_sustain_twice_the_requests() -> None:
    """When the batch, not the cache, is what binds: each stage has a step of its own, and the steps are as long."""
    fields = {"overhead_s": 0.01, "max_num_seqs": 64}
    one, two = (capacity(engine(num_stages=n, **fields), 100, 10) for n in (1, 2))
    assert two.requests_per_s == pytest.approx(one.requests_per_s)  # 32 requests in each of two steps, twice as often
    wide = {"overhead_s": 0.01, "max_num_batched_tokens": 109, "max_num_seqs": 1000}
    one, two = (capacity(engine(num_stages=n, **wide), 100, 10) for n in (1, 2))
    assert two.requests_per_s == pytest.approx(2 * one.requests_per_s)
    rows = [(0.01 * k / 1.5, 100, 10) for k in range(3000)]  # 1.5 times what one stage sustains
    finished_s = [run(arrivals(rows), engine(num_stages=n, **wide)).requests.finished_at_s.max() for n in (1, 2)]
    assert finished_s[0] == pytest.approx(3000 / one.requests_per_s, rel=0.05)
    assert finished_s[1] == pytest.approx(rows[-1][0], rel=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batching": "static"}, "pipeline_parallel_size 2 does not go with batching static"),
        ({"jump_forward": True, "async_scheduling": False}, "does not go with jump_forward"),
        ({"num_speculative_tokens": 2, "async_scheduling": False}, "num_speculative_tokens and async_scheduling false"),
    ],
)
def test_what_pipelines_do_not_go_with(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Surrogate(pipeline_parallel_size=2, **options)


def test_more_stages_than_layers_and_experts_that_are_shared() -> None:
    with pytest.raises(ValueError, match=r"pipeline_parallel_size 100 is above the 80 layers of llama-3.1-70b"):
        Surrogate(pipeline_parallel_size=100).engine(MODEL, GPU)
    with pytest.raises(ValueError, match="engines of mixtral-8x7b share its experts"):
        Surrogate(pipeline_parallel_size=2, data_parallel_size=2).engine(model("mixtral-8x7b"), GPU)
