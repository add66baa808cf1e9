"""Random configs over all sections: small, tight and mostly valid, each made of nothing but its seed.

An option is left at its default as often as not, so that most options meet in pairs; limits are drawn tight enough to bind.
Prompts and answers average at most 500 and 100 tokens, which every engine here can hold; the longest of them may not fit.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

Section = dict[str, Any]

HARDWARE = (
    ("qwen3-0.6b", "l4", 1),
    ("llama-3.1-8b", "a100-sxm", 1),
    ("llama-3.1-8b", "h100-sxm", 2),
    ("qwen3-30b-a3b", "h100-sxm", 1),
    ("mixtral-8x7b", "h200-sxm", 2),
)
"""Model, GPU, and GPUs that share its layers; the last two have experts."""

LONGEST_PROMPT, LONGEST_OUTPUT = 1200, 360


def config(seed: int, folder: Path) -> Section:
    """Returns the config of this seed; a file of traffic, if it needs one, is written into `folder`."""
    random = Random(seed)
    sent = traffic(random, folder)
    names = [one["name"] for one in sent.get("classes", [])] or (["a", "b"] if sent["kind"] == "table" else ["default"])
    hardware = random.choice(HARDWARE)
    pools = [pool(random, number, hardware) for number in range(random.choice([1, 1, 1, 2, 3]))]
    return {
        "name": f"campaign_{seed}",
        "seed": random.randrange(100),
        "traffic": sent,
        "classes": {name: kind_of_request(random) for name in names if random.random() < 0.5},
        "slo": slo(random, names),
        "gateway": gateway(random, names),
        "router": router(random),
        "pools": pools,
        "timeline_interval_s": random.choice([0.7, 5.0, 60.0]),
        "max_drain_s": random.choice([0.0, 5.0, 60.0, 600.0]),
        **some(random, 0.3, measure={"start_s": random.choice([0.0, 1.0]), "end_s": random.choice([None, 2.0, 8.0])}),
    }


def some(random: Random, chance: float, /, **options: Any) -> Section:
    """Returns these options, each with this chance."""
    return {name: value for name, value in options.items() if random.random() < chance}


def traffic(random: Random, folder: Path) -> Section:
    """At most some 300 requests within 20 s: an open loop of any kind, a closed one, or a file."""
    kind = random.choice(["constant", "poisson", "gamma", "diurnal", "concurrent", "concurrent", "table", "mooncake"])
    shared = some(
        random, 0.35, max_concurrency=random.choice([1, 1, 2, 5, 20]), limit=random.choice([1, 7, 50, 200]), rate_scale=2.5
    )
    if kind in ("table", "mooncake"):
        return {"kind": kind, **recorded(random, kind, folder), **shared}
    if kind == "concurrent":
        shared |= {"limit": random.choice([1, 10, 50, 200])}
        shared.pop("rate_scale", None)
    else:
        shared["duration_s"] = random.choice([1.0, 5.0, 20.0])
    rate_per_s = random.choice([0.3, 2.0, 6.0, 15.0])
    own: dict[str, Section] = {
        "constant": {"rate_per_s": rate_per_s},
        "poisson": {"rate_per_s": rate_per_s, **some(random, 0.3, fixed_count=True)},
        "gamma": {"rate_per_s": rate_per_s, "cv": random.choice([0.0, 0.5, 3.0])},
        "diurnal": {"peak_per_s": rate_per_s, "trough_per_s": 0.2, "peak_hour": 0.0, **bursts(random)},
        "concurrent": {},
    }
    return {"kind": kind, **own[kind], **shared, **what_is_asked(random)}


def bursts(random: Random) -> Section:
    crowds = [{"at_s": 0.5, "height_per_s": 50.0, "width_s": 4.0}]
    return some(random, 0.4, cv=random.choice([0.0, 2.0]), noise=0.5, noise_interval_s=1.0, flash_crowds=crowds)


def what_is_asked(random: Random) -> Section:
    """The lengths, of one class or several, and prefixes that they share."""
    found: Section = {"lengths": lengths(random)}
    if random.random() < 0.5:
        classes = [{"name": name, "share": random.choice([1, 3]), "lengths": lengths(random)} for name in "abcd"]
        found = {"classes": classes[: random.randint(1, 4)]}
    if random.random() < 0.4:
        tokens = random.choice([100, {"kind": "uniform", "low": 1, "high": 400}])
        found["prefixes"] = {"num": random.choice([1, 20]), "tokens": tokens, **some(random, 0.5, zipf=0.0, share=0.5)}
    return found


def lengths(random: Random) -> Section:
    prompt, output = law(random, 500, LONGEST_PROMPT), law(random, 100, LONGEST_OUTPUT)
    return {"prompt": prompt, "output": output, **some(random, 0.3, correlation=random.choice([-1.0, 0.5]))}


def law(random: Random, largest_mean: int, longest: int) -> Section:
    """A law of lengths with a mean of at most `largest_mean` tokens."""
    mean = random.choice([1, 2, random.randint(3, largest_mean), random.randint(3, largest_mean)])
    return random.choice(
        [
            {"kind": "fixed", "tokens": mean},
            {"kind": "uniform", "low": 1, "high": 2 * mean - 1},
            {"kind": "lognormal", "mean": float(mean), "p99": 6.0 * mean, "max": longest},
            {"kind": "exponential", "mean": float(mean), "max": longest},
            {"kind": "empirical", "values": [1, mean, mean, 2 * mean - 1]},
        ]
    )


def recorded(random: Random, kind: str, folder: Path) -> Section:
    """A file with sessions, prefixes and two classes, or one with hashes of its blocks; many rows at one instant."""
    now_s, rows = 0.0, []
    for number in range(random.choice([2, 30, 120])):
        now_s += random.choice([0.0, 0.0, 0.1, 0.5]) if number > 1 else 0.0
        prompt, output = random.randint(1, 500), random.randint(1, 100)
        if kind == "mooncake":
            hashes = [random.randrange(4) if k < 2 else 10 * number + k for k in range(-(-prompt // 64))]
            rows.append({"timestamp": int(1000 * now_s), "input_length": prompt, "output_length": output, "hash_ids": hashes})
        else:
            prefix, session = random.choice([None, "p", "q"]), random.choice([None, random.randrange(5)])
            name = random.choice("ab") if number > 1 else "ab"[number]  # both occur
            shared = {"class": name, "prefix": prefix, "num_prefix": min(prompt, 90), "session": session}
            rows.append({"arrived_at_s": now_s, "num_prompt_tokens": prompt, "num_output_tokens": output, **shared})
    path = folder / f"{kind}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if kind == "mooncake":
        return {"path": str(path), "trace_block_tokens": 64}
    columns = {"class_name": "class", "prefix_id": "prefix", "num_prefix_tokens": "num_prefix", "session_id": "session"}
    return {"path": str(path), "time_unit": "s", "columns": columns}


def kind_of_request(random: Random) -> Section:
    return some(
        random,
        0.5,
        priority=random.randint(-1, 3),
        lora=random.choice(["x", "y", "z"]),
        max_tokens=random.choice([1, 30, 2000]),
        grammar_s=random.choice([0.3, 3.0]),
        num_free_tokens=random.randint(1, 5),
        num_forced_tokens=random.randint(0, 5),
    )


def slo(random: Random, names: list[str]) -> Section:
    targets = {"ttft_s": {"p99": 1.0}, "tpot_s": {"p90": 0.05}, "itl_s": {"p99": 0.1}, "e2e_s": {"p50": 3.0}}
    own = {name: some(random, 0.5, **targets) for name in names if random.random() < 0.3}
    return some(random, 0.4, **targets) | ({"classes": own} if own else {})


def gateway(random: Random, names: list[str]) -> Section:
    limit = {"tokens_per_s": random.choice([100.0, 2000.0]), "capacity_tokens": random.choice([200.0, 5000.0])}
    limits = {name: limit for name in names if random.random() < 0.5}
    admission = {"ttft_s": random.choice([0.05, 1.0]), "prefill_tokens_per_s": 2000.0}
    return some(random, 0.25, rate_limits=limits, admission=admission)


def router(random: Random) -> Section:
    kinds: tuple[Section, ...] = (
        *({"kind": kind} for kind in ("least_loaded", "least_tokens", "random", "round_robin", "vllm_old")),
        {"kind": "power_of_d_choices", "d": 2},
        {"kind": "vllm", "num_clients": random.choice([1, 4])},
    )
    return random.choice(kinds) | some(random, 0.5, scrape_interval_s=random.choice([0.1, 1.5]))


def pool(random: Random, number: int, hardware: tuple[str, str, int]) -> Section:
    """A pool of the model that all of them serve."""
    model, gpu, num_gpus = hardware
    return {
        "name": f"p{number}",
        "model": model,
        "gpu": gpu,
        "replicas": engine(random, model, num_gpus),
        "lifecycle": lifecycle(random),
        "autoscaler": autoscaler(random),
        **some(random, 0.3, price_per_gpu_hour=2.0, replica_requests_per_s=random.choice([0.5, 5.0])),
    }


def engine(random: Random, model: str, num_gpus: int) -> Section:
    """An engine's options, of vLLM's scheduler, SGLang's or one from before both, with as few blocks as hold a mean request."""
    max_model_len = random.choice([700, 1600, 4096])
    block_size = random.choice([1, 16, 16, 64])
    found: Section = {
        "kind": "surrogate",
        "tensor_parallel_size": num_gpus,
        "max_model_len": max_model_len,
        "block_size": block_size,
        "num_gpu_blocks": random.choice([700, 1500, 8000]) // block_size + 2,
        "max_num_seqs": random.choice([1, 3, 16, 256]),
        "max_num_batched_tokens": random.choice([256, 2048, 4096]),
        **some(
            random,
            0.25,
            max_num_queued_reqs=random.choice([1, 5, 40]),
            max_num_queued_tokens=random.choice([100, 3000]),
            scheduler_reserve_full_isl=False,
            long_prefill_token_threshold=random.choice([32, 300]),
            long_prefill_token_threshold_adaptive=True,
            watermark=random.choice([0.01, 0.1]),
            cpu_s=0.002,
            cpu_s_per_request=0.001,
            overhead_s=random.choice([0.005, 0.2]),
            quantization="fp8" if model != "llama-3.1-8b" else None,
            vllm_version="0.30",
            enforce_eager=True,
            max_loras=2,
            data_parallel_size=random.choice([2, 3]),
            grammar_cpu_s_per_request=0.001,
        ),
        **random.choice([vllm, vllm, vllm, sglang, before_paging])(random, max_model_len),
    }
    if found.get("data_parallel_size", 1) > 1 and ("b-a" in model or "x" in model):  # its experts are shared
        found.pop("pipeline_parallel_size", None)
        found |= some(random, 0.5, prefill_schedule_interval=random.choice([2, 5]))
    if not found.get("enable_chunked_prefill", "batching" not in found):
        found["max_num_batched_tokens"] = max(max_model_len, found["max_num_batched_tokens"])
    return found


def vllm(random: Random, max_model_len: int) -> Section:
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


def sglang(random: Random, max_model_len: int) -> Section:
    return {"async_scheduling": False, **some(random, 0.7, scheduling_policy="lpm", jump_forward=True)}


def before_paging(random: Random, max_model_len: int) -> Section:
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
    reactive = {"kind": "queue_target", **some(random, 0.6, warm_buffer=random.choice([0, 1]), replica_token_capacity=900.0)}
    ahead = {
        "kind": "forecast",
        "forecaster": random.choice(["naive", "seasonal_naive", "oracle"]),
        **some(
            random,
            0.4,
            rate_window_s=random.choice([1.0, 5.0]),
            season_s=random.choice([8.0, 86400.0]),
            horizon_s=4.0,
            num_seasons=2,
            replica_requests_per_s=random.choice([0.5, 3.0]),
            clear_backlog_s=random.choice([1.0, 10.0]),
            target_utilization=1.0,
        ),
    }
    return random.choice([fixed, reactive, ahead]) | shared
