"""A list of our own: of compiled modules, where every change would be minutes of compiling, and what once went unnoticed.

Each must be noticed. One whose text no longer stands in its file is an error: write it anew, or take it out.
"""

from tests.mutants.mutant import Change

STEPS = ("tests/unit/test_step_time.py", "replicas/step_time.py")
OPTIONS = "tests/unit/test_scheduler_options.py"
TIMELINES = "tests/golden/test_timelines.py"
VLLM = "tests/conformance/test_recordings.py"
CACHE = "tests/unit/test_prefix_cache.py"
GATEWAY = "tests/property/test_gateway.py"
ROUTERS = "tests/contract/test_router_kinds.py"
OF_RESULTS = ("results", "attainment", "measured_window", "timeline", "summary_scopes")
RESULTS = tuple(f"tests/unit/test_{name}.py" for name in OF_RESULTS)
SCALING = ("tests/unit/test_autoscalers.py", "tests/unit/test_scaling_in_a_fleet.py")
POOLS = ("tests/unit/test_fleet_cases.py", "tests/unit/test_two_pools.py", "tests/unit/test_scaling_in_a_fleet.py")
PLANS = ("tests/unit/test_planning.py", "tests/unit/test_plan.py")


def compiled(file: str, before: str, after: str, *tests: str) -> Change:
    """A change to a compiled module."""
    return Change(file, before, after, tests, is_compiled=True)


