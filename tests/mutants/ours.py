"""A list of our own: of compiled modules, where every change would be minutes of compiling, and what once went unnoticed.

Each must be noticed. One whose text no longer stands in its file is an error: write it anew, or take it out.
"""

from tests.mutants.meant import UNIT, tests_of
from tests.mutants.mutant import Change

STEPS = (UNIT["step_time"], "replicas/step_time.py")
OPTIONS = UNIT["scheduler_options"]
TIMELINES = "tests/golden/test_timelines.py"
VLLM = "tests/conformance/test_recordings.py"
CACHE = UNIT["prefix_cache"]
STATIC = "tests/property/test_static_batching.py"
GATEWAY = "tests/property/test_gateway.py"
TURNS = UNIT["conversations"]
SCORES = UNIT["router_scores"]


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
        "replicas/vllm/admission.py",
        "load.num_running < engine.max_num_seqs and",
        "load.num_running <= engine.max_num_seqs and",
        VLLM,
        "-k",
        "mixed_sync",
    ),
    compiled(
        "replicas/vllm/admission.py",
        "    if load.num_running > 0:\n        need += engine.watermark_blocks",
        "    if load.num_running >= 0:\n        need += engine.watermark_blocks",
        OPTIONS,
        "-k",
        "last_block",
    ),
    compiled(
        "replicas/vllm/admission.py",
        "return need <= load.num_free_blocks",
        "return need < load.num_free_blocks",
        OPTIONS,
        "-k",
        "last_block",
    ),
    compiled("replicas/vllm/admission.py", "need += count_free(fleet, r, num_hits)", "need += 0", CACHE, "-k", "take_room"),
    compiled(
        "replicas/vllm/admission.py",
        "if chunk > budget and not engine",
        "if chunk >= budget and not engine",
        OPTIONS,
        "-k",
        "whole_budget",
    ),
    compiled(
        "replicas/held_up.py",
        "now_s < fleet.grammar_ready_at_s[r, class_id]",
        "now_s <= fleet.grammar_ready_at_s[r, class_id]",
        OPTIONS,
        "-k",
        "grammar_s",
    ),
    compiled(
        "replicas/held_up.py",
        "== engine.max_loras and not has_adapter",
        "== engine.max_loras or not has_adapter",
        OPTIONS,
        "-k",
        "max_loras",
    ),
    compiled(
        "replicas/vllm/admission.py",
        "if engine.scheduler_reserve_full_isl:",
        "if not engine.scheduler_reserve_full_isl:",
        OPTIONS,
        "-k",
        "reserve_full_isl",
    ),
    compiled(
        "replicas/moves.py",
        "load.running_tokens += num_cached_tokens",
        "load.running_tokens += 0",
        VLLM,
        CACHE,
        "-k",
        "prefix_sync or used_once",
    ),
    # static batching
    compiled(
        "replicas/static/engine.py", "if load.num_running == 0 and load.num_waiting > 0:", "if load.num_waiting > 0:", STATIC
    ),
    compiled("replicas/static/engine.py", "if load.num_running > 0:", "if load.num_running >= 0:", STATIC),
    # who is preempted, and the step after
    compiled(
        "replicas/vllm/scheduler.py",
        "if replica.num_preemptions == num_preemptions and load.num_waiting > 0",
        "if load.num_waiting > 0",
        OPTIONS,
        "-k",
        "admits_nobody",
    ),
    compiled(
        "replicas/vllm/preemption.py",
        "        return replica.running.tail",
        "        return replica.running.head",
        TIMELINES,
        "-k",
        "preemption_keeps_tokens_sent",
        OPTIONS,
    ),
    compiled(
        "replicas/vllm/preemption.py",
        "if goes_before(fleet, victim, i):",
        "if goes_before(fleet, i, victim):",
        OPTIONS,
        "-k",
        "who_is_preempted",
    ),
    compiled(
        "replicas/vllm/preemption.py",
        "request.num_output_tokens - (request.last_step - latest_step)",
        "request.num_output_tokens - (request.last_step - latest_step) - 1",
        TIMELINES,
        VLLM,
        "-k",
        "preemption_keeps_tokens_sent or prefix_tight",
    ),
    # the prefix cache
    compiled(
        "replicas/vllm/prefix_cache.py",
        "request.num_generated_tokens - 1) // engine",
        "request.num_generated_tokens) // engine",
        CACHE,
        "-k",
        "all_cached",
    ),
    compiled("replicas/vllm/prefix_cache.py", "if engine.drops_last_hit and num_hits > 0:", "if num_hits > 1:", CACHE),
    # what a step's end brings
    compiled(
        "replicas/delivery.py",
        "now_s - request.last_token_at_s, 1)",
        "now_s - request.first_token_at_s, 1)",
        TIMELINES,
        "-k",
        "preemption_keeps_tokens_sent",
    ),
    compiled(
        "replicas/delivery.py",
        "fleet.itl_sums[pool, 0] += num_gaps * gap_s",
        "fleet.itl_sums[pool, 0] += gap_s",
        TIMELINES,
        UNIT["invariants"],
    ),
    compiled(
        "replicas/delivery.py",
        "clock.num_in_system * (now_s - clock.in_system_since_s)",
        "(clock.num_in_system + change) * (now_s - clock.in_system_since_s)",
        UNIT["invariants"],
    ),
    # requests that follow others
    compiled("sim/coming.py", "ended_at_s + coming.delay_s", "ended_at_s", TURNS, "-k", "its_delay_after"),
    compiled("sim/coming.py", "max(coming.due_at_s, ended_at_s", "max(0.0, ended_at_s", TURNS, "-k", "its_own_instant"),
    compiled("sim/coming.py", 'elif ahead.ended_at_s < float("inf"):', "elif True:", TURNS, "-k", "let_in_after"),
    compiled("sim/coming.py", "others, j = j, following", "j = following", TURNS, "-k", "does_not_go_on"),
    compiled("sim/window.py", "clock.num_loaded - clock.max_follows", "clock.num_loaded", TURNS, "-k", "remembered"),
    compiled("sim/timed.py", "one.number < other.number", "one.number > other.number", "tests/property/test_timed.py"),
    # drafts, and text that a grammar forces
    compiled(
        "replicas/vllm/speculation.py",
        "if draw >= engine.acceptance_rate:",
        "if draw < engine.acceptance_rate:",
        f"{OPTIONS}::test_num_speculative_tokens_and_acceptance_rate[2-1.0-False]",
    ),
    compiled(
        "replicas/vllm/speculation.py",
        "if place >= kind.num_free_tokens else 0",
        "if place > kind.num_free_tokens else 0",
        UNIT["jump_forward"],
    ),
    # the gateway
    compiled("replicas/rate_limit.py", "(num_reserved - num_used)", "num_reserved", GATEWAY, "-k", "a_bucket_never"),
    compiled(
        "replicas/rate_limit.py", "min(bucket.capacity_tokens, level), now_s", "level, now_s", GATEWAY, "-k", "a_bucket_never"
    ),
    compiled(
        "replicas/gateway.py",
        "if ttft_s > kind.admitted_ttft_s:",
        "if ttft_s >= kind.admitted_ttft_s:",
        GATEWAY,
        "-k",
        "prediction or would_miss",
    ),
    compiled(
        "replicas/vllm/engine.py",
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
    compiled("routers/pick.py", "num_ties + 1 if found == lowest else 1", "1", SCORES),
    compiled("routers/pick.py", "if num_ties > 1 else 0", "if num_ties > 2 else 0", SCORES),
    compiled("routers/pick.py", "% 2147483562 % n", "% n", SCORES),
    compiled("routers/pick.py", "40692 * random", "40014 * random", SCORES),
    compiled("routers/least_loaded.py", "load.num_waiting + load.num_running", "load.num_running", SCORES),
    compiled("routers/least_tokens.py", "2 * load.waiting_tokens + load", "load.waiting_tokens + load", SCORES),
    compiled("routers/vllm_old.py", "4 * loads[r].num_waiting", "2 * loads[r].num_waiting", SCORES),
    compiled("routers/power_of_d_choices.py", "request) < outstanding_tokens(", "request) > outstanding_tokens(", SCORES),
    compiled("routers/power_of_d_choices.py", "request) < outstanding_tokens(", "request) <= outstanding_tokens(", SCORES),
    compiled("routers/power_of_d_choices.py", "range(1, d)", "range(1, d - 1)", SCORES),
    compiled("routers/round_robin.py", "view.memory[0] += 1", "pass", SCORES),
]

