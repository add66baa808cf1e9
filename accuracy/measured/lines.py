"""A line of serving_ground_truth.jsonl as a served result."""

import re
from collections.abc import Mapping
from typing import Any

from accuracy.errors import STATISTICS, Measures
from accuracy.measured.chats import CHAT, chat_tokens, front_end_s
from accuracy.measured.engines import DTYPE_IN_NAME, engine_of, engine_problems
from accuracy.measured.results import Served

SERVED_SHARE = 0.95
"""Below this share of the offered rate, until the last request was sent, the client was held up by its own limit of requests in
flight, or gave up; where the limit is not known, that cannot be repeated."""

RANDOM_LENGTHS, SAME_LENGTH = ((128, 4), (1000, 2000), (2000, 100), (4000, 200), (32000, 100)), 0.01
"""Prompts and answers of gpustack's random requests, and how near their means must be; its others are ShareGPT's conversations.

Source: the means in its reports."""

INFERENCE_PERF = "inference-perf"
"""Its `constant` load draws exponential gaps, and stretches them so that the last request of a stage comes at its end.

Source: ConstantLoadTimer of 0.2.0 and 0.3.0. Stages of 60 requests at 1/s took 58.5 to 59.7 s to send, not 59."""


def served_of_line(row: Mapping[str, Any]) -> Served:
    """Returns a line's result.

    Raises:
        KeyError: a key is missing.
    """
    engine = engine_of(row)
    lengths, answers = row["in_len"] or {}, row["out_len"] or {}
    prompt = (lengths.get("measured_prompt") or {}).get("mean") or lengths.get("total") or lengths.get("mean") or 0
    output = answers.get("requested") or answers.get("p50") or answers.get("mean") or 0  # the mean is of re-encoded text
    rate = row["rate"] if isinstance(row["rate"], int | float) else 0.0
    words = str(row["workload"]).split(";")[0].lower().removeprefix("inference-perf shared_prefix ")
    workload = re.sub(r"[^a-z0-9+]+", "-", words).strip("-")
    limit = re.search(r"(\d+) in flight", str(row["arrival"]))
    is_chat = CHAT in row["workload"]
    if row["dtype"] == DTYPE_IN_NAME:
        workload = f"{prompt:.0f}-{output:.0f}"
        prompt += (chat_tokens(engine.model) or 0) if is_chat else 0
        engine.arguments.setdefault("max_model_len", round(prompt + output))  # the model's own may not fit our memory
    at = f"{rate:g}" if rate else "all-at-once"
    parts = (row["group"], engine.gpu or "unknown-gpu", engine.title, f"tp{engine.size}", workload, at)
    return Served(
        **engine.fields(row),
        name="/".join(parts),
        rate_per_s=float(rate),
        num_requests=int(row["num_prompts"] or 0),
        num_prompt_tokens=round(prompt),
        num_output_tokens=round(output),
        is_even="constant" in str(row["arrival"]) and INFERENCE_PERF not in f"{row['group']} {row['arrival']}",
        shares_prompts=("system" in lengths or "shared_prefix" in str(row["workload"]))
        and bool(engine.arguments.get("enable_prefix_caching", True)),
        real=_measures(row, output),
        max_concurrency=int(limit[1]) if limit else 0,
        front_end_s=front_end_s(row) if is_chat else 0.0,
        problem=_problem(row, rate, prompt, output),
    )


def _problem(row: Mapping[str, Any], rate: float, prompt: float, output: float) -> str:
    """Why a result is not one of an open run of a known engine; "" where it is."""
    engine = engine_of(row)
    workload, quality = str(row["workload"]), str(row["quality"])
    of_the_engine = engine_problems(row, engine)
    other_engine = next(iter(of_the_engine))
    problems = {
        other_engine: of_the_engine.pop(other_engine),
        "vLLM's V0 engine": "v0_engine" in workload,
        "drafts, whose acceptance is not known": "eagle" in workload,
        "mixes stages of different rates": isinstance(row["rate"], list) or "mixes stages" in quality,
        "neither a rate nor all at once": not rate and "all at once" not in str(row["arrival"]),
        "lengths are spread, and only their means are known": row["dtype"] == DTYPE_IN_NAME and not _is_fixed(row),
        "clients gave up: overload with timeouts": quality.startswith("C"),
        f"served under {SERVED_SHARE:.0%} of the offered rate, and how many the client had in flight is not known": bool(
            rate and "in flight" not in str(row["arrival"]) and _is_held_up(row, rate)
        ),
        "arrivals are neither evenly spaced, nor Poisson, nor all at once": not re.search(
            r"constant|Poisson(?!-like)|all at once", str(row["arrival"])
        ),
        **of_the_engine,
        "lengths are not known": not prompt * output,
        "no latencies": not _measures(row, output).statistics,
        f"chat template of {row['model']} is not known": CHAT in workload and chat_tokens(engine.model) is None,
        "how many requests were sent is not known": not row["num_prompts"],
    }
    return next((problem for problem, is_so in problems.items() if is_so), "")


def _is_held_up(row: Mapping[str, Any], rate: float) -> bool:
    """Tells whether requests were sent more slowly than offered: what the last ones took to be answered is no part of that."""
    served, num = row["throughput_req_s"], row["num_prompts"]
    if not served or not num:
        return bool(served and served < SERVED_SHARE * rate)
    times = row["e2e_ms"] or {}
    last_s = (times.get("p99") or times.get("mean") or 0.0) / 1e3
    return bool(num / served - last_s > num / rate / SERVED_SHARE)


def _is_fixed(row: Mapping[str, Any]) -> bool:
    """Tells whether all requests were as long as each other: random prompts of a length whose answers did not end early."""
    prompt, output = row["in_len"]["mean"], row["out_len"]["mean"]
    return any(abs(prompt / p - 1) < SAME_LENGTH and abs(output / o - 1) < SAME_LENGTH for p, o in RANDOM_LENGTHS)


def _measures(row: Mapping[str, Any], num_output_tokens: float) -> Measures:
    """Times in seconds. TPOT is what follows from E2E, TTFT and the length: some tools count two chunks a token."""
    found: dict[tuple[str, str], float] = {}
    for metric in ("ttft", "tpot", "itl", "e2e"):
        values = row[f"{metric}_ms"] or {}
        if metric == "tpot" and "mean_derived" in values:
            values = {"mean": values["mean_derived"]}
        if metric == "itl" and "tpot_ms" in row and "mean_derived" in (row["tpot_ms"] or {}):
            values = {}  # these groups' ITL is their TPOT again
        if metric in ("tpot", "itl") and num_output_tokens <= 1:
            values = {}  # an answer of one token has no gap
        found |= {(f"{metric}_s", name): values[name] / 1e3 for name in STATISTICS if values.get(name)}
    rate = row["throughput_req_s"]
    return Measures(statistics=found, rates={"requests_per_s": rate} if rate else {})
