"""Makes random workloads that enter by step index, with little memory and many features of vLLM's scheduler at once.

A workload is the JSON object that the shared recordings hold (`NAME_workload.json`), with these request fields added, all
optional: `max_tokens` (default output_len; a larger one makes the request stop early, by a stop token at output_len), `lora`
(0 none), `grammar_ready_step` (structured output: not schedulable before that loop step), `accepted` (of the drafts verified
when n output tokens are known, the first accepted[n % len] would be accepted).
"""

import gzip
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
VOCABULARY = 100  # small, so that recordings are small; what prompts share, they share by construction
NUM_TEMPLATES = 3
MAX_DRAFTS = 5
VLLM_VERSION = "0.32.0"  # of a workload that names none


def text_of(path: Path) -> str:
    """Returns the text of a file, gzipped or not."""
    return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()


def version_of(workload: dict[str, Any]) -> str:
    """Returns whose scheduler a workload is for."""
    version: str = workload.get("vllm_version", VLLM_VERSION)
    return version


def splitmix64(x: int) -> int:
    """Returns a well-mixed 64-bit number. Source: Steele, Lea & Flood, OOPSLA 2014; Vigna's constants."""
    x = (x + GOLDEN) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def accepted_drafts(request_index: int, num_known_outputs: int, rate: float, num_drafts: int) -> int:
    """Returns how many leading drafts would be accepted: those before the first uniform number that is not below the rate.

    `request_index` is the request's place among all by arrival step. The simulator uses the same function.

    >>> [accepted_drafts(3, n, 0.7, 4) for n in range(8)]
    [1, 2, 2, 1, 2, 0, 3, 4]
    """
    start = splitmix64((request_index * GOLDEN + num_known_outputs) & MASK)
    for j in range(num_drafts):
        if (splitmix64((start + j) & MASK) >> 11) * 2.0**-53 >= rate:
            return j
    return num_drafts


def is_stopped_early(request: dict[str, Any]) -> bool:
    return request.get("max_tokens", request["output_len"]) > request["output_len"]


Test = Callable[[dict[str, Any], list[dict[str, Any]]], bool]
FEATURES: dict[str, tuple[float, Test]] = {
    # name: (probability, whether a workload with these engine arguments and requests has it)
    "prefix": (0.6, lambda a, r: a.get("enable_prefix_caching", False)),
    "priority": (0.3, lambda a, r: a.get("scheduling_policy") == "priority"),
    "threshold": (0.3, lambda a, r: a.get("long_prefill_token_threshold", 0) > 0),
    "watermark": (0.25, lambda a, r: a.get("watermark", 0) > 0),
    "no_chunking": (0.15, lambda a, r: not a.get("enable_chunked_prefill", True)),
    "reserve_off": (0.25, lambda a, r: not a.get("scheduler_reserve_full_isl", True)),
    "async": (0.5, lambda a, r: a.get("async_scheduling", False)),
    "lora": (0.2, lambda a, r: a.get("max_loras", 0) > 0),
    "structured": (0.2, lambda a, r: any("grammar_ready_step" in x for x in r)),
    "ngram": (0.15, lambda a, r: a.get("speculative_method") == "ngram"),
    "eagle": (0.25, lambda a, r: a.get("speculative_method") == "eagle"),
    "eos": (0.5, lambda a, r: any(map(is_stopped_early, r))),
    "pipeline": (0.3, lambda a, r: a.get("pipeline_parallel_size", 1) > 1),
    "pacing": (0.2, lambda a, r: a.get("prefill_schedule_interval", 1) > 1),
    "model_len": (0.4, lambda a, r: any(len(x["prompt"]) + x["output_len"] > a["max_model_len"] for x in r)),
}


def features_of(workload: dict[str, Any]) -> list[str]:
    """Returns the names of the features that a workload has."""
    return [name for name, (_, test) in FEATURES.items() if test(workload["engine_args"], workload["requests"])]


