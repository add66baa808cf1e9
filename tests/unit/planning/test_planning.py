"""Closed forms of a deployment: how they fit the engine's own step, and what they refuse. The texts' values: tests/golden."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from experiments.contracts.fleets import engine
from planning.adapters import lora_flops_share
from planning.balance import mixed, mixed_at, mixed_capacity
from planning.costs import blended_price, break_even_utilization, dollars_per_million, mean_utilization, token_cost
from planning.days import replicas_of_day
from planning.instance import Instance
from planning.kv import kv_transfer_s, max_concurrent_requests, sequence_kv_bytes
from planning.layouts import Work, instances, largest_batch_within, layout
from planning.model_cache import ModelCache
from planning.pools import Demand, decode_pool, fleet_size, num_instances, prefill_pool, shared_pool
from planning.published import PublishedFleet
from planning.queue_paths import waits_at_random_s, waits_in_one_line_s, waits_s
from planning.roofline import all_reduce_s, fastest_tensor_parallel_size, ridge_point
from planning.steps import decode_step_s, equal_requests, mask_bytes, mask_cpu_s, prefill_s, terms
from replicas.capacity import capacity
from replicas.catalog import gpu, model
from replicas.step_time import step_time
from replicas.surrogate import Surrogate
from sim.queueing import mg1, mmc, num_in_system

H100, LLAMA_70B, LLAMA_8B = gpu("h100-sxm"), model("llama-3.1-70b"), model("llama-3.1-8b")
FP8: dict[str, Any] = {"quantization": "fp8", "max_model_len": 16_384}


def tp(size: int, **options: Any) -> Instance:
    return Instance(Surrogate(tensor_parallel_size=size, **{**FP8, **options}), LLAMA_70B, H100)


def test_a_step_is_the_sum_of_its_terms() -> None:
    for async_scheduling in (True, False):
        engine = tp(4, cpu_s=0.001, overhead_s=0.0005, async_scheduling=async_scheduling).engine
        for new, cached in ((1, 2199), (2000, 0)):
            found = terms(engine, equal_requests(16, new, cached))
            gpu_s = max(found.arithmetic_s, found.memory_s) + found.links_s + found.overhead_s
            expected = max(gpu_s, found.cpu_s) if async_scheduling else gpu_s + found.cpu_s
            assert found.step_s == pytest.approx(expected)
            assert found.step_s == step_time(equal_requests(16, new, cached), engine)
    assert terms(engine, equal_requests(16, 2000, 0)).binding == "arithmetic"
    assert terms(engine, equal_requests(16, 1, 2199)).binding == "memory"


def test_an_all_reduce_is_what_a_ring_takes() -> None:
    """8 GPUs: 14 messages of 2 us and 14/8 of 1,000 x 8,192 x 2 bytes at 450 GB/s."""
    expected = 14 * 2e-6 + 14 / 8 * 1000 * 8192 * 2 / 450e9
    assert all_reduce_s(tp(8).engine, 80, 1000) == pytest.approx(expected)
    assert all_reduce_s(Surrogate().engine(LLAMA_8B, H100)[0], 32, 1000) == 0.0


@pytest.mark.parametrize(("size", "mfu"), [(2, 0.5), (4, 0.5), (4, 0.3), (8, 0.4)])
def test_a_prefill_reaches_the_stated_mfu_links_included(size: int, mfu: float) -> None:
    assert tp(size).with_mfu(mfu, 2000).mfu(2000) == pytest.approx(mfu, rel=1e-6)


def test_what_the_links_do_not_leave_room_for_is_not_reached() -> None:
    found = tp(8).with_mfu(0.9, 2000)
    assert found.replicas.flops_efficiency == 1.0
    assert found.mfu(2000) < 0.7


@pytest.mark.parametrize("tpot_s", [0.015, 0.02, 0.05])
def test_the_largest_batch_within_a_target_is_the_largest(tpot_s: float) -> None:
    found = largest_batch_within(tp(4), 2200, tpot_s, 10_000)
    assert decode_step_s(tp(4).engine, found, 2200) <= tpot_s < decode_step_s(tp(4).engine, found + 1, 2200)
    assert largest_batch_within(tp(4), 2200, 0.001, 100) == 0
    assert largest_batch_within(tp(4), 2200, None, 100) == 100


def test_a_batch_whose_step_lasts_just_as_long_as_it_may_is_within() -> None:
    one = tp(4)
    assert one.step_s(40, 2200) < one.step_s(41, 2200)
    assert largest_batch_within(one, 2200, one.step_s(40, 2200), 100) == 40


def test_a_layout_says_what_binds_it() -> None:
    assert layout(tp(4), Work(2200, 2200)).binding == "memory"
    assert layout(tp(4), Work(2200, 2200, 0.02)).binding == "tpot"
    assert layout(tp(8), Work(200, 200)).binding == "max_num_seqs"
    assert layout(tp(4), Work(2200, 4400)).memory_batch == layout(tp(4), Work(2200, 2200)).memory_batch // 2
    assert "does not fit" in layout(tp(1, quantization=None), Work(2200, 2200)).problem
    assert "a token alone takes" in layout(tp(4), Work(2200, 2200, 0.001)).problem
    assert "fits" in layout(tp(4), Work(10**7, 10**7)).problem


def test_pipelines_are_tried_only_where_the_model_does_not_fit_one_machine() -> None:
    assert [(one.num_gpus, one.num_stages) for one in instances(Surrogate(**FP8), LLAMA_70B, H100)] == [
        (1, 1),
        (2, 1),
        (4, 1),
        (8, 1),
    ]
    huge = list(instances(Surrogate(max_model_len=16_384), model("llama-3.1-405b"), H100))  # 811 GB in bf16 on 640 GB
    assert [one.num_stages for one in huge] == [1, 1, 1, 1, 2]
    found = layout(huge[-1], Work(2200, 2200))
    assert (found.name, found.problem, found.num_gpus) == ("TP8 PP2", "", 16)


@pytest.mark.parametrize(("gpus_per_node", "stages"), [(4, [1, 1, 1, 2, 4]), (2, [1, 1, 2, 4, 8])])
def test_a_model_that_two_machines_do_not_hold_is_tried_on_twice_as_many(gpus_per_node: int, stages: list[int]) -> None:
    """811 GB in bf16, on machines of 320 or 160 GB."""
    huge = list(instances(Surrogate(max_model_len=16_384), model("llama-3.1-405b"), H100, gpus_per_node))
    assert [one.num_stages for one in huge] == stages


def test_heads_are_split_evenly_or_not_at_all() -> None:
    """Of 28 heads eight GPUs would have three and a half each."""
    odd = LLAMA_8B.model_copy(update={"heads": 28, "kv_heads": 4})
    assert [one.num_gpus for one in instances(Surrogate(max_model_len=4096), odd, H100)] == [1, 2, 4]


def test_a_pipeline_of_two_holds_all_layers_and_makes_no_token_faster() -> None:
    whole, split = tp(8), Instance(tp(8).replicas, LLAMA_70B, H100, num_stages=2)
    assert split.kv_bytes_per_token == whole.kv_bytes_per_token
    assert split.weight_bytes == pytest.approx(whole.weight_bytes, rel=1e-6)
    assert split.cache_tokens > 2 * whole.cache_tokens  # twice the GPUs, and the weights only once
    assert split.step_s(1, 2200) > whole.step_s(1, 2200)
    assert split.prefill_tokens_per_s(2000) == pytest.approx(2 * whole.prefill_tokens_per_s(2000), rel=0.01)


def test_between_two_stages_hidden_states_of_what_is_computed_go_over_the_network_once() -> None:
    """8,192 numbers of two bytes a token at 50 GB/s, and one message's latency; what is cached is not sent."""
    plain = Instance(Surrogate(link_latency_s=1e-3, **FP8), LLAMA_70B, H100, num_stages=2)
    stages_s = 2 * prefill_s(plain.engine, 2000, 500)
    assert plain.prefill_s(2000, 500) - stages_s == pytest.approx(1e-3 + 1500 * 8192 * 2 / 50e9)


