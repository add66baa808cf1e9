"""vLLM's options in, an ENGINE record out; every option has an effect."""

from typing import Any

import pytest
from pydantic import ValidationError

from replicas import KINDS
from replicas.catalog import gpu, model
from replicas.surrogate import Surrogate

SMALL, LARGE = model("llama-3.1-8b"), gpu("h100-sxm")
CHANGES: dict[str, Any] = {
    "tensor_parallel_size": 2,
    "quantization": "fp8",
    "kv_cache_dtype": "fp8",
    "max_model_len": 4096,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 4096,
    "enable_chunked_prefill": False,
    "scheduler_reserve_full_isl": False,
    "watermark": 0.01,
    "async_scheduling": False,
    "block_size": 32,
    "gpu_memory_utilization": 0.5,
    "num_gpu_blocks": 9000,
    "activation_bytes": 1e9,
    "context_bytes": 1e9,
    "cuda_graph_bytes": 0.0,
    "flops_efficiency": 0.5,
    "bandwidth_efficiency": 0.7,
    "link_efficiency": 0.5,
    "link_latency_s": 1e-5,
    "overhead_s": 1e-3,
    "cpu_s": 1e-3,
    "cpu_s_per_request": 2e-5,
    "long_prefill_token_threshold": 512,
    "long_prefill_token_threshold_adaptive": True,
    "scheduling_policy": "priority",
    "enable_prefix_caching": True,
    "max_loras": 4,
    "max_lora_rank": 64,
    "num_speculative_tokens": 3,
    "speculative_method": "ngram",
    "acceptance_rate": 0.5,
    "draft_s": 1e-3,
    "jump_forward": True,
    "batching": "orca",
    "vllm_version": "0.30",
    "enforce_eager": True,
    "max_num_queued_reqs": 100,
    "max_num_queued_tokens": 100_000,
    "grammar_cpu_s_per_request": 4e-5,
    "pipeline_parallel_size": 2,
}


ELSEWHERE = {"data_parallel_size", "prefill_schedule_interval", "calibration", "step_time_scale", "dtype"}
"""In test_data_parallel.py and test_calibrated.py."""


@pytest.mark.parametrize("option", sorted(set(Surrogate.model_fields) - ELSEWHERE))
def test_accepted_option_without_effect(option: str) -> None:
    """That it is in the record; what each one does to a run is in test_scheduler_options.py."""
    base: dict[str, Any] = {"tensor_parallel_size": 4} if option.startswith("link") else {}
    base |= {"num_speculative_tokens": 2} if option == "speculative_method" else {}
    base |= {"async_scheduling": False} if option == "jump_forward" else {}
    changed = Surrogate(**{**base, option: CHANGES[option]}).engine(SMALL, LARGE)
    assert changed.tobytes() != Surrogate(**base).engine(SMALL, LARGE).tobytes()


@pytest.mark.parametrize(
    ("name", "tokens", "seqs"),
    [
        ("b200-sxm", 16384, 1024),
        ("h200-sxm", 8192, 1024),
        ("h100-sxm", 8192, 1024),
        ("a100-sxm", 2048, 256),
        ("l40s", 2048, 256),
    ],
)
def test_limits_default_to_the_engines(name: str, tokens: int, seqs: int) -> None:
    engine = Surrogate().engine(SMALL, gpu(name))[0]
    assert (engine.max_num_batched_tokens, engine.max_num_seqs, engine.max_model_len) == (tokens, seqs, 131072)
    assert (engine.enable_chunked_prefill, engine.scheduler_reserve_full_isl, engine.async_scheduling) == (1, 1, 1)
    assert (engine.block_size, engine.watermark_blocks) == (16, 0)


def test_budget_of_short_sequences_is_not_more_than_they_can_use() -> None:
    assert Surrogate(max_model_len=4, max_num_seqs=8).limits(SMALL, LARGE) == (4, 8, 32)


def test_without_chunked_prefill_the_default_budget_holds_the_longest_prompt() -> None:
    assert Surrogate(enable_chunked_prefill=False).limits(SMALL, LARGE) == (131072, 1024, 131072)


def test_block_zero_is_not_usable_and_the_watermark_counts_all() -> None:
    engine = Surrogate(num_gpu_blocks=1000, watermark=0.0125, max_model_len=1024).engine(SMALL, LARGE)[0]
    assert (engine.num_usable_blocks, engine.watermark_blocks) == (999, 12)


def test_fp8_arithmetic_only_where_the_gpu_has_it() -> None:
    with_fp8 = Surrogate(quantization="fp8").engine(SMALL, LARGE)[0]
    without = Surrogate(quantization="fp8").engine(SMALL, gpu("a100-sxm"))[0]
    assert with_fp8.flops_per_s == 1979e12
    assert without.flops_per_s == 312e12
    assert with_fp8.dense_weight_bytes == without.dense_weight_bytes == SMALL.num_params


def test_kv_heads_fewer_than_gpus_are_repeated() -> None:
    """Qwen3 30B has 4 KV heads: on 8 GPUs each holds one, and twice the bytes are read."""
    of = model("qwen3-30b-a3b")
    engines = [Surrogate(tensor_parallel_size=tp).engine(of, LARGE)[0] for tp in (4, 8)]
    assert engines[1].kv_bytes_per_token == 2 * engines[0].kv_bytes_per_token


def test_all_reduces_of_a_dense_layer_are_two() -> None:
    """docs/design.md, A step's time: 2 L [2 (n-1) alpha + 2 (n-1)/n tokens d 2 B / B_link], for n = 4, L = 32, d = 4096."""
    engine = Surrogate(tensor_parallel_size=4, link_latency_s=1e-6, link_efficiency=0.5).engine(SMALL, LARGE)[0]
    assert engine.comm_s == pytest.approx(2 * 32 * 2 * 3 * 1e-6)
    assert engine.comm_s_per_token == pytest.approx(2 * 32 * 2 * 3 / 4 * 4096 * 2 / 225e9)
    alone = Surrogate().engine(SMALL, LARGE)[0]
    assert (alone.comm_s, alone.comm_s_per_token) == (0, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel_size": 3}, "tensor_parallel_size 3 does not divide the 32 heads"),
        ({"max_model_len": 200_000}, "max_model_len 200000 is above the 131072 of llama-3.1-8b"),
        ({"max_num_seqs": 9000}, "max_num_batched_tokens 8192, h100-sxm's default, is below max_num_seqs 9000"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048, "max_num_seqs": 64},
            "max_num_batched_tokens 2048 must be at least max_model_len 131072 without enable_chunked_prefill",
        ),
    ],
)
def test_options_that_contradict_the_model(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Surrogate(**options).engine(SMALL, LARGE)


def test_options_that_contradict_each_other() -> None:
    with pytest.raises(ValidationError, match="max_num_batched_tokens 16 must be at least max_num_seqs 32"):
        Surrogate(max_num_seqs=32, max_num_batched_tokens=16)


def test_every_option_is_described() -> None:
    assert KINDS["surrogate"] is Surrogate
    assert set(CHANGES) | ELSEWHERE == set(Surrogate.model_fields)
    assert all(field.description for field in Surrogate.model_fields.values())