def generate(
    seed: int,
    allowed: Collection[str] = tuple(FEATURES),
    required: Collection[str] = (),
    num_requests: int | None = None,
    vllm_version: str = VLLM_VERSION,
) -> dict[str, Any]:
    """Returns the workload of a seed.

    Args:
        seed: the same seed, options and version of this module give the same workload.
        allowed: features to draw from, each with its probability.
        required: features it has in any case.
        num_requests: None draws it: a few in a quarter of the workloads, else 60 to 200.
        vllm_version: whose options it keeps to.
    """
    rng = np.random.default_rng(seed)
    drawn = {name for name, (chance, _) in FEATURES.items() if rng.random() < chance and name in allowed} | set(required)
    if {"ngram", "eagle"} <= drawn:
        drawn.discard("ngram" if "eagle" in required or rng.random() < 0.5 else "eagle")
    if num_requests is None:
        num_requests = int(rng.integers(2, 7) if rng.random() < 0.25 else rng.integers(60, 201))
    arguments = engine_arguments(rng, drawn)
    if vllm_version == "0.30.0":
        arguments.pop("long_prefill_token_threshold_adaptive", None)
    requests = add_options(rng, drawn, arguments, new_requests(rng, drawn, arguments, num_requests))
    return {
        "name": f"seed{seed}",
        "vllm_version": vllm_version,
        "engine_args": arguments,
        "num_gpu_blocks": 1 + num_usable_blocks(rng, arguments, requests),
        "requests": requests,
    }


def engine_arguments(rng: np.random.Generator, drawn: set[str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "block_size": int(rng.choice([4, 8, 16, 32])),
        "max_model_len": int(rng.integers(40, 300)),
        "max_num_seqs": int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16])),
        "max_num_batched_tokens": int(rng.choice([8, 16, 24, 40, 64, 100, 128, 256])),
        "enable_prefix_caching": "prefix" in drawn,
    }
    least = max(arguments["max_num_seqs"], 1 + MAX_DRAFTS)
    arguments["max_num_batched_tokens"] = max(arguments["max_num_batched_tokens"], least)
    if "no_chunking" in drawn:
        arguments["enable_chunked_prefill"] = False
        arguments["max_num_batched_tokens"] = arguments["max_model_len"] + int(rng.integers(0, 100))
    if "priority" in drawn:
        arguments["scheduling_policy"] = "priority"
    if "threshold" in drawn:
        arguments["long_prefill_token_threshold"] = int(rng.integers(3, 40))
        if "ngram" in drawn:
            arguments["long_prefill_token_threshold"] += MAX_DRAFTS  # see shortest_prompt
        if rng.random() < 0.3:
            arguments["long_prefill_token_threshold_adaptive"] = True
    if "watermark" in drawn:
        arguments["watermark"] = float(rng.choice([0.02, 0.05, 0.1, 0.25]))
    if "reserve_off" in drawn:
        arguments["scheduler_reserve_full_isl"] = False
    if "async" in drawn:
        arguments["async_scheduling"] = True
    if "lora" in drawn:
        arguments["max_loras"] = int(rng.integers(1, 4))
    if has_pipeline(drawn):
        arguments["pipeline_parallel_size"] = int(rng.integers(2, 5))
    if "pacing" in drawn:
        arguments["prefill_schedule_interval"] = int(rng.integers(2, 7))
    if drawn & {"ngram", "eagle"}:
        arguments["speculative_method"] = "eagle" if "eagle" in drawn else "ngram"
        arguments["num_speculative_tokens"] = int(rng.integers(1, MAX_DRAFTS + 1))
        arguments["acceptance_rate"] = round(float(rng.uniform(0.1, 0.95)), 2)
    return arguments


def has_pipeline(drawn: set[str]) -> bool:
    """Returns whether these features allow a pipeline.

    vLLM's older runner, which plans no step ahead, drafts in none. And as a running request's adapter counts only in the steps
    that hold it, another is admitted in between; when both are then due, vLLM 0.32 fails an assertion (scheduler.py:897).
    """
    return "pipeline" in drawn and "lora" not in drawn and ("async" in drawn or not drawn & {"ngram", "eagle"})