def group(size: int) -> Instance:
    options = {"quantization": "fp8", "max_model_len": 32_768, "max_num_seqs": 256}
    return Instance(Surrogate(**options), model("deepseek-v3"), H100, expert_parallel_size=size)


def test_a_group_holds_attention_on_every_gpu_and_each_expert_once() -> None:
    of = model("deepseek-v3")
    others = of.num_params - of.num_expert_params  # in fp8, one byte each
    for size in (32, 144):
        one = group(size)
        assert one.num_gpus == size
        assert one.weight_bytes == pytest.approx(size * others + of.num_expert_params, rel=1e-6)
        assert one.engine.flops_per_token == 2 * of.num_active_params
        assert one.kv_bytes_per_token == 70_272  # on one GPU, not repeated as in tensor parallelism
    assert group(144).cache_tokens > 144 / 32 * group(32).cache_tokens  # less of the experts on each


def test_a_group_sends_each_token_to_eight_experts_and_back() -> None:
    """58 layers x 8 experts x 7,168 x (1 + 2) bytes, 143 of 144 to other GPUs, at 50 GB/s: 0.2 ms a token."""
    assert group(144).exchange_s(100) == pytest.approx(100 * 58 * 8 * 7168 * 3 * 143 / 144 / 50e9)
    assert tp(4).exchange_s(100) == 0.0
    assert group(144).prefill_s(4000) >= group(144).exchange_s(4000)


