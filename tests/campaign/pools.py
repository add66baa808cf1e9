"""Random pools: tight engines of every scheduler, machines that come and go, and autoscalers of any kind in tight bounds."""

from random import Random

from autoscalers import Limits
from tests.campaign.draws import Section, some

HARDWARE = (
    ("qwen3-0.6b", "l4", 1),
    ("llama-3.1-8b", "a100-sxm", 1),
    ("llama-3.1-8b", "h100-sxm", 2),
    ("qwen3-30b-a3b", "h100-sxm", 1),
    ("mixtral-8x7b", "h200-sxm", 2),
)
"""Model, GPU, and GPUs that share its layers; the last two have experts."""

CALIBRATED = ("llama-3.1-8b", "h100-sxm", 2)
CALIBRATION = "vllm-0.15_h100-sxm_served.yaml"
MEASURED = ("flops_efficiency", "bandwidth_efficiency", "link_efficiency", "link_latency_s", "overhead_s", "cpu_s")
"""Options that say what a calibration has measured, and so go without one."""


def pool(random: Random, number: int, hardware: tuple[str, str, int]) -> Section:
    """A pool on this hardware."""
    model, gpu, _ = hardware
    return {
        "name": f"p{number}",
        "model": model,
        "gpu": gpu,
        "replicas": engine(random, hardware),
        "lifecycle": lifecycle(random),
        "autoscaler": autoscaler(random),
        **some(random, 0.3, price_per_gpu_hour=2.0, replica_requests_per_s=random.choice([0.5, 5.0])),
    }


def engine(random: Random, hardware: tuple[str, str, int]) -> Section:
    """An engine's options, of vLLM's scheduler, SGLang's or one from before both, with as few blocks as hold a mean request."""
    max_model_len, block_size = random.choice([700, 1600, 4096]), random.choice([1, 16, 16, 64])
    found: Section = {
        "kind": "surrogate",
        "tensor_parallel_size": hardware[2],
        "max_model_len": max_model_len,
        "block_size": block_size,
        "num_gpu_blocks": random.choice([700, 1500, 8000]) // block_size + 2,
        "max_num_seqs": random.choice([1, 3, 16, 256]),
        "max_num_batched_tokens": random.choice([256, 2048, 4096]),
        **scheduling(random),
        **timing(random),
        **random.choice([vllm, vllm, vllm, sglang, before_paging])(random),
    }
    has_experts = hardware in HARDWARE[-2:]
    if hardware[0] != CALIBRATED[0] and random.random() < 0.25:
        found["quantization"] = "fp8"
    if found.get("data_parallel_size", 1) > 1 and has_experts:  # which are shared
        found.pop("pipeline_parallel_size", None)
        found |= some(random, 0.5, prefill_schedule_interval=random.choice([2, 5]))
    if hardware == CALIBRATED and "pipeline_parallel_size" not in found and random.random() < 0.3:
        found = {name: value for name, value in found.items() if not name.startswith(MEASURED)}
        found |= {"calibration": CALIBRATION, **some(random, 0.5, step_time_scale=1.5)}
    if "batching" in found:  # which splits no prompts
        found.pop("long_prefill_token_threshold", None)
    if not found.get("enable_chunked_prefill", "batching" not in found):
        found["max_num_batched_tokens"] = max(max_model_len, found["max_num_batched_tokens"])
    return found


def scheduling(random: Random) -> Section:
    """Limits and rules of the scheduler."""
    return some(
        random,
        0.25,
        max_num_queued_reqs=random.choice([1, 5, 40]),
        max_num_queued_tokens=random.choice([100, 3000]),
        scheduler_reserve_full_isl=False,
        long_prefill_token_threshold=random.choice([32, 300]),
        long_prefill_token_threshold_adaptive=True,
        watermark=random.choice([0.01, 0.1]),
        vllm_version="0.30",
        max_loras=2,
        data_parallel_size=random.choice([2, 3]),
    )


def timing(random: Random) -> Section:
    """What a step and the memory depend on."""
    return some(
        random,
        0.2,
        cpu_s=0.002,
        cpu_s_per_request=0.001,
        overhead_s=random.choice([0.005, 0.2]),
        grammar_cpu_s_per_request=0.001,
        enforce_eager=True,
        max_lora_rank=64,
        kv_cache_dtype="fp8",
        dtype="float16",
        flops_efficiency=0.5,
        bandwidth_efficiency=0.7,
        link_efficiency=0.5,
        link_latency_s=1e-5,
        gpu_memory_utilization=0.9,
        activation_bytes=1e9,
        context_bytes=1e9,
        cuda_graph_bytes=0.0,
    )


