"""What Hypothesis draws engines, traffic and fleets from: small, tight, and full of ties."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import strategies as st

import routers
from experiments.contracts.fleets import Ran, Script, arrivals, classes, engine, run
from replicas.schedulers import STATIC

FIXED_STEP = {"overhead_s": 0.5}
"""Every step lasts as long as the gaps between arrivals are multiples of: many things happen at one instant."""

LOADED_STEP = {
    "flops_per_token": 1.0,
    "flops_per_attended_token": 0.01,
    "flops_per_s": 100.0,
    "dense_weight_bytes": 10.0,
    "kv_bytes_per_token": 1.0,
    "bytes_per_s": 200.0,
    "comm_s": 0.002,
    "comm_s_per_token": 0.001,
    "overhead_s": 0.01,
    "cpu_s": 0.03,
    "cpu_s_per_request": 0.01,
}
"""A step's time depends on everything that it may depend on."""

FULL_STEP = LOADED_STEP | {
    "adapter_bytes": 5.0,
    "grammar_cpu_s_per_request": 0.02,
    "max_graph_tokens": 24,
    "handover_s": 0.01,
    "handover_s_per_token": 0.002,
}
"""As before, with adapters to read, masks to fill and CUDA graphs to pad to."""

MAX_TOKENS = 45
"""What the clients of some classes allow, more than `a_burst` ever answers: the model ends these answers of itself."""


def a_burst(seed: int, num_requests: int, longest_gap_s: float) -> list[tuple[float, int, int]]:
    """`num_requests` rows close together; one in five has a prompt of one token, one in five an answer of one token."""
    random = Random(seed)
    gaps_s = [0.0, 0.0, 0.1, 0.5, longest_gap_s]
    rows, now_s = [], 0.0
    for _ in range(num_requests):
        num_prompt_tokens = random.choice([1, *[random.randint(1, 40)] * 4])
        num_output_tokens = random.choice([1, *[random.randint(1, 40)] * 4])
        rows.append((now_s, num_prompt_tokens, num_output_tokens))
        now_s += random.choice(gaps_s)
    return rows


def traffic() -> st.SearchStrategy[list[tuple[float, int, int]]]:
    """Rows of (arrived_at_s, prompt tokens, output tokens).

    Lists that Hypothesis grows are short and simple; a seed gives what fills a cache, and still shrinks by its number.
    """
    return st.builds(a_burst, st.integers(0, 1 << 30), st.integers(1, 40), st.sampled_from([0.5, 1.0, 7.5]))


@st.composite
def engines(draw: st.DrawFn, rows: list[tuple[float, int, int]]) -> dict[str, Any]:
    """An engine's fields: its KV cache holds the largest of `rows` and a few blocks more, its budget is a few prompts."""
    longest = max(prompt + output for _, prompt, output in rows)
    block_size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    max_num_seqs = draw(st.integers(1, 16))
    enable_chunked_prefill = draw(st.booleans())
    least = max_num_seqs if enable_chunked_prefill else max(longest, max_num_seqs)  # vLLM refuses to start with less
    return {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": draw(st.integers(least, least + 40)),
        "block_size": block_size,
        "num_usable_blocks": -(-(longest - 1) // block_size) + draw(st.integers(0, 6)),
        "max_model_len": longest,
        "enable_chunked_prefill": int(enable_chunked_prefill),
        "scheduler_reserve_full_isl": int(draw(st.booleans())),
        "watermark_blocks": draw(st.sampled_from([0, 0, 1, 3])),
        "async_scheduling": int(draw(st.booleans())),
        **draw(st.sampled_from([FIXED_STEP, LOADED_STEP])),
    }


@st.composite
def engines_and_traffic(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[float, int, int]]]:
    """An engine's fields and rows that it can all serve."""
    rows = draw(traffic())
    return draw(engines(rows)), rows