COMPILED = [
    # the time of a step
    compiled("replicas/step_time.py", "max(arithmetic_s, memory_s) + links_s", "min(arithmetic_s, memory_s) + links_s", *STEPS),
    compiled("replicas/step_time.py", "+ links_s + engine.overhead_s", "+ engine.overhead_s", *STEPS),
    compiled("replicas/step_time.py", "if longest > engine.max_graph_tokens", "if longest >= engine.max_graph_tokens", *STEPS),
    compiled(
        "replicas/step_time.py", "if batch.num_tokens > batch.num_requests", "if batch.num_tokens >= batch.num_requests", *STEPS
    ),
    compiled("replicas/step_time.py", "num_tokens > engine.fitted_tokens", "num_tokens >= engine.fitted_tokens", *STEPS),
    compiled("replicas/step_time.py", "elif num_tokens <= 248:", "elif num_tokens < 248:", *STEPS),
    compiled("replicas/step_time.py", "engine.expert_hit_share) ** num_tokens", "engine.expert_hit_share)", *STEPS),
    compiled(
        "replicas/step_time.py", "share * (engine.knot_s[high] - engine.knot_s[low])", "share * engine.knot_s[high]", *STEPS
    ),
    # who is admitted
    compiled(
        "replicas/admission.py",
        "load.num_running < engine.max_num_seqs and",
        "load.num_running <= engine.max_num_seqs and",
        VLLM,
        "-k",
        "mixed_sync",
    ),
    compiled(
        "replicas/admission.py",
        "    if load.num_running > 0:\n        need += engine.watermark_blocks",
        "    if load.num_running >= 0:\n        need += engine.watermark_blocks",
        OPTIONS,
        "-k",
        "watermark",
    ),
    compiled(
        "replicas/admission.py",
        "return need <= load.num_free_blocks",
        "return need < load.num_free_blocks",
        CACHE,
        "-k",
        "take_room",
        OPTIONS,
        TIMELINES,
    ),
    compiled("replicas/admission.py", "need += count_free(fleet, r, num_hits)", "need += 0", CACHE, "-k", "take_room"),
    compiled(
        "replicas/admission.py",
        "if chunk > budget and not engine",
        "if chunk >= budget and not engine",
        VLLM,
        "-k",
        "mixed_no_chunking",
        OPTIONS,
    ),
    compiled(
        "replicas/admission.py",
        "now_s < fleet.lore[r, class_id].grammar_ready_at_s",
        "now_s <= fleet.lore[r, class_id].grammar_ready_at_s",
        OPTIONS,
        "-k",
        "grammar_s",
    ),
    compiled(
        "replicas/admission.py",
        "== engine.max_loras and not has_adapter",
        "== engine.max_loras or not has_adapter",
        OPTIONS,
        "-k",
        "max_loras",
    ),
    compiled(
        "replicas/admission.py",
        "if engine.scheduler_reserve_full_isl:",
        "if not engine.scheduler_reserve_full_isl:",
        OPTIONS,
        "-k",
        "reserve_full_isl",
    ),
    compiled(
        "replicas/admission.py",
        "load.running_tokens += num_cached_tokens",
        "load.running_tokens += 0",
        VLLM,
        CACHE,
        "-k",
        "prefix_sync or used_once",
    ),
    # who is preempted, and the step after
    compiled(
        "replicas/scheduler.py",
        "if replica.num_preemptions == num_preemptions and load.num_waiting > 0",
        "if load.num_waiting > 0",
        VLLM,
        "-k",
        "prefix_tight or priority_sync",
        TIMELINES,
    ),
    compiled(
        "replicas/preemption.py",
        "        return replica.running.tail",
        "        return replica.running.head",
        TIMELINES,
        "-k",
        "m11",
        OPTIONS,
    ),
    compiled(
        "replicas/preemption.py",
        "if goes_before(fleet, victim, i):",
        "if goes_before(fleet, i, victim):",
        OPTIONS,
        "-k",
        "who_is_preempted",
    ),
    compiled(
        "replicas/preemption.py",
        "request.num_output_tokens - (request.last_step - latest_step)",
        "request.num_output_tokens - (request.last_step - latest_step) - 1",
        TIMELINES,
        VLLM,
        "-k",
        "m11 or prefix_tight",
    ),
    # the prefix cache
    compiled(
        "replicas/prefix_cache.py",
        "request.num_generated_tokens - 1) // engine",
        "request.num_generated_tokens) // engine",
        CACHE,
        "-k",
        "all_cached",
    ),
    compiled("replicas/prefix_cache.py", "if engine.drops_last_hit and num_hits > 0:", "if num_hits > 1:", CACHE),
    # what a step's end brings
    compiled(
        "replicas/delivery.py",
        "now_s - request.last_token_at_s, 1)",
        "now_s - request.first_token_at_s, 1)",
        TIMELINES,
        "-k",
        "m11",
    ),
    compiled(
        "replicas/delivery.py",
        "fleet.itl_sums[pool, 0] += num_gaps * gap_s",
        "fleet.itl_sums[pool, 0] += gap_s",
        TIMELINES,
        "tests/unit/test_invariants.py",
    ),
    compiled(
        "replicas/delivery.py",
        "clock.num_in_system * (now_s - clock.in_system_since_s)",
        "(clock.num_in_system + change) * (now_s - clock.in_system_since_s)",
        "tests/unit/test_invariants.py",
    ),
    # drafts, and text that a grammar forces
    compiled(
        "replicas/speculation.py",
        "if draw >= engine.acceptance_rate:",
        "if draw < engine.acceptance_rate:",
        f"{OPTIONS}::test_e31_num_speculative_tokens_and_acceptance_rate[2-1.0-False]",
    ),
    compiled(
        "replicas/speculation.py",
        "if place >= kind.num_free_tokens else 0",
        "if place > kind.num_free_tokens else 0",
        "tests/unit/test_jump_forward.py",
    ),
    # the gateway
    compiled("replicas/rate_limit.py", "(num_reserved - num_used)", "num_reserved", GATEWAY, "-k", "t39"),
    compiled("replicas/rate_limit.py", "min(bucket.capacity_tokens, level), now_s", "level, now_s", GATEWAY, "-k", "t39"),
    compiled(
        "replicas/gateway.py", "if ttft_s > kind.admitted_ttft_s:", "if ttft_s >= kind.admitted_ttft_s:", GATEWAY, "-k", "t40"
    ),
    compiled(
        "replicas/gateway.py",
        "if num_tokens > engine.max_model_len:",
        "if num_tokens >= engine.max_model_len:",
        TIMELINES,
        OPTIONS,
        "-k",
        "max_model_len",
    ),
    compiled(
        "replicas/gateway.py",
        "0 < engine.max_num_queued_reqs <= num_requests",
        "0 < engine.max_num_queued_reqs < num_requests",
        OPTIONS,
        "-k",
        "max_num_queued_reqs",
    ),
    compiled(
        "replicas/gateway.py",
        "0 < engine.max_num_queued_tokens <= num_tokens",
        "0 < engine.max_num_queued_tokens < num_tokens",
        OPTIONS,
        "-k",
        "max_num_queued_tokens",
    ),
    # the routers
    compiled("routers/pick.py", "num_ties + 1 if found == lowest else 1", "1", ROUTERS, "-k", "ties_are and least_loaded"),
    compiled("routers/pick.py", "if num_ties > 1 else 0", "if num_ties > 2 else 0", ROUTERS, "-k", "ties_are and least_loaded"),
    compiled(
        "routers/least_tokens.py", "2 * load.waiting_tokens + load", "load.waiting_tokens + load", ROUTERS, "-k", "least_tokens"
    ),
    compiled("routers/vllm_old.py", "4 * loads[r].num_waiting", "2 * loads[r].num_waiting", ROUTERS, "-k", "vllm_old"),
    compiled(
        "routers/power_of_d_choices.py",
        "request) < outstanding_tokens(",
        "request) > outstanding_tokens(",
        ROUTERS,
        "-k",
        "power_of_d and overloaded",
    ),
]