def test_each_gpu_of_a_group_reads_a_prompt_of_its_own() -> None:
    """A second of each, and what is cached is read by none."""
    one = group(32)
    for cached in (0, 1500):
        assert one.prefill_tokens_per_s(2000, cached) * one.prefill_s(2000, cached) == pytest.approx(32 * (2000 - cached))


def test_more_gpus_in_a_group_give_each_of_them_more_to_do() -> None:
    found = {size: layout(group(size), Work(4989, 4989, 0.05)) for size in (32, 144)}
    assert found[144].name == "EP144"
    assert found[144].tokens_per_s_per_gpu > found[32].tokens_per_s_per_gpu > 0


def test_a_group_is_of_engines_of_one_gpu_each() -> None:
    wide = Surrogate(quantization="fp8", max_model_len=32_768, tensor_parallel_size=8)
    *_, last = instances(wide, model("deepseek-v3"), H100, expert_parallel_sizes=[32])
    assert (last.expert_parallel_size, last.replicas.tensor_parallel_size) == (32, 1)


@pytest.mark.parametrize(
    ("quantization", "device", "rate"),
    [(None, "h100-sxm", "bf16"), ("fp8", "h100-sxm", "fp8"), ("fp8", "a100-sxm", "bf16")],
)
def test_the_peak_is_that_of_the_weights_width_where_the_gpu_has_one(quantization: Any, device: str, rate: str) -> None:
    one = Instance(Surrogate(quantization=quantization, tensor_parallel_size=2, max_model_len=4096), LLAMA_8B, gpu(device))
    assert one.peak_flops_per_s == 2 * getattr(gpu(device), f"{rate}_flops_per_s")


def test_nothing_of_a_prompt_is_cached_unless_it_is_said() -> None:
    assert tp(4).prefill_tokens_per_s(2000) == tp(4).prefill_tokens_per_s(2000, 0)


def test_an_adapter_has_a_rank_of_one_at_least() -> None:
    assert lora_flops_share(LLAMA_8B, 2) == 2 * lora_flops_share(LLAMA_8B, 1) > 0
    with pytest.raises(ValueError, match="rank must be a whole number from 1 up, got 0"):
        lora_flops_share(LLAMA_8B, 0)


def test_a_dense_model_has_no_experts_to_share() -> None:
    with pytest.raises(ValueError, match=r"llama-3.1-8b has no experts"):
        Instance(Surrogate(), LLAMA_8B, H100, expert_parallel_size=8)
    with pytest.raises(ValueError, match="no pipeline and no tensor parallelism"):
        Instance(Surrogate(tensor_parallel_size=8), model("deepseek-v3"), H100, expert_parallel_size=8)


def test_pools_carry_their_load_within_the_headroom_and_no_instance_is_idle() -> None:
    for rate_per_s in (1.0, 37.0, 200.0):
        demand = Demand(rate_per_s, 2000, 400)
        for pool in (prefill_pool(tp(4), demand, 0.8), decode_pool(layout(tp(4), Work(2200, 2200)), demand, 0.8)):
            assert pool.utilization <= 0.8
            assert pool.num_instances == 1 or pool.utilization_without(1) > 0.8
    assert pool.utilization_without(pool.num_instances) == np.inf


def test_spares_come_on_top_and_a_slower_instance_takes_more() -> None:
    demand = Demand(200, 2000, 400)
    plain, spare = prefill_pool(tp(4), demand, 0.8), prefill_pool(tp(4), demand, 0.8, num_spare=2)
    assert spare.num_instances == plain.num_instances + 2
    laid = layout(tp(4), Work(2200, 2200))
    assert decode_pool(laid, demand, 0.8, 2).num_instances == decode_pool(laid, demand, 0.8).num_instances + 2
    mix = mixed_capacity(tp(4).engine, 2000, 400)
    assert shared_pool(tp(4), mix, demand, 0.8, 2).num_instances == shared_pool(tp(4), mix, demand, 0.8).num_instances + 2
    assert spare.derated(0.8, 0.8).num_instances >= (plain.num_instances + 2)
    assert plain.derated(1.0, 0.8) == plain


def test_a_shared_pool_needs_less_than_its_parts_and_more_than_the_bound() -> None:
    """It fills some of the idle arithmetic of decode steps; all of it only in the mean-field bound."""
    demand, one = Demand(200, 2000, 400), tp(4).with_mfu(0.5, 2000)
    found = mixed_capacity(one.engine, 2000, 400)
    assert found is not None
    shared = shared_pool(one, found, demand, 0.8).num_instances
    bound = num_instances(200, capacity(one.engine, 2000, 400).requests_per_s, 0.8)
    separate = (
        prefill_pool(one, demand, 0.8).num_instances + decode_pool(layout(one, Work(2200, 2200)), demand, 0.8).num_instances
    )
    assert bound < shared <= separate


