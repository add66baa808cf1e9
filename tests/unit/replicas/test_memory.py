"""Where a GPU's memory goes, against what engines measured."""

from typing import Any

import pytest

from replicas.catalog import gpu, model
from replicas.memory import GIB, activation_bytes
from replicas.surrogate import Surrogate

ENGINE_TOKENS = 41_408
"""vLLM 0.19.0's own count on an RTX 4090 (2,588 blocks): LLMServingSim's bench, meta.json of that GPU."""


def as_measured(**options: Any) -> Surrogate:
    return Surrogate(gpu_memory_utilization=0.9, max_model_len=32768, max_num_seqs=256, max_num_batched_tokens=2048, **options)


def test_pool_forgets_activations_and_context() -> None:
    """Weights alone subtracted: 50,848 tokens, 23 % over. Ours brackets the engine's own count.

    Below it with CUDA graphs set aside, as vLLM does since 0.21; above without, as 0.19 did. Both within a tenth: what
    remains is context (measured on another GPU) and small buffers, about 0.4 GiB of 24.
    """
    of, on = model("llama-3.1-8b"), gpu("rtx-4090")
    ours = as_measured().memory(of, on).num_tokens
    without_graphs = as_measured(cuda_graph_bytes=0.0).memory(of, on).num_tokens
    naive = as_measured(cuda_graph_bytes=0.0, activation_bytes=0.0, context_bytes=0.0).memory(of, on).num_tokens
    assert naive == 50_848
    assert 0.9 * ENGINE_TOKENS < ours < ENGINE_TOKENS < without_graphs < 1.1 * ENGINE_TOKENS


def test_stated_blocks_are_taken_as_they_are() -> None:
    memory = as_measured().model_copy(update={"num_gpu_blocks": 2588}).memory(model("llama-3.1-8b"), gpu("rtx-4090"))
    assert memory.num_tokens == ENGINE_TOKENS
    assert "2,588 blocks of 16 (given), 41,408 tokens" in str(memory)


@pytest.mark.parametrize(
    ("name", "measured_gib"), [("llama-3.1-8b", 1.89), ("qwen3-32b", 2.21), ("qwen2.5-7b", 2.25), ("deepseek-v3", 1.93)]
)
def test_activation_peak_is_within_a_tenth_of_llm_ds_measurements(name: str, measured_gib: float) -> None:
    """H100, vLLM 0.19.0 with its default 1,024 requests and 8,192 tokens (llm_d_bench.capacity.vllm_constants)."""
    assert activation_bytes(model(name), 1, 8192, 1024) / GIB == pytest.approx(measured_gib, rel=0.1)


def test_activation_peak_of_a_sampler_is_14_bytes_a_logit() -> None:
    """Llama 8B, 256 requests, 2,048 tokens: 256 x 128,256 logits x 14 B, and 2,048 x 4,096 bf16 hidden states."""
    assert activation_bytes(model("llama-3.1-8b"), 1, 2048, 256) == 256 * 128_256 * 14 + 2048 * 4096 * 2


def test_activation_peak_of_a_wide_layer_shrinks_with_tensor_parallelism() -> None:
    """405B with few requests: input and residual of 16,384, and 3 x 53,248 / n of MLP, for 8,192 tokens in bf16."""
    of = model("llama-3.1-405b")
    for n in (1, 8):
        assert activation_bytes(of, n, 8192, 16) == 8192 * 2 * (2 * 16384 + 3 * 53248 / n)


def test_breakdown_adds_up_and_prints_every_item() -> None:
    memory = Surrogate(tensor_parallel_size=4, quantization="fp8").memory(model("llama-3.1-70b"), gpu("h100-sxm"))
    taken = memory.weight_bytes + memory.activation_bytes + memory.context_bytes + memory.cuda_graph_bytes
    assert memory.utilised_bytes == memory.total_bytes * 0.92
    assert taken + memory.available_bytes == pytest.approx(memory.utilised_bytes)
    assert 0 <= memory.available_bytes - memory.kv_bytes < memory.block_bytes
    table = str(memory)
    for word in ("utilization 0.92", "weights", "activations", "context", "CUDA graphs", "KV cache", "blocks", "tokens"):
        assert word in table
    assert f"{memory.num_gpu_blocks:,}" in table


def test_fp8_leaves_embedding_table_and_head_in_16_bit() -> None:
    """70B on four GPUs: 70.55 G parameters in a byte, and one more for each of 2 x 128,256 x 8,192 of them."""
    of, on = model("llama-3.1-70b"), gpu("h100-sxm")
    surrogate = Surrogate(tensor_parallel_size=4, quantization="fp8")
    assert surrogate.memory(of, on).weight_bytes * 4 == 70_553_706_496 + 2 * 128_256 * 8192
    # A step reads the head in 16 bit and no table, which comes to the same as one byte for each parameter.
    assert surrogate.engine(of, on)[0].dense_weight_bytes == 70_553_706_496
    # The head of a small model is the table: it is stored, and read, in 16 bit.
    small, one = model("qwen3-0.6b"), Surrogate(quantization="fp8")
    assert one.memory(small, on).weight_bytes == one.engine(small, on)[0].dense_weight_bytes == 596_049_920 + 151_936 * 1024
    halves = Surrogate(tensor_parallel_size=2, pipeline_parallel_size=2, quantization="fp8").memory(of, on)
    assert halves.weight_bytes * 4 == pytest.approx(70_553_706_496 + 2 * 128_256 * 8192)


def test_weights_that_do_not_fit_name_every_item() -> None:
    with pytest.raises(ValueError, match=r"llama-3.1-70b on 1 x h100-sxm does not fit: .*131.4 for weights.*tensor_para"):
        Surrogate().engine(model("llama-3.1-70b"), gpu("h100-sxm"))


def test_cache_below_one_longest_sequence_is_refused_with_the_length_that_fits() -> None:
    """As vLLM refuses to start; with the length of the message it starts."""
    of, on = model("llama-3.1-8b"), gpu("rtx-4090")
    with pytest.raises(ValueError, match="less than one sequence of max_model_len 131072: set max_model_len to at most"):
        Surrogate().memory(of, on)
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        Surrogate().memory(of, on)
    fits = int(str(refused.value).split("at most ")[1].split(",")[0])
    assert Surrogate(max_model_len=fits).memory(of, on).num_tokens == fits + 16
    with pytest.raises(ValueError, match="max_model_len"):
        Surrogate(max_model_len=fits + 1).memory(of, on)


def test_a_stated_pool_may_be_smaller_than_the_longest_sequence() -> None:
    """1,008 usable tokens under max_model_len 1,024: whoever states blocks means them; requests over it are rejected."""
    surrogate = Surrogate(num_gpu_blocks=64, max_model_len=1024)
    assert surrogate.engine(model("llama-3.1-8b"), gpu("h100-sxm"))[0].num_usable_blocks * 16 == 1008
