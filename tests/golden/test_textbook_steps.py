"""Steps, layouts and KV sizes of the textbook (docs/textbook.md), through the public classes.

The textbook's machine: H100 of 80 GB, 3.35 TB/s, 989 TFLOP/s bf16, 450 GB/s links, 2 us a message; 90 % of memory used,
all of it weights and KV cache; fp8 weights of one byte, bf16 cache; sequences of 2,200 tokens.
"""

from typing import Any

import pytest

from replicas.catalog import Gpu, Model, gpu, model
from replicas.step_time import step_time
from replicas.surrogate import Surrogate
from sim.records import BATCH, records

H100 = Gpu(
    name="h100",
    bf16_flops_per_s=989e12,
    fp8_flops_per_s=1979e12,
    memory_bytes=80e9,
    bytes_per_s=3.35e12,
    link_bytes_per_s=450e9,
)
B200 = H100.model_copy(
    update={
        "name": "b200",
        "bf16_flops_per_s": 2250e12,
        "fp8_flops_per_s": 4500e12,
        "memory_bytes": 180e9,
        "bytes_per_s": 8e12,
    }
)
LLAMA_70B = model("llama-3.1-70b").model_copy(update={"num_embedding_params": 0, "num_head_params": 0})
"""The text has all of its weights in one byte; published checkpoints keep embedding table and output head in two."""

CONTEXT = 2200
BARE: dict[str, Any] = {
    "gpu_memory_utilization": 0.9,
    "activation_bytes": 0.0,
    "context_bytes": 0.0,
    "cuda_graph_bytes": 0.0,
    "enforce_eager": True,  # the textbook pads nothing
}
LAYOUT: dict[str, Any] = {"quantization": "fp8", "max_model_len": CONTEXT, **BARE}


def step(requests: int, new: int, cached: int) -> Any:
    """One step of `requests` equal ones: n new tokens on c cached."""
    batch = records(BATCH, 1)[0]
    batch.num_requests = requests
    batch.num_tokens = requests * new
    batch.attended_tokens = requests * new * (cached + new / 2)
    batch.kv_tokens = requests * (cached + new)
    return batch


def decode_s(surrogate: Surrogate, of: Model, on: Gpu, requests: int, context: int) -> float:
    return float(step_time(step(requests, 1, context - 1), surrogate.engine(of, on)[0]))


def full_layout(on: Gpu, tp: int) -> tuple[int, float, float]:
    """(batch, step in s, tokens/s/GPU) of 70B fp8 with the cache full of 2,200-token sequences."""
    surrogate, of = Surrogate(tensor_parallel_size=tp, **LAYOUT), LLAMA_70B
    batch = surrogate.memory(of, on).num_tokens // CONTEXT
    seconds = decode_s(surrogate, of, on, batch, CONTEXT)
    return batch, seconds, batch / seconds / tp


def layouts(on: Gpu) -> dict[int, float]:
    """Throughput per GPU of 70B fp8, by TP."""
    return {tp: full_layout(on, tp)[2] for tp in (1, 2, 4, 8)}


def test_ridge_point_of_an_h100() -> None:
    h100 = gpu("h100-sxm")
    assert h100.bf16_flops_per_s / h100.bytes_per_s == pytest.approx(295.2, abs=0.3)


def test_8b_weights_are_read_in_4_79_ms() -> None:
    assert decode_s(Surrogate(), model("llama-3.1-8b"), gpu("h100-sxm"), 1, 1) == pytest.approx(4.79e-3, abs=0.02e-3)


def test_one_token_of_8b_is_16_us_of_arithmetic() -> None:
    engine = Surrogate().engine(model("llama-3.1-8b"), gpu("h100-sxm"))[0]
    assert engine.flops_per_token / engine.flops_per_s == pytest.approx(16.24e-6, abs=0.05e-6)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize(("name", "expected"), [("llama-3.1-70b", 327680), ("llama-3.1-8b", 131072)])
def test_kv_bytes_per_token(name: str, expected: int, tp: int) -> None:
    surrogate = Surrogate(tensor_parallel_size=tp, num_gpu_blocks=10_000)
    assert surrogate.engine(model(name), gpu("b200-sxm"))[0].kv_bytes_per_token == expected


def test_latency_of_one_token_is_least_at_tp8() -> None:
    """n* = sqrt(M_W / (4 L alpha beta)) = 8.1 on a continuous n: where 16 GPUs are slower than 8, and 4 too."""
    of, on = LLAMA_70B, H100.model_copy(update={"memory_bytes": 1e12})
    seconds = {tp: decode_s(Surrogate(tensor_parallel_size=tp, **BARE), of, on, 1, 1) for tp in (1, 2, 4, 8, 16, 32)}
    assert min(seconds, key=lambda tp: seconds[tp]) == 8
    engine = Surrogate(tensor_parallel_size=2, **BARE).engine(of, on)[0]
    alpha_s = engine.comm_s / (4 * of.layers)
    optimum = (engine.dense_weight_bytes / (4 * of.layers * alpha_s * on.bytes_per_s)) ** 0.5
    assert optimum == pytest.approx(8.1, abs=0.1)