@pytest.mark.parametrize("budget", [512, 2048, 8192])
def test_mixing_never_beats_the_mean_field_and_comes_close_to_it_with_a_small_budget(budget: int) -> None:
    engine = tp(4, max_num_batched_tokens=budget, max_num_seqs=256).with_mfu(0.5, 2000).engine
    found, bound = mixed_capacity(engine, 2000, 400), capacity(engine, 2000, 400)
    assert found is not None
    assert found.requests_per_s <= bound.requests_per_s * 1.01  # rounding to whole tokens
    assert found.prompt_share <= 1 + 1e-9
    if budget == 512:
        assert found.requests_per_s > 0.9 * bound.requests_per_s


def test_a_balance_keeps_littles_law_and_ends_at_the_capacity() -> None:
    engine = tp(4).with_mfu(0.5, 2000).engine
    full = mixed_capacity(engine, 2000, 400)
    assert full is not None
    half = mixed_at(engine, full.requests_per_s / 2, 2000, 400)
    assert half is not None
    assert half.requests_per_s == pytest.approx(full.requests_per_s / 2, rel=1e-6)
    assert half.batch == pytest.approx(num_in_system(half.requests_per_s, 399 * half.tpot_s))
    assert half.batch < full.batch / 2  # slower than in proportion: congestion
    assert mixed_at(engine, 1.01 * full.requests_per_s, 2000, 400) is None
    limited = mixed_capacity(engine, 2000, 400, tpot_s=0.04)
    assert limited is not None
    assert limited.tpot_s == pytest.approx(0.04, rel=1e-3)
    assert limited.binding == "tpot"
    assert mixed_capacity(engine, 2000, 400, tpot_s=0.001) is None


def test_an_answer_of_one_token_cannot_be_balanced() -> None:
    with pytest.raises(ValueError, match="mean_output_tokens must be above 1"):
        mixed(tp(4).engine, 10, 2000, 1)


def test_lindley_and_kiefer_wolfowitz_agree_with_closed_forms() -> None:
    """100,000 requests at a load of 0.7; the standard errors are 1 to 2 %, the tolerance four of them."""
    rng = np.random.default_rng(1)
    gaps, services = rng.exponential(1 / 0.7, 100_000), rng.exponential(1.0, 100_000)
    assert waits_s(gaps, services).mean() == pytest.approx(mg1(0.7, 1.0, 1.0).wait_s, rel=0.08)
    assert np.allclose(waits_s(gaps, services), waits_in_one_line_s(gaps, services, 1))
    pooled, split = waits_in_one_line_s(gaps / 8, services, 8), waits_at_random_s(gaps / 8, services, 8, rng)
    assert pooled.mean() == pytest.approx(mmc(5.6, 1.0, 8).wait_s, rel=0.08)
    assert split.mean() == pytest.approx(mg1(0.7, 1.0, 1.0).wait_s, rel=0.08)