ONCE_UNNOTICED = [
    Change("autoscalers/window.py", "[0][0] <= now_s - self._window_s", "[0][0] < now_s - self._window_s", SCALING),
    Change("sim/pool.py", "youngest = max(self.starting", "youngest = min(self.starting", POOLS),
    Change("sim/pool.py", "fleet.sent[self.index]) + num_new", "fleet.sent[self.index])", POOLS),
    Change(
        "sim/pool.py",
        "busy -= {other for other in busy if other == rank or self._is_empty(other)}",
        "busy -= {rank}",
        (*POOLS, "tests/unit/test_data_parallel.py"),
    ),
    Change(
        "traces/rates.py",
        'at_s, side="right") - 1',
        'at_s, side="left") - 1',
        ("tests/unit/test_traffic_rates.py", "tests/unit/test_generated_traffic.py"),
    ),
    Change("experiments/results/counts.py", "[preempted] * inside[preempted])", "[preempted])", RESULTS),
    Change(
        "sim/metrics.py",
        "(low, high, weight) if high < n else None",
        "(low, high, weight) if high < n - 1 else None",
        (*RESULTS, "tests/unit/test_metrics.py"),
    ),
    Change(
        "experiments/results/summary.py",
        "cached_tokens / input_tokens if",
        "cached_tokens / (input_tokens + output_tokens) if",
        (*RESULTS, "tests/unit/test_prefix_cache.py"),
    ),
    Change(
        "experiments/results/timeline.py",
        'row["kv_cache_usage"] * row["num_ready"] for row in rows) / whole["num_ready"]',
        'row["kv_cache_usage"] for row in rows) / len(rows)',
        RESULTS,
    ),
    Change("experiments/results/summary_table.py", "all_met(met) if", "any(met) if", RESULTS),
    Change("planning/balance.py", "usable / (held + engine.block_size / 2)", "usable / held", PLANS),
    Change(
        "planning/pools.py",
        "requests_per_s * (demand.prompt_tokens - demand.cached_tokens)",
        "requests_per_s * demand.prompt_tokens",
        PLANS,
    ),
]
"""Changes to plain modules that passed every test meant for them."""

CHANGES = [*COMPILED, *ONCE_UNNOTICED]
