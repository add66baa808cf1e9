"""An engine that prefills and decodes: what a step costs its batch when prompts come one after the other, and what it sustains.

Between the mean-field bound of `replicas.capacity`, where every step does the mean step's work, and the engine itself: an
engine reads a waiting prompt at once, as far as its budget goes, so that steps with a prompt (slow, bound by arithmetic) and
steps of decodes alone (fast, bound by memory) alternate, and the arithmetic that decodes leave idle stays idle.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from replicas.capacity import capacity
from replicas.step_time import step_time
from sim.checks import check_positive
from sim.records import BATCH, records


@dataclass(frozen=True)
class Mixed:
    """An engine that holds `batch` answers, in balance."""

    requests_per_s: float  # that start and end
    batch: float  # answers under way, mean over the time
    tpot_s: float  # mean; NaN where answers have one token
    prompt_share: float  # of the time, spent in steps with a prompt
    binding: str = ""  # of a capacity: memory, max_num_seqs, max_num_batched_tokens or tpot


def mixed(engine: Any, batch: float, mean_prompt_tokens: float, mean_output_tokens: float) -> Mixed:
    """Returns the balance of an engine with this many answers under way.

    A prompt takes k = ceil(P / (max_num_batched_tokens - batch)) steps, each of which also gives every answer a token. So a
    request costs its share of the decode steps, and what its prompt's steps take longer than those:

        1 / requests_per_s = (O - 1) t_decode(batch) / batch + k (t_prompt(batch) - t_decode(batch))

    and by Little's law tpot_s = batch / (requests_per_s (O - 1)). No queueing, no clumps of prompts, mean lengths; within 20 %
    of the simulated TPOT up to 0.85 of the capacity with equal lengths (docs/closed_forms.md). Where prompt_share comes out
    above 1 the budget is too small for this many prompts, and there is no such balance.

    Args:
        engine: one ENGINE record.
        batch: above 0 and below max_num_batched_tokens. Below 1 there are times without an answer; a step then has one.
        mean_prompt_tokens: P, at least 1.
        mean_output_tokens: O, above 1.

    Raises:
        ValueError: a number is out of range.

    Source: ours; checked by simulation.
    """
    check_positive("batch", batch)
    check_positive("mean_prompt_tokens", mean_prompt_tokens)
    if not mean_output_tokens > 1:
        raise ValueError(f"mean_output_tokens must be above 1, got {mean_output_tokens!r}")
    budget = float(engine.max_num_batched_tokens) - batch
    if budget <= 0:
        raise ValueError(f"batch must be below max_num_batched_tokens {engine.max_num_batched_tokens}, got {batch!r}")
    prompt, output = mean_prompt_tokens, mean_output_tokens
    num_chunks = max(1, -int(-prompt // budget))
    context = prompt + output / 2
    decodes = max(1.0, batch)
    decode_s = _step_s(engine, decodes, context, 0.0, 0.0, 0.0)
    read = prompt * (num_chunks + 1) / 2  # each chunk reads those before it
    prompt_s = _step_s(engine, decodes, context, prompt / num_chunks, prompt * prompt / 2 / num_chunks, read / num_chunks)
    per_request_s = (output - 1) * decode_s / batch + num_chunks * (prompt_s - decode_s)
    share = num_chunks * prompt_s / per_request_s
    return Mixed(float(1 / per_request_s), float(batch), float(batch * per_request_s / (output - 1)), float(share))


def _step_s(engine: Any, decodes: float, context: float, new: float, attended: float, read: float) -> float:
    batch = records(BATCH, 1)[0]
    batch.num_requests = round(decodes) + (new > 0)
    batch.num_tokens = max(1, round(decodes + new))
    batch.attended_tokens = decodes * context + attended
    batch.kv_tokens = round(decodes * context + read)
    return float(step_time(batch, engine))


def mixed_capacity(
    engine: Any, mean_prompt_tokens: float, mean_output_tokens: float, tpot_s: float | None = None
) -> Mixed | None:
    """Returns the balance at the most answers that memory, max_num_seqs and the TPOT target allow; None where there is none.

    More answers under way are always more requests/s, as decode steps are shared by more of them. Answers of one token are
    never under way: all steps are alike then, and the mean-field capacity is the balance, which no TPOT target concerns.

    Raises:
        ValueError: a number is out of range.
    """
    held = mean_prompt_tokens + mean_output_tokens / 2
    usable = float((engine.num_usable_blocks - engine.watermark_blocks) * engine.block_size)
    limits = {"memory": usable / (held + engine.block_size / 2), "max_num_seqs": float(engine.max_num_seqs)}
    binding = min(limits, key=lambda name: limits[name])
    most = min(limits[binding], engine.max_num_batched_tokens - 1.0)
    if most < 1:
        return None
    if mean_output_tokens == 1:
        return _prompts_alone(engine, mean_prompt_tokens)

    def at(batch: float) -> Mixed:
        return mixed(engine, batch, mean_prompt_tokens, mean_output_tokens)

    if at(most).prompt_share > 1:
        binding, most = "max_num_batched_tokens", _largest(lambda batch: at(batch).prompt_share <= 1, most)
    if tpot_s is not None and at(most).tpot_s > tpot_s:
        binding, most = "tpot", _largest(lambda batch: at(batch).tpot_s <= tpot_s, most)
    if not most:
        return None
    found = at(most)
    return Mixed(found.requests_per_s, found.batch, found.tpot_s, found.prompt_share, binding)


def _prompts_alone(engine: Any, mean_prompt_tokens: float) -> Mixed:
    """The balance of answers that prefill alone writes."""
    full = capacity(engine, mean_prompt_tokens, 1.0)
    binding = "memory" if full.binding == "kv_blocks" else full.binding
    return Mixed(full.requests_per_s, full.batch, math.nan, 1.0, binding)


_FEWEST = 1e-6
"""Answers under way, mean over the time, below which none is: what a TPOT of a request alone is looked up at."""


def _largest(is_within: Callable[[float], bool], most: float) -> float:
    """The largest batch up to `most` that is within a limit; 0 where a request alone in the engine is not."""
    low, high = _FEWEST, most
    if not is_within(low):
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if is_within(middle) else (low, middle)
    return low


def mixed_at(engine: Any, requests_per_s: float, mean_prompt_tokens: float, mean_output_tokens: float) -> Mixed | None:
    """Returns the balance at a rate of requests; None where the rate is above the capacity, or answers have one token.

    Raises:
        ValueError: a number is out of range.
    """
    check_positive("requests_per_s", requests_per_s)
    full = mixed_capacity(engine, mean_prompt_tokens, mean_output_tokens)
    if full is None or full.requests_per_s < requests_per_s or mean_output_tokens == 1:
        return None
    low, high = 0.0, full.batch
    for _ in range(60):
        middle = (low + high) / 2
        is_less = mixed(engine, middle, mean_prompt_tokens, mean_output_tokens).requests_per_s < requests_per_s
        low, high = (middle, high) if is_less else (low, middle)
    return mixed(engine, high, mean_prompt_tokens, mean_output_tokens)