@pytest.mark.parametrize(("gap_s", "service_s"), [(-0.5, 1.0), (1.0, -0.5), (math.nan, 1.0), (1.0, math.inf)])
def test_a_path_of_a_queue_takes_no_time_that_is_negative_or_endless(gap_s: float, service_s: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        waits_s(np.array([gap_s]), np.array([service_s]))


@pytest.mark.parametrize("cold_start", [0, 1, 7])
def test_reaction_in_closed_form_is_one_cold_start_behind_all_day_long(cold_start: int) -> None:
    load = 120 - 80 * np.cos(2 * np.pi * np.arange(288) / 288)
    reactive = replicas_of_day(load, 5.0, cold_start, "reactive")
    forecast = replicas_of_day(load, 5.0, cold_start, "forecast")
    fixed = replicas_of_day(load, 5.0, cold_start, "fixed")
    needed = np.ceil(load / 5.0 * (1 - 1e-12))
    rising = slice(cold_start + 1, 145)
    assert (reactive.ready[rising] == needed[1 : 145 - cold_start]).all()
    assert not forecast.short(load, 5.0).any()
    assert reactive.short(load, 5.0).any() == (cold_start > 0)
    assert set(fixed.ready) == {40}
    assert reactive.billed.sum() <= forecast.billed.sum() <= fixed.billed.sum()
    assert all((day.billed >= day.ready).all() for day in (reactive, forecast, fixed))


def test_costs_add_up_whatever_the_rule() -> None:
    cost = token_cost(76, 36, 2.0, 400_000, 80_000)
    dollars = cost.per_million_input * 0.4 + cost.per_million_output * 0.08
    assert dollars == pytest.approx(cost.per_million * 0.48)
    assert dollars_per_million(112, 2.0, 480_000) == pytest.approx(cost.per_million)


def test_at_break_even_the_fleet_costs_what_the_api_does() -> None:
    price = blended_price(0.1, 0.6, 2000, 400)
    utilization = break_even_utilization(0.12, price)
    assert 0.12 / utilization == pytest.approx(price)


def test_deepseeks_nodes_follow_from_its_tokens() -> None:
    """608 G input and 168 G output tokens at 73,700 and 14,800 a second and node: 95.5 and 131.4 nodes, as published 226.75."""
    fleet = PublishedFleet(278, 226.75, 8, 608e9, 342e9, 168e9, 73_700, 14_800)
    assert fleet.prefill_nodes is not None
    assert fleet.decode_nodes is not None
    assert fleet.prefill_nodes + fleet.decode_nodes == pytest.approx(226.75, rel=0.002)
    assert fleet.dollars_per_day(2.0) == 87_072


def test_windows_and_masks() -> None:
    assert sequence_kv_bytes(LLAMA_8B, 100, window_tokens=1024, num_windowed_layers=16) == sequence_kv_bytes(LLAMA_8B, 100)
    in_all_layers = sequence_kv_bytes(LLAMA_8B, 8192, window_tokens=1024, num_windowed_layers=LLAMA_8B.layers)
    assert in_all_layers == sequence_kv_bytes(LLAMA_8B, 1024)
    assert sequence_kv_bytes(model("deepseek-v3"), 1) == 70_272
    assert kv_transfer_s(2000, 1000.0, 1e6, latency_s=0.5) == 2.5
    assert mask_bytes(256, 128_256) == pytest.approx(4.1e6, rel=0.01)
    assert mask_bytes(3, 33) == 3 * 8  # a token more than a word of 32 bits holds
    assert mask_cpu_s(64, num_threads=8) == mask_cpu_s(8)
    assert mask_cpu_s(65, num_threads=8) == mask_cpu_s(9)


def test_a_step_reads_all_of_its_contexts_the_new_tokens_included() -> None:
    """A second for each token of KV."""
    one = engine(kv_bytes_per_token=1.0, bytes_per_s=1.0, overhead_s=0.0)[0]
    assert decode_step_s(one, 3, 100) == 300.0
    assert prefill_s(one, 100, 60) == 100.0


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (lambda: ridge_point(0.0, 1.0), "flops_per_s must be a positive number"),
        (lambda: fastest_tensor_parallel_size(1e9, 0, 1e-6, 1e12), "layers must be a whole number"),
        (lambda: max_concurrent_requests(80e9 - 140e9, 2048, 131_072), "the weights and the reserve do not fit"),
        (lambda: kv_transfer_s(-1, 1, 1), "num_tokens must be a positive number"),
        (lambda: sequence_kv_bytes(LLAMA_8B, 10, num_windowed_layers=3), "needs window_tokens"),
        (lambda: sequence_kv_bytes(LLAMA_8B, 10, window_tokens=5, num_windowed_layers=33), "must lie in 0..32"),
        (lambda: equal_requests(0, 1, 1), "num_requests must be a whole number from 1 up"),
        (lambda: tp(4).with_mfu(1.5, 2000), "mfu must be a share"),
        (lambda: Demand(float("nan"), 1, 1), "requests_per_s must be a positive number, got nan"),
        (lambda: Demand(1, 1, 1, 1.0), "cached_share must lie in"),
        (lambda: num_instances(1.0, 1.0, 1.2), "max_utilization must be a share"),
        (lambda: decode_pool(layout(tp(1), Work(10**6, 10**6)), Demand(1, 1, 1), 0.8), "cannot run"),
        (lambda: layout(tp(4), Work(-1, 1)), "context_tokens must be a positive number"),
        (lambda: replicas_of_day(np.array([]), 1.0, 1, "fixed"), "load must be finite numbers"),
        (lambda: replicas_of_day(np.ones(3), 1.0, -1, "fixed"), "cold_start_steps must be a whole number from 0 up"),
        (lambda: waits_s(np.ones(2), np.ones(3)), "as long as each other"),
        (lambda: waits_s(np.ones(2), -np.ones(2)), "finite and not negative"),
        (lambda: break_even_utilization(0.0, 1.0), "full_cost must be a positive number"),
        (lambda: mean_utilization(2.0, 1.0, 0.8), "is above peak_per_s"),
        (lambda: PublishedFleet(1, 2, 8), "is above peak_nodes"),
        (lambda: PublishedFleet(2, 1, 8, input_tokens=-1.0), "input_tokens must be a positive number"),
    ],
)
def test_what_is_impossible_or_nonsense_is_refused(ask: Callable[[], Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        ask()


def engine_8b(**options: Any) -> Any:
    return Instance(Surrogate(max_model_len=32_768, **options), LLAMA_8B, H100).with_mfu(0.5, 2000).engine


@pytest.mark.parametrize("block_size", [16, 64])
def test_the_last_block_of_each_answer_is_half_empty(block_size: int) -> None:
    engine = engine_8b(block_size=block_size)
    found = mixed_capacity(engine, 2000, 400)
    assert found is not None
    assert found.binding == "memory"
    assert found.batch == pytest.approx(engine.num_usable_blocks * block_size / (2000 + 400 / 2 + block_size / 2))


def test_what_the_watermark_keeps_free_holds_no_answer() -> None:
    all_of_it, most = (mixed_capacity(engine_8b(watermark=share), 2000, 400) for share in (0.0, 0.25))
    assert all_of_it is not None
    assert most is not None
    assert most.batch == pytest.approx(0.75 * all_of_it.batch, rel=1e-3)


def test_max_num_seqs_and_the_budget_limit_the_answers_under_way() -> None:
    seqs = mixed_capacity(engine_8b(max_num_seqs=32), 2000, 400)
    assert seqs is not None
    assert (seqs.batch, seqs.binding) == (32, "max_num_seqs")
    assert mixed_capacity(engine_8b(num_gpu_blocks=2), 2000, 400) is None


def test_a_balance_is_its_formula() -> None:
    """A prompt of 2,000 in a budget of 1,024 beside 100 answers: three chunks of 667, which read each other."""
    engine, batch, prompt, output = engine_8b(max_num_batched_tokens=1024), 100.0, 2000.0, 400.0
    found = mixed(engine, batch, prompt, output)

    def seconds(num_requests: int, num_tokens: int, attended: float, read: float) -> float:
        step = equal_requests(1, 1, 0)
        step.num_requests, step.num_tokens, step.attended_tokens, step.kv_tokens = num_requests, num_tokens, attended, read
        return float(step_time(step, engine))

    context, chunks = batch * (prompt + output / 2), 3
    decode_s = seconds(100, 100, context, context)
    read = prompt * (1 + 2 + 3) / 3 / 3
    prompt_s = seconds(101, round(100 + prompt / chunks), context + prompt**2 / 2 / chunks, round(context + read))
    each_s = (output - 1) * decode_s / batch + chunks * (prompt_s - decode_s)
    assert found.requests_per_s == pytest.approx(1 / each_s)
    assert found.tpot_s == pytest.approx(batch * each_s / (output - 1))
    assert found.prompt_share == pytest.approx(chunks * prompt_s / each_s)
    fits, does_not = (mixed(engine, 24.0, tokens, output).requests_per_s for tokens in (1000, 1001))
    assert abs(fits / does_not - 1) > 0.01  # a second chunk, for one token


def test_each_chunk_of_a_prompt_reads_the_chunks_before_it() -> None:
    """A second for each token of KV that a step reads. 300 tokens in three chunks beside one answer of 10 tokens.

    A decode reads 305; with a chunk beside it, which has read 100, 200 or 300 itself, 505 on average.
    """
    one = engine(max_num_batched_tokens=101, kv_bytes_per_token=1.0, bytes_per_s=1.0, overhead_s=0.0)[0]
    found = mixed(one, 1, 300, 10)
    assert 1 / found.requests_per_s == pytest.approx(9 * 305 + 3 * 200)
    assert found.prompt_share == pytest.approx(3 * 505 / (9 * 305 + 3 * 200))


def test_a_prompt_is_a_request_of_its_step() -> None:
    """A second for each request of a step: four answers of 10 tokens share 9 steps of 4 s each, a prompt adds 1 s."""
    one = engine(cpu_s_per_request=1.0, overhead_s=0.0)[0]
    assert 1 / mixed(one, 4, 100, 10).requests_per_s == pytest.approx(9 * 4 / 4 + 1)


def test_a_balance_leaves_room_in_the_budget_for_prompts() -> None:
    """64 tokens a step, and as many answers that could be under way: fewer are, as prompts need their share of the time."""
    found = mixed_capacity(engine_8b(max_num_batched_tokens=64, max_num_seqs=64), 100, 400)
    assert found.binding == "max_num_batched_tokens"
    assert found.batch < 63
    assert found.prompt_share == pytest.approx(1.0)


def test_an_engine_of_one_request_at_a_time_has_a_balance() -> None:
    found = mixed_capacity(engine_8b(max_num_seqs=1), 2000, 400)
    assert (found.batch, found.binding) == (1.0, "max_num_seqs")


def test_a_target_or_a_rate_that_is_just_the_capacitys_own_is_within_it() -> None:
    one = engine_8b()
    full = mixed_capacity(one, 2000, 400)
    assert mixed_capacity(one, 2000, 400, full.tpot_s) == full
    assert mixed_at(one, full.requests_per_s, 2000, 400).requests_per_s >= full.requests_per_s


def test_short_answers_are_under_way_less_than_all_the_time() -> None:
    """16,000 in, 3 out: seldom is one answer under way, and a request alone has the TPOT of a decode step."""
    engine = engine_8b()
    alone_s = decode_step_s(engine, 1, 16_001.5)
    seldom = mixed_at(engine, 0.01, 16_000, 3)
    assert seldom is not None
    assert seldom.batch < 1
    assert seldom.tpot_s == pytest.approx(alone_s, rel=0.02)
    assert mixed_capacity(engine, 16_000, 3, 0.9 * alone_s) is None
    limited = mixed_capacity(engine, 16_000, 3, 2 * alone_s)
    assert limited is not None
    assert limited.tpot_s == pytest.approx(2 * alone_s)
    full = mixed_capacity(engine, 16_000, 3)
    assert full is not None
    assert full.prompt_share == pytest.approx(1.0)  # prompts alone, in steps after steps


@pytest.mark.parametrize("prompt", [50, 2000, 16_000])
def test_answers_of_one_token_are_prompts_alone(prompt: int) -> None:
    engine = engine_8b()
    one, little_more = mixed_capacity(engine, prompt, 1, tpot_s=1e-6), mixed_capacity(engine, prompt, 1.0001)
    assert one is not None
    assert little_more is not None
    assert np.isnan(one.tpot_s)
    assert one.requests_per_s == pytest.approx(capacity(engine, prompt, 1).requests_per_s)
    assert one.requests_per_s >= 0.99 * little_more.requests_per_s  # the latter reads one prompt a step
    assert mixed_at(engine, 0.1, prompt, 1) is None
    with pytest.raises(ValueError, match="answers of one token have no decode pool"):
        decode_pool(layout(tp(4), Work(2000, 2000)), Demand(1, prompt, 1), 0.8)


def test_loads_of_pools_count_what_is_computed_and_no_first_token() -> None:
    demand = Demand(10, 2000, 400, 0.25)
    assert (demand.cached_tokens, demand.context_tokens) == (500, 2200)
    prefill = prefill_pool(tp(4), demand, 0.8)
    assert prefill.load == 10 * 1500
    assert prefill.capacity == pytest.approx(tp(4).prefill_tokens_per_s(2000, 500))
    assert prefill.num_gpus == 4 * prefill.num_instances
    assert decode_pool(layout(tp(4), Work(2200, 2200)), demand, 0.8).load == 10 * 399
    assert prefill.utilization == pytest.approx(prefill.load / prefill.capacity / prefill.num_instances)
    assert prefill.utilization_without(0) == prefill.utilization


def test_a_load_that_fits_exactly_takes_no_further_instance() -> None:
    assert num_instances(40.0, 10.0, 0.8) == 5
    assert num_instances(40.001, 10.0, 0.8) == 6
    assert num_instances(0.0, 10.0, 0.8) == 1
    assert num_instances(21.0, 1.0, 0.7) == 30  # in floats 30.000000000000004


def test_a_fleet_that_memory_and_throughput_bind_alike_is_called_bound_by_memory() -> None:
    """Ten requests in the system, five to a replica; ten requests/s, five to a replica at half its capacity."""
    assert fleet_size(10.0, 1.0, 10.0, 0.5, 5) == (2, "memory-bound")
    assert fleet_size(10.1, 1.0, 10.0, 0.5, 6) == (3, "throughput-bound")


def test_a_slower_instance_does_less_in_proportion() -> None:
    plain = prefill_pool(tp(4), Demand(200, 2000, 400), 0.8, num_spare=1)
    slower = plain.derated(0.5, 0.8)
    assert slower.capacity == 0.5 * plain.capacity
    assert slower.num_instances == 1 + num_instances(plain.load, 0.5 * plain.capacity, 0.8)


def test_dollars_go_to_the_tokens_of_their_phase() -> None:
    cost = token_cost(76, 36, 2.0, 400_000, 80_000)
    assert cost.per_million_input == pytest.approx(76 * 2 / 3600 / 0.4)
    assert cost.per_million_output == pytest.approx(36 * 2 / 3600 / 0.08)
    assert cost.per_million == pytest.approx(112 * 2 / 3600 / 0.48)
    assert token_cost(4, 0, 2.0, 1000, 1).per_million_output == 0.0  # answers of one token
    assert mean_utilization(120, 120, 0.8) == 0.8


def test_what_a_published_fleet_computes_is_what_no_cache_answered() -> None:
    fleet = PublishedFleet(278, 226.75, 8, 608e9, 342e9, 168e9, 73_700, 14_800)
    assert fleet.computed_input_per_s == pytest.approx((608e9 - 342e9) / 86_400)
    assert PublishedFleet(278, 226.75, 8).computed_input_per_s is None
    assert PublishedFleet(2, 2, 8, 1.0, 1.0).computed_input_per_s == 0.0
    with pytest.raises(ValueError, match="cached_input_tokens 2 is above input_tokens 1"):
        PublishedFleet(2, 1, 8, 1.0, 2.0)


def test_a_day_by_hand() -> None:
    """One replica does one; a cold start takes two steps, and the day before was the same."""
    load = np.array([1.0, 1.0, 3.0, 3.0, 3.0, 2.0, 1.0, 1.0])
    reactive = replicas_of_day(load, 1.0, 2, "reactive")
    assert reactive.ready.tolist() == [1, 1, 1, 1, 3, 2, 1, 1]
    assert reactive.billed.tolist() == [1, 1, 3, 3, 3, 2, 1, 1]
    forecast = replicas_of_day(load, 1.0, 2, "forecast")
    assert forecast.ready.tolist() == [1, 1, 3, 3, 3, 2, 1, 1]
    assert forecast.billed.tolist() == [3, 3, 3, 3, 3, 2, 1, 1]
    assert replicas_of_day(load, 2.0, 0, "reactive").ready.tolist() == [1, 1, 2, 2, 2, 1, 1, 1]
    assert replicas_of_day(load, 2.0, 0, "reactive", 0.5, 2).ready.tolist() == [2, 2, 3, 3, 3, 2, 2, 2]
    assert replicas_of_day(np.zeros(3), 1.0, 1, "fixed", 1.0, 0).billed.tolist() == [0, 0, 0]


def test_a_start_that_is_no_longer_wanted_is_cancelled() -> None:
    """Three are asked for in step 1 and one of them called off in step 2: two are ready in step 4."""
    load = np.array([1.0, 4.0, 3.0, 3.0, 3.0, 3.0])
    found = replicas_of_day(load, 1.0, 3, "reactive")
    assert found.ready.tolist() == [1, 1, 1, 1, 3, 3]
    assert found.billed.tolist() == [1, 4, 3, 3, 3, 3]


def test_of_two_starts_the_younger_is_cancelled() -> None:
    """Asked for in steps 1 and 2; one too many in step 3. What stays is ready in step 4."""
    found = replicas_of_day(np.array([1.0, 2.0, 3.0, 2.0, 2.0, 2.0]), 1.0, 3, "reactive")
    assert found.ready.tolist() == [1, 1, 1, 1, 2, 2]
    assert found.billed.tolist() == [1, 2, 3, 2, 2, 2]


def test_a_day_of_floats_takes_no_replica_for_their_rounding() -> None:
    """21 / 0.7 is 30.000000000000004 in floats."""
    assert replicas_of_day(np.array([21.0, 21.1]), 1.0, 0, "reactive", 0.7).ready.tolist() == [30, 31]


def test_a_calibrated_instance_moves_the_bytes_of_its_cache() -> None:
    """Its engine counts the time of reading KV in bytes; a transfer takes those that there are."""
    plain = Instance(Surrogate(max_model_len=4096), LLAMA_8B, gpu("a100-sxm"))
    measured = Instance(
        Surrogate(max_model_len=4096, calibration="calibrations/vllm-0.15_a100-sxm_served.yaml"), LLAMA_8B, gpu("a100-sxm")
    )
    assert measured.engine.kv_bytes_per_token != plain.engine.kv_bytes_per_token
    assert measured.kv_bytes_per_token == plain.kv_bytes_per_token == 131_072
    assert plain.mfu(2000) == pytest.approx(1.0)
    assert 0.3 < measured.mfu(2000) < 1.0


def test_a_batch_between_two_whole_ones_is_the_nearer() -> None:
    """With 100.6 answers under way a step has 101 of them, and 102 requests while it reads a prompt."""
    engine = engine_8b(cpu_s_per_request=1e-3, async_scheduling=False)  # so that the number of requests is felt
    found, whole = mixed(engine, 100.6, 2000, 400), mixed(engine, 101.0, 2000, 400)
    each_s, whole_s = (1 / one.requests_per_s for one in (found, whole))
    assert each_s * 100.6 / 101 == pytest.approx(whole_s, rel=5e-3)


def test_a_layout_that_cannot_run_holds_nothing() -> None:
    found = layout(tp(1, quantization=None), Work(2200, 2200))
    assert (found.memory_batch, found.tpot_batch, found.batch, found.tokens_per_s) == (0, 0, 0, 0.0)
    assert np.isnan([found.step_s, found.alone_s]).all()


def test_services_and_gaps_may_be_nothing() -> None:
    assert waits_s(np.zeros(3), np.zeros(3)).tolist() == [0.0, 0.0, 0.0]


def test_a_mean_that_is_the_peak_but_for_rounding_is_no_mistake() -> None:
    assert mean_utilization(1.0 + 1e-10, 1.0, 0.8) == pytest.approx(0.8)


def test_a_model_cache_counts_from_zero() -> None:
    cache = ModelCache(100.0)
    assert (cache.num_hits, cache.num_misses, cache.used_bytes) == (0, 0, 0)
    for name in ("a", "b", "a"):
        cache.load(name, 40.0)
    assert (cache.num_hits, cache.num_misses, cache.used_bytes) == (1, 2, 80.0)
    assert cache.load("c", 60.0) == ["b"]  # exactly full
    assert cache.loaded == ["a", "c"]
