"""Lines of serving_ground_truth.jsonl as indices: BLIS's results, KubeCon's, gpustack's and others'."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accuracy.errors import STATISTICS
from accuracy.measured.arguments import arguments_of, version_of
from accuracy.measured.engines import Engine, engine_of, engine_problems
from accuracy.measured.reported import chat_tokens

SERVED_SHARE = 0.95
"""Below this share of the offered rate, until the last request was sent, the client was held up by its own limit of requests in
flight, or gave up; where the limit is not known, that cannot be repeated."""

RANDOM_LENGTHS, SAME_LENGTH = ((128, 4), (1000, 2000), (2000, 100), (4000, 200), (32000, 100)), 0.01
"""Prompts and answers of gpustack's random requests, and how near their means must be; its others are ShareGPT's conversations.

Source: the means in its reports."""

DTYPE_IN_NAME, DTYPES_IN_NAMES = "see model/flags", {"FP8": "fp8", "AWQ": "awq"}
"""What gpustack's results say, whose dtype is the end of the model's name, and those ends."""

INFERENCE_PERF = "inference-perf"
"""Its `constant` load draws exponential gaps, and stretches them so that the last request of a stage comes at its end.

Source: ConstantLoadTimer of 0.2.0 and 0.3.0. Stages of 60 requests at 1/s took 58.5 to 59.7 s to send, not 59."""

DISTINCT_PROMPTS, OF_OTHERS = {"inference-perf-kubecon": 100}, 45
"""Different prompts that the requests of a run share, by group. KubeCon's: 10 system prompts x 10 users; BLIS's 9 x 5, 10 x 5
and 11 x 4 prompts. Source: inference-perf's profiles of these runs."""

CHAT = "/v1/chat/completions"
"""Where a bench's prompts are rendered as chat."""

PARSES_TEMPLATES, TEMPLATE_S = (0, 11, 0), 9.2e-3
"""vLLM's version that parses the chat template again for each request (`resolve_chat_template_kwargs`), in the API server's
event loop, and how long that takes. Requests that come at once are all parsed before the engine is told of the first.

Source: 1,000 at once for Qwen3 32B on gpustack's H100. Their TTFT grows evenly from 9.8 s (p50 21.3, p99 32.7), half a step
of 1.1 s after the first was scheduled. Nothing that is validated here was served there; another host has another CPU."""

SHORT_ARGUMENTS = {"gpu_mem_util": "gpu_memory_utilization", "cpu_offload": "cpu_offload_gb"}
"""What some lines call vLLM's arguments."""


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yields an index of each line."""
    with path.open(encoding="utf-8") as lines:
        yield from (index_of(json.loads(line)) for line in lines if line.strip())


def index_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a line as an index of one result."""
    about = _about(row)
    engine = engine_of(about)
    lengths, answers = row["in_len"] or {}, row["out_len"] or {}
    prompt = (lengths.get("measured_prompt") or {}).get("mean") or lengths.get("total") or lengths.get("mean") or 0
    output = answers.get("requested") or answers.get("p50") or answers.get("mean") or 0  # the mean is of re-encoded text
    rate = row["rate"] if isinstance(row["rate"], int | float) else 0.0
    words = str(row["workload"]).split(";")[0].lower().removeprefix("inference-perf shared_prefix ")
    workload = re.sub(r"[^a-z0-9+]+", "-", words).strip("-")
    is_chat = CHAT in row["workload"]
    if row["dtype"] == DTYPE_IN_NAME:
        workload = f"{prompt:.0f}-{output:.0f}"
        prompt += (chat_tokens(engine.model) or 0) if is_chat else 0
        about["server_args"].setdefault("max_model_len", round(prompt + output))  # the model's own may not fit our memory
    if is_chat and version_of(about["engine_version"]) == PARSES_TEMPLATES:
        about["front_end_s"] = TEMPLATE_S
    report = {
        "arrival": _arrival(row),
        "rate": rate or None,
        "max_concurrency": _max_concurrency(row),
        "num_requests": row["num_prompts"] or None,
        "prompt_tokens": prompt or None,
        "output_tokens": output or None,
        "problem": _problem(row, engine, about, rate, prompt, output),
        "measured": _measured(row, output),
        "requests_per_s": row["throughput_req_s"] or None,
    }
    is_cached = about["server_args"].get("enable_prefix_caching", True)
    if is_cached and ("system" in lengths or "shared_prefix" in str(row["workload"])):
        report["prefixes"] = {"num": DISTINCT_PROMPTS.get(row["group"], OF_OTHERS), "tokens": round(prompt)}
    return {"about": {**about, "workload": workload}, "reports": [report]}


def _about(row: Mapping[str, Any]) -> dict[str, Any]:
    """The engine of a line, as an index says it."""
    dtype = str(row["dtype"])
    if dtype == DTYPE_IN_NAME:
        dtype = DTYPES_IN_NAMES.get(str(row["model"]).rpartition("-")[2], "bf16")
    arguments = {SHORT_ARGUMENTS.get(name, name): value for name, value in arguments_of(row["server_args"]).items()}
    return {
        "model": str(row["model"]),
        "gpu": str(row["gpu"]).replace("A single NVIDIA ", "NVIDIA "),
        "tp": row["tp"] or 1,
        "engine": str(row["engine"]),
        "engine_version": str(row["engine_version"] or ""),
        "dtype": dtype,
        "server_args": arguments,
        "group": row["group"],
    }


def _arrival(row: Mapping[str, Any]) -> str | None:
    said = str(row["arrival"])
    if "all at once" in said:
        return "all at once"
    return "constant" if "constant" in said and INFERENCE_PERF not in f"{row['group']} {said}" else None


def _max_concurrency(row: Mapping[str, Any]) -> int | None:
    limit = re.search(r"(\d+) in flight", str(row["arrival"]))
    return int(limit[1]) if limit else None


def _problem(
    row: Mapping[str, Any], engine: Engine, about: Mapping[str, Any], rate: float, prompt: float, output: float
) -> str:
    """Why a result is not one of an open run of a known engine, or "": also where the index alone says why."""
    workload, quality = str(row["workload"]), str(row["quality"])
    of_the_engine = engine_problems(about, engine)
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
        "no latencies": not _measured(row, output),
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


def _measured(row: Mapping[str, Any], num_output_tokens: float) -> dict[str, dict[str, float]]:
    """Times in seconds. TPOT is what follows from E2E, TTFT and the length: some tools count two chunks a token."""
    found: dict[str, dict[str, float]] = {}
    for metric in ("ttft", "tpot", "itl", "e2e"):
        values = row[f"{metric}_ms"] or {}
        if metric == "tpot" and "mean_derived" in values:
            values = {"mean": values["mean_derived"]}
        if metric == "itl" and "tpot_ms" in row and "mean_derived" in (row["tpot_ms"] or {}):
            values = {}  # these groups' ITL is their TPOT again
        if metric in ("tpot", "itl") and num_output_tokens <= 1:
            values = {}  # an answer of one token has no gap
        seconds = {name: values[name] / 1e3 for name in STATISTICS if values.get(name)}
        found |= {f"{metric}_s": seconds} if seconds else {}
    return found
