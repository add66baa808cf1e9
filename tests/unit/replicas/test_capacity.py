"""What one replica sustains: each limit binds where it should, and the balance is Little's law."""

from typing import Any

import pytest

from replicas.capacity import balanced_batch, capacity
from replicas.catalog import gpu, model
from replicas.step_time import step_time
from replicas.surrogate import Surrogate

LARGE = {"max_num_seqs": 65_535, "max_num_batched_tokens": 1_000_000, "num_gpu_blocks": 10_000_000}


def engine(**options: Any) -> Any:
    return Surrogate(**{**LARGE, "activation_bytes": 0.0, **options}).engine(model("llama-3.1-8b"), gpu("h100-sxm"))


@pytest.mark.parametrize(
    ("options", "tpot_s", "binding", "batch"),
    [
        ({"max_num_seqs": 50}, None, "max_num_seqs", 50),
        ({"max_num_batched_tokens": 1199, "max_num_seqs": 1000}, None, "max_num_batched_tokens", 200),  # x = 1: 1000 + 199
        ({"num_gpu_blocks": 6926}, None, "kv_blocks", 100),  # 100 x (1000 + 100 + 8) = 16 x 6925 usable
    ],
)
def test_batch_above_what_the_engine_admits(options: dict[str, int], tpot_s: float | None, binding: str, batch: float) -> None:
    found = capacity(engine(**options), 1000, 200, tpot_s)
    assert found.binding == binding
    assert found.batch == pytest.approx(batch)


def test_tpot_target_is_met_exactly_when_it_binds() -> None:
    found = capacity(engine(), 1000, 200, tpot_s=0.02)
    assert (found.binding, found.is_within_tpot) == ("tpot", True)
    assert found.step_s == pytest.approx(0.02, rel=1e-3)
    assert found.step_s <= 0.02


def test_target_that_no_batch_meets_is_said() -> None:
    """8B bf16 takes 4.8 ms to read its weights: 4 ms a token is out of reach."""
    found = capacity(engine(), 1000, 200, tpot_s=0.004)
    assert not found.is_within_tpot
    assert found.batch == pytest.approx(1)  # one request in the engine


def test_littles_law_holds_in_the_balance() -> None:
    found = capacity(engine(max_num_seqs=64), 1000, 200)
    time_in_engine_s = 200 * found.step_s
    assert found.requests_per_s * time_in_engine_s == pytest.approx(found.batch)
    assert found.inflight_tokens == pytest.approx(found.batch * (1000 + 100))


def test_balanced_step_is_one_prefill_beside_its_decodes() -> None:
    """One request finished a step of 1,000 / 201 tokens: 200 decodes, 1,000 prompt tokens, each attended once."""
    batch = balanced_batch(engine()[0], 1.0, 1000, 201)
    context = 1000 + 201 / 2
    assert (batch.num_decodes, batch.num_requests, batch.num_tokens) == (200, 201, 1200)
    assert batch.attended_tokens == pytest.approx(200 * context + 1000**2 / 2)
    assert batch.kv_tokens == round(200 * context + 1000)


def test_prompts_longer_than_the_budget_are_chunked() -> None:
    """One-token answers of 40,000-token prompts at 8,192 tokens a step: a fifth of a request a step."""
    found = capacity(engine(max_num_batched_tokens=8192, max_num_seqs=1024), 40_000, 1)
    assert found.requests_per_s * found.step_s == pytest.approx(8192 / 40_000)


def test_one_token_answers_are_prefill_only() -> None:
    plain = engine(max_num_batched_tokens=8192, max_num_seqs=1024)
    found = capacity(plain, 2000, 1)
    assert found.binding == "max_num_batched_tokens"
    assert found.requests_per_s == pytest.approx(
        8192 / 2000 / step_time(balanced_batch(plain[0], 8192 / 2000, 2000, 1), plain[0])
    )


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_more_work_a_step_is_never_less_throughput(tp: int) -> None:
    """Why the largest batch is the best one: also for experts, whose reading grows with the tokens of a step."""
    options: dict[str, Any] = {"tensor_parallel_size": tp, "cpu_s": 1e-3, "cpu_s_per_request": 2e-5}
    mixtral = [
        capacity(Surrogate(**options, max_num_seqs=seqs).engine(model("mixtral-8x7b"), gpu("h100-sxm")), 500, 200)
        for seqs in (1, 2, 4, 8, 16, 64, 256)
    ]
    rates = [found.requests_per_s for found in mixtral]
    assert rates == sorted(rates)


def test_whatever_the_watermark_one_request_runs_alone() -> None:
    """Nine tenths of 1,000 blocks are kept free: 1,584 tokens are left to admit into, and the request takes 2,200."""
    found = capacity(engine(num_gpu_blocks=1001, watermark=0.9), 2000, 200)
    assert (found.binding, found.batch) == ("kv_blocks", pytest.approx(1.0))


def test_a_prompt_that_fills_the_cache_to_the_last_token_has_a_capacity() -> None:
    assert capacity(engine(num_gpu_blocks=101), 1600, 1).batch == pytest.approx(1.0)


def test_mean_request_over_the_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="a request of 2100 tokens on average is over the KV cache of 1600 tokens"):
        capacity(engine(num_gpu_blocks=101), 2000, 200)