def vllm(random: Random) -> Section:
    """vLLM's scheduler, with speculation perhaps."""
    found = some(
        random,
        0.35,
        scheduling_policy="priority",
        async_scheduling=False,
        enable_prefix_caching=random.choice([True, False]),
        enable_chunked_prefill=False,
        pipeline_parallel_size=random.choice([2, 3]),
    )
    if random.random() < 0.3 and (found.get("async_scheduling", True) or "pipeline_parallel_size" not in found):
        found |= {"num_speculative_tokens": random.choice([1, 4]), "speculative_method": random.choice(["ngram", "eagle"])}
        found |= some(random, 0.5, acceptance_rate=random.choice([0.0, 1.0]), draft_s=0.001)
    return found


def sglang(random: Random) -> Section:
    """SGLang's order and jumps."""
    return {"async_scheduling": False, **some(random, 0.7, scheduling_policy="lpm", jump_forward=True)}


def before_paging(random: Random) -> Section:
    """Baselines that set KV aside for the whole answer."""
    return {"batching": random.choice(["orca", "static"]), **some(random, 0.5, async_scheduling=False)}


def lifecycle(random: Random) -> Section:
    """Machines that start at once or slowly, fail often, and drain for less than a request takes."""
    found = {"provision_s": 0.0, "image_s": 0.5, "weights_gb_per_s": 100.0, "start_s": 0.0, "capture_s": 0.0}
    return found | some(
        random,
        0.4,
        provision_s=random.choice([3.0, {"mean_s": 2.0, "std_s": 1.0}]),
        start_s={"mean_s": 1.0, "std_s": 0.5},
        warm_start=False,
        drain_timeout_s=random.choice([0.0, 0.1, 2.0]),
        on_drain_timeout="fail",
        mean_time_to_failure_s=random.choice([0.5, 3.0, 30.0]),
        on_failure="fail",
    )


def autoscaler(random: Random) -> Section:
    """Any autoscaler in tight bounds, scale to zero included."""
    least = random.choice([0, 0, 1, 2])
    most = random.randint(max(1, least), 4)
    shared = {"interval_s": random.choice([0.5, 3.0, 15.0]), "min_replicas": least, "max_replicas": most} | some(
        random,
        0.3,
        initial_replicas=random.randint(least, most),
        scale_up_tolerance=0.3,
        scale_down_tolerance=random.choice([0.0, 0.5]),
        scale_up_stabilization_s=random.choice([2.0, 20.0]),
        scale_up_cooldown_s=2.0,
        scale_down_cooldown_s=5.0,
        max_step_up=1,
        max_step_down=1,
    )
    shared["scale_down_stabilization_s"] = random.choice([0.0, 5.0])
    fixed = {"kind": "fixed", "replicas": random.randint(least, most)}
    reactive = {
        "kind": "queue_target",
        **some(random, 0.6, warm_buffer=random.choice([0, 1]), target_utilization=0.4, replica_token_capacity=900.0),
    }
    ahead = {
        "kind": "forecast",
        "forecaster": random.choice(["naive", "seasonal_naive", {"kind": "seasonal_naive", "num_seasons": 2}, "oracle"]),
        **some(
            random,
            0.4,
            rate_window_s=random.choice([1.0, 5.0]),
            season_s=random.choice([8.0, 86400.0]),
            horizon_s=4.0,
            replica_requests_per_s=random.choice([0.5, 3.0]),
            clear_backlog_s=random.choice([1.0, 10.0]),
            target_utilization=1.0,
        ),
    }
    return random.choice([fixed, reactive, ahead]) | shared


def seen_late_or_together(seed: int, pools: list[Section]) -> list[Section]:
    """The pools, some of whose autoscalers see old gauges, and some of which one autoscaler decides for.

    Drawn apart from all else, which stays as it was for a seed.
    """
    random = Random(f"autoscalers of {seed}")
    scalers: list[Section] = [one["autoscaler"] for one in pools]
    if len(pools) > 1 and random.random() < 0.4:
        limits = [{name: value for name, value in one.items() if name in Limits.model_fields} for one in scalers]
        first = {"kind": "tests.campaign.joint:Level", "interval_s": scalers[0]["interval_s"], **limits[0]}
        scalers = [first, *({"kind": "joint", "with_pool": pools[0]["name"], **own} for own in limits[1:])]
    for one in scalers:
        if one["kind"] != "joint":
            one |= some(random, 0.3, scrape_interval_s=random.choice([0.3, 4.0]))
    return [pool | {"autoscaler": scaler} for pool, scaler in zip(pools, scalers, strict=True)]