def new_requests(
    rng: np.random.Generator, drawn: set[str], arguments: dict[str, Any], num_requests: int
) -> list[dict[str, Any]]:
    """Returns requests with prompts that share prefixes, in order of arrival, with the fields of the shared recordings."""
    reach = furthest_token(drawn, arguments)
    longest = reach - 1
    templates = [tokens(rng, int(rng.integers(1, longest))) for _ in range(NUM_TEMPLATES)]
    mean_output = float(rng.choice([3.0, 10.0, 30.0]))
    requests: list[dict[str, Any]] = []
    for position, arrival_step in enumerate(arrival_steps(rng, num_requests)):
        prompt, prefix_id = new_prompt(rng, requests, templates, arguments["block_size"], longest)
        prompt = prompt[:longest]
        prompt += tokens(rng, max(0, shortest_prompt(arguments) - len(prompt)))
        room = reach - len(prompt)
        output_len = int(min(rng.geometric(1 / mean_output), 2 * mean_output + 1))
        if reach == arguments["max_model_len"] and "model_len" in drawn:
            output_len = max(room + int(rng.integers(-2, 10)), 1) if rng.random() < 0.3 else output_len
        else:
            output_len = min(output_len, room)
        requests.append(
            {
                "id": f"r{position:04}",
                "arrival_step": arrival_step,
                "prompt": prompt,
                "output_len": output_len,
                "output_ids": tokens(rng, output_len),
                "prefix_id": prefix_id,
                "priority": int(rng.integers(-1, 4)) if "priority" in drawn else 0,
            }
        )
    return requests


def furthest_token(drawn: set[str], arguments: dict[str, Any]) -> int:
    """Returns the most tokens of a request, unless it may go beyond max_model_len.

    With async scheduling, drafts and adapters together vLLM 0.32 fails an assertion at max_model_len: a request that is skipped
    because its drafts reach it, when they are rejected, runs again beside the adapters admitted since (scheduler.py:897).
    """
    is_fatal = {"async", "lora"} <= drawn and bool(drawn & {"ngram", "eagle"})
    room = 2 * (1 + arguments["num_speculative_tokens"]) if is_fatal else 0
    return int(arguments["max_model_len"]) - room


def shortest_prompt(arguments: dict[str, Any]) -> int:
    """Returns the fewest tokens of a prompt.

    A request admitted for one token is padded to a whole verification; where the threshold then cuts it, vLLM 0.32 fails an
    assertion (scheduler.py:1372). With EAGLE only a prompt of one token is so admitted, with n-grams any prefix hit may do it.
    """
    is_fatal = 0 < arguments.get("long_prefill_token_threshold", 0) <= arguments.get("num_speculative_tokens", 0)
    return 2 if is_fatal else 1