UNNOTICED: dict[str, list[tuple[str, str]]] = {
    "autoscalers/arrivals.py": [
        ("max(start_s, self.first_s), min", "start_s, min"),
        ("min(end_s, self.last_s)", "end_s"),
    ],
    "autoscalers/controller.py": [
        ("<= tolerance * held", "<= tolerance * number"),
        (
            '("tolerance", self._within_tolerance),\n            ("stabilization", self._stabilise),',
            '("stabilization", self._stabilise),\n            ("tolerance", self._within_tolerance),',
        ),
    ],
    "autoscalers/fixed.py": [("max(1, self.replicas)", "self.replicas")],
    "autoscalers/forecast.py": [
        ("options.target_utilization * each_per_s)\n", "each_per_s)\n"),
        ("self.horizon_s > self.season_s", "self.horizon_s >= self.season_s"),
    ],
    "autoscalers/oracle.py": [("math.ceil(end_s / self._window_s)", "math.floor(end_s / self._window_s)")],
    "autoscalers/queue_target.py": [
        ("view.num_ready + view.num_starting", "view.num_ready"),
        ("self._works_off or self._number", "self._number"),
        ("capacity) <= num_asked", "capacity) < num_asked"),
        ("number > num_asked and", "number >= num_asked and"),
        ("max(load * share_left, in_flight)", "load * share_left"),
        ("max(num_asked, self._number(left, capacity))", "self._number(left, capacity)"),
        ("view.num_waiting + view.num_running", "view.num_waiting"),
        ("* each_per_s - arrived_per_s", "* each_per_s"),
        ("num_replicas * self._options.target_utilization", "num_replicas"),
        ("view.scraped_at_s > self._last[0]", "view.scraped_at_s >= self._last[0]"),
        ("replica_requests_per_s * capacity", "replica_requests_per_s * capacity * options.target_utilization"),
    ],
    "autoscalers/seasonal_naive.py": [
        ("max(now_s, end_s - self._outlook.interval_s)", "end_s - self._outlook.interval_s"),
        ("math.ceil((last_s", "math.floor((last_s"),
        ("start_s - lag_s + window_s)", "start_s - lag_s + self._outlook.interval_s)"),
    ],
    "autoscalers/window.py": [("[0][0] <= now_s", "[0][0] < now_s")],
    "experiments/results/asked.py": [("appendleft(piece[num:])", "append(piece[num:])")],
    "experiments/results/costs.py": [
        ("min(released_at_s, end_s)", "released_at_s"),
        ("max(0.0, until_s", "(until_s"),
        ("any(price is None", "all(price is None"),
    ],
    "experiments/results/counts.py": [
        ("[preempted] * inside[preempted])", "[preempted])"),
        ('(columns["status"] == FINISHED) & (ended', '(columns["status"] >= 0) & (ended'),
        ("measured[lacks & inside]", "measured[lacks]"),
        ("measured[is_judged & inside]", "cells[is_judged]"),
    ],
    "experiments/results/shortage.py": [("np.rint(np.nan", "(np.nan")],
    "experiments/results/step_trace.py": [('instants["t0"] - last', "began_at_s - last")],
    "experiments/results/summary.py": [
        ("cached_tokens / input_tokens if", "cached_tokens / (input_tokens + output_tokens) if"),
        ("run.start_s >= run.ended_at_s", "run.start_s > run.ended_at_s"),
    ],
    "experiments/results/summary_table.py": [("all_met(met) if", "any(met) if")],
    "experiments/results/timeline.py": [
        (
            '["kv_cache_usage"] * row["num_ready"] for row in rows) / whole["num_ready"]',
            '["kv_cache_usage"] for row in rows) / len(rows)',
        ),
        ("value_s <= target.limit_s", "value_s < target.limit_s"),
    ],
    "experiments/results/writer.py": [
        (
            'max(self._window_s[0], min(self._window_s[1], totals["duration_s"]))',
            'min(self._window_s[1], totals["duration_s"])',
        ),
        ('np.where(columns["status"] == FINISHED, num_generated_tokens, num_asked_tokens)', "num_asked_tokens"),
    ],
    "planning/balance.py": [
        ("(held + engine.block_size / 2)", "held"),
        ("engine.max_num_batched_tokens - 1.0", "engine.max_num_batched_tokens"),
        ("most < 1:", "most <= 1:"),
        ("at(most).tpot_s > tpot_s", "at(most).tpot_s >= tpot_s"),
        ("prompt * (num_chunks + 1) / 2", "prompt * num_chunks / 2"),
        ("round(decodes) + (new > 0)", "round(decodes)"),
        ("context + read)", "context)"),
        ("full.requests_per_s < requests_per_s or", "full.requests_per_s <= requests_per_s or"),
    ],
    "planning/days.py": [
        (" * (1 - 1e-12))).astype", ")).astype"),
        ("starting[: len(starting) - cancelled]", "starting[cancelled:]"),
    ],
    "planning/kv.py": [
        ("latency_s + num_tokens", "num_tokens"),
        ("num_windowed_layers <= model.layers", "num_windowed_layers < model.layers"),
    ],
    "planning/pools.py": [
        ("(demand.prompt_tokens - demand.cached_tokens)\n", "demand.prompt_tokens\n"),
        (" * (1 - 1e-12)))", "))"),
        ("by_memory >= by_throughput", "by_memory > by_throughput"),
        ("chosen.tokens_per_s, max_utilization) + num_spare", "chosen.tokens_per_s, max_utilization)"),
        ("found.requests_per_s, max_utilization) + num_spare", "found.requests_per_s, max_utilization)"),
    ],
    "sim/metrics.py": [
        ("(low, high, weight) if high < n else", "(low, high, weight) if high < n - 1 else"),
        ("weight >= 0.5", "weight > 0.5"),
    ],
    "sim/pool.py": [
        ("youngest = max(", "youngest = min("),
        ('int(demand["num_arrived"].sum())', 'int(demand["num_finished"].sum())'),
        ("{other for other in busy if other == rank or self._is_empty(other)}", "{rank}"),
        ("(fleet.replicas[rank].num_in_flight or fleet.loads[rank].num_waiting)", "fleet.replicas[rank].num_in_flight"),
        ("(fleet.replicas[rank].num_in_flight or fleet.loads[rank].num_waiting)", "fleet.loads[rank].num_waiting"),
        ("+ unrouted_tokens", "+ 0"),
        ("usage.mean()", "usage.max()"),
        ("self.plane.fleet.seen", "self.plane.fleet.loads"),
        ("self.free_slots.sort()", "pass"),
        ('self.loads["num_waiting"][draining]', 'self.loads["num_waiting"][self.indices(self.ready)]'),
        ("sum(int(seen[rank].num_inflight) for rank in self.ranks(slot))", "int(seen[slot].num_inflight)"),
        ("if not busy and slot", "if slot"),
    ],
    "traces/rates.py": [('side="right") - 1', 'side="left") - 1')],
}
"""Changes to plain modules that once passed every test meant for them: file -> what stands there, what takes its place."""

CHANGES = [
    *COMPILED,
    *(Change(file, before, after, tests_of(file)) for file, pairs in UNNOTICED.items() for before, after in pairs),
]