def test_best_throughput_layout_on_h100_is_tp4() -> None:
    throughput = layouts(H100)
    assert max(throughput, key=lambda tp: throughput[tp]) == 4


def test_batch_and_throughput_of_tp4_on_h100() -> None:
    batch, _, throughput = full_layout(H100, 4)
    assert batch == 301
    assert throughput == pytest.approx(2893, abs=15)


def test_step_of_tp8_at_batch_1() -> None:
    surrogate = Surrogate(tensor_parallel_size=8, **LAYOUT)
    assert decode_s(surrogate, LLAMA_70B, H100, 1, CONTEXT) == pytest.approx(7.15e-3, abs=0.06e-3)


def test_tp8_gives_less_throughput_per_gpu_than_tp4() -> None:
    throughput = layouts(H100)
    assert throughput[8] / throughput[4] == pytest.approx(0.915, abs=0.01)


@pytest.mark.parametrize(("tp", "expected_ms"), [(2, 22.6), (4, 26.0), (8, 33.1)])
def test_full_gpu_step_times(tp: int, expected_ms: float) -> None:
    assert full_layout(H100, tp)[1] == pytest.approx(expected_ms / 1000, abs=0.2e-3)


def test_best_layout_on_b200_is_tp2() -> None:
    throughput = layouts(B200)
    assert max(throughput, key=lambda tp: throughput[tp]) == 2


def test_prefill_throughput_at_half_the_peak() -> None:
    surrogate = Surrogate(quantization="fp8", flops_efficiency=0.5, num_gpu_blocks=1000)
    engine = surrogate.engine(LLAMA_70B, gpu("h100-sxm"))[0]
    assert 2000 / step_time(step(1, 2000, 0), engine) == pytest.approx(6877, abs=40)


def test_decode_of_64_requests_at_2048_without_adapters() -> None:
    seconds = decode_s(Surrogate(), model("llama-3.1-8b"), gpu("h100-sxm"), 64, 2048)
    assert seconds == pytest.approx(9.92e-3, abs=0.01e-3)


@pytest.mark.parametrize(
    ("weight_bytes", "layers", "context", "expected"),
    [pytest.param(30e9, 48, 4096, 57, id="30 GB of weights"), pytest.param(16.06e9, 32, 2048, 223, id="16 GB of weights")],
)
def test_kv_bound_concurrency(weight_bytes: float, layers: int, context: int, expected: int) -> None:
    """80 GB less the weights and a reserve of 4 GB, in whole sequences."""
    of = model("llama-3.1-8b").model_copy(update={"name": "exercise", "layers": layers, "num_params": round(weight_bytes / 2)})
    options = {**BARE, "gpu_memory_utilization": 1.0, "context_bytes": 4e9, "max_model_len": context}
    assert Surrogate(**options).memory(of, H100).num_tokens // context == expected


def test_surrogate_ignores_prefill_tokens() -> None:
    engine = Surrogate().engine(model("llama-3.1-8b"), gpu("h100-sxm"))[0]
    seconds = [step_time(step(1, tokens, 0), engine) for tokens in (1, 127, 128, 129, 512, 2048, 8191, 8192)]
    assert seconds == sorted(set(seconds))


def test_mixtral_computes_two_experts_of_eight_and_stores_all() -> None:
    surrogate = Surrogate(tensor_parallel_size=2)
    of, on = model("mixtral-8x7b"), gpu("h100-sxm")
    engine = surrogate.engine(of, on)[0]
    assert engine.flops_per_token / 2 == pytest.approx(12.88e9, rel=1e-3)  # active, as Mistral publishes: 12.9 B
    assert surrogate.memory(of, on).weight_bytes * 2 == 2 * of.num_params  # stored: 46.7 B
    experts = 32 * 8 * 3 * 4096 * 14336 * 2
    assert engine.expert_weight_bytes == experts
    read_s = step_time(step(1, 1, 0), engine) - engine.comm_s - engine.comm_s_per_token
    kv_bytes = 131072
    dense = 2 * of.num_params - experts
    assert read_s * engine.bytes_per_s == pytest.approx(dense + experts * 2 / 8 + kv_bytes, rel=1e-9)
    large = step_time(step(4096, 1, 0), engine) * engine.bytes_per_s
    assert large >= dense + 0.999 * experts  # thousands of tokens read every expert


def test_gqa_ignored_four_times_the_kv() -> None:
    engine = Surrogate().engine(model("llama-3.1-8b"), gpu("h100-sxm"))[0]
    assert engine.kv_bytes_per_token == 131_072  # not 524,288: 8 KV heads, not 32


def test_mla_counted_as_gqa() -> None:
    """A latent of 512 + 64 in bf16 over 61 layers is 70,272 B; each of the 8 GPUs holds and reads it whole."""
    surrogate = Surrogate(tensor_parallel_size=8, quantization="fp8")
    of, on = model("deepseek-v3"), gpu("h200-sxm")
    assert surrogate.memory(of, on).block_bytes == 16 * 70_272
    assert surrogate.engine(of, on)[0].kv_bytes_per_token == 8 * 70_272