def add_options(
    rng: np.random.Generator, drawn: set[str], arguments: dict[str, Any], requests: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Adds the optional fields to the requests, and returns them."""
    num_loras = arguments.get("max_loras", 0) + int(rng.integers(1, 4))
    for index, request in enumerate(requests):
        if "eos" in drawn and rng.random() < 0.6:
            request["max_tokens"] = request["output_len"] + int(rng.integers(1, 20))
        if "lora" in drawn:
            request["lora"] = int(rng.integers(0, num_loras + 1))
        if "structured" in drawn and (index == 0 or rng.random() < 0.4):
            request["grammar_ready_step"] = request["arrival_step"] + int(rng.integers(0, 25))
    return add_accepted(arguments, requests)


def add_accepted(arguments: dict[str, Any], requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sets how many drafts each request would accept, where the engine drafts; returns the requests."""
    rate, num_drafts = arguments.get("acceptance_rate", 0.0), arguments.get("num_speculative_tokens", 0)
    for index, request in enumerate(requests):
        request.pop("accepted", None)
        if num_drafts:
            request["accepted"] = [accepted_drafts(index, n, rate, num_drafts) for n in range(request["output_len"] + 1)]
    return requests


def arrival_steps(rng: np.random.Generator, num_requests: int) -> list[int]:
    """Returns sorted steps: all at once, in bursts with idle time between, or one by one."""
    kind = rng.random()
    if kind < 0.2:
        gaps = np.zeros(num_requests, np.int64)
    elif kind < 0.5:
        gaps = np.where(rng.random(num_requests) < 0.1, rng.integers(1, 120, num_requests), 0)
    else:
        gaps = rng.geometric(1 / float(rng.choice([1.5, 4.0, 12.0])), num_requests) - 1
    return [int(step) for step in np.cumsum(gaps)]


def new_prompt(
    rng: np.random.Generator, earlier: list[dict[str, Any]], templates: list[list[int]], block_size: int, longest: int
) -> tuple[list[int], int]:
    """Returns a prompt, perhaps too long, and the template it begins with, or -1."""
    fresh = tokens(rng, prompt_length(rng, longest))
    kind = rng.choice(["fresh", "template", "turn", "duplicate", "aligned", "branch"], p=[0.25, 0.25, 0.2, 0.1, 0.1, 0.1])
    if kind == "template":
        number = int(rng.integers(len(templates)))
        return templates[number][: int(rng.integers(1, longest))] + fresh[: int(rng.integers(1, 40))], number
    if kind == "fresh" or not earlier:
        return fresh, -1
    before = earlier[int(rng.integers(max(0, len(earlier) - 20), len(earlier)))]
    if kind == "turn":
        return before["prompt"] + before["output_ids"] + fresh[: int(rng.integers(1, 20))], before["prefix_id"]
    cut = {
        "duplicate": len(before["prompt"]),
        "aligned": max(len(before["prompt"]) // block_size * block_size, 1),
        "branch": int(rng.integers(1, len(before["prompt"]) + 1)),
    }[str(kind)]
    return before["prompt"][:cut] + (fresh if kind == "branch" else []), before["prefix_id"]


def prompt_length(rng: np.random.Generator, longest: int) -> int:
    """Returns a length from 1 to the longest, mostly short; both ends occur."""
    kind = rng.random()
    if kind < 0.05:
        return 1 if kind < 0.025 else longest
    return int(rng.integers(1, max(2, longest if kind < 0.25 else longest // 3)))


def tokens(rng: np.random.Generator, length: int) -> list[int]:
    found: list[int] = rng.integers(1, VOCABULARY, length).tolist()
    return found


def num_usable_blocks(rng: np.random.Generator, arguments: dict[str, Any], requests: list[dict[str, Any]]) -> int:
    """Returns enough blocks for the largest request (with fewer vLLM never ends), and seldom enough for all that may run."""
    needs = [num_blocks_needed(arguments, request) for request in requests]
    wanted = float(np.mean(needs)) * arguments["max_num_seqs"] * float(rng.choice([0.2, 0.5, 0.8, 1.5]))
    return max(max(needs), int(wanted) if rng.random() < 0.85 else 0)


def steps_in_flight(arguments: dict[str, Any]) -> int:
    """Returns how many steps are planned before the oldest has ended."""
    return int(arguments.get("pipeline_parallel_size", 1)) + bool(arguments.get("async_scheduling"))


def num_blocks_needed(arguments: dict[str, Any], request: dict[str, Any]) -> int:
    """Returns an upper limit of the blocks a request holds at once; exact without drafts and early stops."""
    slots = len(request["prompt"]) + request["output_len"] - 1  # the last token gets no KV
    num_drafts = arguments.get("num_speculative_tokens", 0)
    num_steps = steps_in_flight(arguments)
    if num_drafts:
        slots += num_steps * (1 + num_drafts) + num_drafts
    elif is_stopped_early(request):
        slots += num_steps - 1
    return -(-min(slots, arguments["max_model_len"]) // arguments["block_size"])