@dataclass(frozen=True)
class Workload:
    """An engine alone, and requests that use all that it offers, as plain data."""

    engine: dict[str, Any]
    rows: list[tuple[float, int, int, int]]  # (arrived_at_s, prompt tokens, output tokens, class)
    classes: list[tuple[Any, ...]]  # (priority, adapter, max_tokens, grammar_s), as in `experiments.contracts.fleets.classes`
    segments: list[list[tuple[int, int]]]  # of each request: (content, tokens)
    timeline_interval_s: float = 0.7  # the timeline recounts all sums

    def run(self, **fleet: Any) -> Ran:
        """Runs it, on one replica unless `fleet` says otherwise, and checks the invariants."""
        return run(
            arrivals(self.rows),
            engine(**self.engine),
            classes=classes(*self.classes),
            segments=self.segments,
            timeline_interval_s=self.timeline_interval_s,
            max_drain_s=1e6 if self.timeline_interval_s > 1 else 1e4,  # in which each of these is served many times over
            **fleet,
        )


def some_content(random: Random, num_tokens: int) -> list[tuple[int, int]]:
    """A conversation that goes on, or some of three streams one after the other, or nothing that others have as well."""
    if random.random() < 0.3:
        return [(random.randint(10, 13), num_tokens)]
    content: list[tuple[int, int]] = []
    while sum(length for _, length in content) < num_tokens and random.random() < 0.75:
        content.append((random.randint(0, 2), random.choice([4, 8, random.randint(1, 20)])))
    return content


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Every option of the scheduler is on in a third or more of them, in any combination that vLLM itself survives."""
    rows = draw(traffic())
    fields = draw(engines(rows)) | draw(options())
    fields["num_stages"] = draw(st.sampled_from([1, 1, 1, 2, 3]))
    if (fields["num_speculative_tokens"] and not fields["async_scheduling"]) or fields["max_loras"]:
        fields["num_stages"] = 1  # see `has_pipeline` in tests.conformance.workloads
    random = Random(draw(st.integers(0, 1 << 30)))
    num_classes = draw(st.integers(1, 4))
    adapters = range(fields["max_loras"] + 3) if fields["max_loras"] else [0]
    kinds: list[tuple[Any, ...]] = [
        (random.randint(-1, 2), random.choice(adapters), random.choice([0, MAX_TOKENS]), random.choice([0.0, 0.0, 0.5, 2.3]))
        for _ in range(num_classes)
    ]
    return Workload(
        fields | limits(fields, rows),
        [(*row, random.randrange(num_classes)) for row in rows],
        kinds,
        [some_content(random, prompt + output) for _, prompt, output in rows] if fields["enable_prefix_caching"] else [],
    )


PLAIN: dict[str, Any] = {
    "async_scheduling": 0,
    "num_stages": 1,
    "enable_prefix_caching": 0,
    "num_speculative_tokens": 0,
    "num_lookahead_tokens": 0,
    "drops_last_hit": 0,
}


@st.composite
def other_engines(draw: st.DrawFn) -> Workload:
    """A workload on an engine that does what vLLM does not: SGLang's order and forced tokens, and batching before vLLM."""
    work = draw(workloads())
    longest = max(prompt + output for _, prompt, output, _ in work.rows)
    whole_prompts = {"enable_chunked_prefill": 0, "max_num_batched_tokens": max(longest, work.engine["max_num_seqs"])}
    changes: dict[str, Any] = draw(
        st.sampled_from(
            [
                {"schedules_by_prefix": 1, "schedules_by_priority": 0, "enable_prefix_caching": 1},
                {"jump_forward": 1, "async_scheduling": 0, "num_stages": 1},
                {**PLAIN, "reserves_output": 1, **whole_prompts},
                {**PLAIN, "reserves_output": 1, "scheduler": STATIC, **whole_prompts},
            ]
        )
    )
    kinds = [(*kind, 1 + number, 3 * (number % 2)) for number, kind in enumerate(work.classes)]
    return replace(work, engine=work.engine | changes, classes=kinds)


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    """What `engines` leaves at its default."""
    num_drafts = draw(st.sampled_from([0, 0, 0, 1, 2, 4]))
    is_eagle = num_drafts > 0 and draw(st.booleans())
    return {
        # a threshold of no more than the drafts makes vLLM fail an assertion: `shortest_prompt` in tests.conformance.workloads
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, num_drafts + 1, num_drafts + 7])),
        "schedules_by_priority": int(draw(st.booleans())),
        "enable_prefix_caching": int(draw(st.booleans())),
        **dict.fromkeys(["threshold_binds_alone", "passed_by_go_first"], int(draw(st.booleans()))),  # vLLM 0.30 or 0.32
        "max_loras": draw(st.sampled_from([0, 0, 1, 2])),
        "num_speculative_tokens": num_drafts,
        "num_lookahead_tokens": num_drafts if is_eagle else 0,
        "drops_last_hit": int(is_eagle),
        "acceptance_rate": draw(st.sampled_from([0.0, 0.5, 0.8, 1.0])),
        "prefill_schedule_interval": draw(st.sampled_from([1, 1, 1, 2, 5])),
        **draw(st.sampled_from([FIXED_STEP, FULL_STEP])),
    }


def limits(fields: dict[str, Any], rows: list[tuple[float, int, int]]) -> dict[str, Any]:
    """Limits that leave room for the tokens of an engine's drafts, and for one that comes after an answer's unseen end.

    With async scheduling, drafts and adapters together vLLM fails an assertion at max_model_len: `furthest_token` in
    tests.conformance.workloads.
    """
    num_drafts, num_steps = fields["num_speculative_tokens"], fields["num_stages"] + fields["async_scheduling"]
    is_fatal = num_drafts > 0 and fields["max_loras"] > 0 and fields["async_scheduling"]
    max_model_len = fields["max_model_len"] + (2 * (1 + num_drafts) if is_fatal else 0)
    num_more = num_steps * (1 + num_drafts) + num_drafts if num_drafts else num_steps - 1
    num_slots = max(min(prompt + output - 1 + num_more, max_model_len) for _, prompt, output in rows)
    return {
        "max_model_len": max_model_len,
        "max_num_batched_tokens": max(fields["max_num_batched_tokens"], 1 + num_drafts),
        "num_usable_blocks": max(fields["num_usable_blocks"], -(-num_slots // fields["block_size"])),
    }


@dataclass(frozen=True)
class Case:
    """A whole run, as plain data."""

    rows: list[tuple[float, int, int]]
    engine: dict[str, Any]
    decisions: list[int]
    router: Any = "least_loaded"
    options: Any = None
    max_replicas: int = 4
    scrape_interval_s: float = 0.0
    interval_s: float = 2.0
    stages_s: tuple[float, ...] = ()
    drain_timeout_s: float = 600.0
    requeue_on_timeout: bool = True
    warm_start: bool = True
    timeline_interval_s: float = 60.0
    chunk: int = 1000
    max_concurrency: int | None = None
    turns: tuple[tuple[int, float], ...] = ()  # of each row (follows, delay_s), as in `sim.records.ARRIVAL`; () = none follows

    def run(self, **changes: Any) -> Ran:
        """Runs it, with `changes` to its fields, and checks the invariants."""
        case = replace(self, **changes)
        columns = ("provisioned_at_s", "image_pulled_at_s", "ready_at_s")
        arriving = arrivals(case.rows)
        for name, values in zip(("follows", "delay_s"), zip(*case.turns, strict=True), strict=False):
            arriving[name] = values
        return run(
            arriving,
            engine(**case.engine),
            router=case.router,
            options=case.options,
            autoscaler=Script(case.decisions),
            max_replicas=case.max_replicas,
            scrape_interval_s=case.scrape_interval_s,
            interval_s=case.interval_s,
            stages=lambda: list(zip(columns, case.stages_s, strict=False)),
            drain_timeout_s=case.drain_timeout_s,
            requeue_on_timeout=case.requeue_on_timeout,
            warm_start=case.warm_start,
            timeline_interval_s=case.timeline_interval_s,
            chunk=case.chunk,
            max_concurrency=case.max_concurrency,
        )

    def is_servable(self, num_prompt_tokens: int, num_output_tokens: int) -> bool:
        """Whether an engine can ever serve it: all tokens in its context, all but the last in its KV cache."""
        num_tokens = num_prompt_tokens + num_output_tokens
        num_kv_tokens = self.engine["num_usable_blocks"] * self.engine["block_size"]
        return num_tokens <= self.engine["max_model_len"] and num_tokens - 1 <= num_kv_tokens

    def scaled(self, k: float) -> "Case":
        """The same story told k times slower."""
        rates = ("flops_per_s", "bytes_per_s")
        times = ("comm_s", "comm_s_per_token", "overhead_s", "cpu_s", "cpu_s_per_request")
        scaled = {name: value / k for name, value in self.engine.items() if name in rates}
        scaled |= {name: value * k for name, value in self.engine.items() if name in times}
        return replace(
            self,
            rows=[(arrived_at_s * k, prompt, output) for arrived_at_s, prompt, output in self.rows],
            engine=self.engine | scaled,
            scrape_interval_s=self.scrape_interval_s * k,
            interval_s=self.interval_s * k,
            stages_s=tuple(stage_s * k for stage_s in self.stages_s),
            drain_timeout_s=self.drain_timeout_s * k,
            timeline_interval_s=self.timeline_interval_s * k,
            turns=tuple((follows, delay_s * k) for follows, delay_s in self.turns),
        )


@st.composite
def machines(draw: st.DrawFn) -> dict[str, Any]:
    """How many there are and when, as `fleets.run` is told: they come and go, down to none, but for one at the end."""
    max_replicas = draw(st.integers(1, 3))
    decisions = draw(st.lists(st.integers(0, max_replicas), max_size=12))
    start_s = draw(st.sampled_from([0.0, 1.7]))
    return {
        "max_replicas": max_replicas,
        "autoscaler": Script([*decisions, draw(st.integers(1, max_replicas))]),
        "interval_s": draw(st.sampled_from([1.0, 2.3])),
        "stages": lambda: [("ready_at_s", start_s)],
        "drain_timeout_s": draw(st.sampled_from([0.0, 0.5, 3.1, 600.0])),
        "requeue_on_timeout": draw(st.booleans()),
        "router": draw(st.sampled_from(["round_robin", "least_loaded"])),
    }


@st.composite
def steady_fleets(draw: st.DrawFn) -> Case:
    """A few replicas that are there from the first to the last; some requests may be too large for them."""
    num_replicas = draw(st.integers(1, 4))
    rows = draw(traffic())
    return Case(
        rows=rows,
        engine=draw(engines(rows[: draw(st.integers(1, len(rows)))])),
        decisions=[num_replicas],
        router=draw(st.sampled_from(sorted(routers.KINDS))),
        max_replicas=num_replicas,
        scrape_interval_s=draw(st.sampled_from([0.0, 0.5, 0.7])),
        max_concurrency=draw(st.sampled_from([None, None, 1, 3, 8])),
    )


@st.composite
def changing_fleets(draw: st.DrawFn) -> Case:
    """Replicas that come and go, down to none, with drains that may not end in time; one is there at the end."""
    max_replicas = draw(st.integers(1, 4))
    decisions = draw(st.lists(st.integers(0, max_replicas), min_size=1, max_size=12))
    return replace(
        draw(steady_fleets()),
        decisions=[*decisions, draw(st.integers(1, max_replicas))],
        max_replicas=max_replicas,
        interval_s=draw(st.sampled_from([0.5, 1.0, 2.3])),
        stages_s=draw(st.sampled_from([(), (0.0,), (1.0,), (0.3, 0.4, 1.7)])),
        drain_timeout_s=draw(st.sampled_from([0.0, 0.5, 3.1, 600.0])),
        requeue_on_timeout=draw(st.booleans()),
        warm_start=draw(st.booleans()),
        timeline_interval_s=draw(st.sampled_from([0.5, 0.9, 60.0])),
    )


@st.composite
def conversations(draw: st.DrawFn) -> Case:
    """Any fleet, and requests of which some follow others, at any distance: chains, and several that follow the same."""
    case = draw(st.one_of(steady_fleets(), changing_fleets()))
    turns = [
        (draw(st.integers(0, row)) if draw(st.booleans()) else 0, draw(st.sampled_from([0.0, 0.0, 0.5, 3.3])))
        for row in range(len(case.rows))
    ]
    return replace(case, turns=tuple(turns))
