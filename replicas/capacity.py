"""What one replica sustains, from its step time alone: the number that planners and autoscalers divide by."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from replicas.step_time import step_time
from sim.records import BATCH, records


@dataclass(frozen=True)
class Capacity:
    """A replica in balance: every step starts as many requests as it finishes."""

    requests_per_s: float
    batch: float  # requests in the engine, mean
    step_s: float
    inflight_tokens: float  # tokens whose KV is held, mean
    binding: str  # what keeps it from more: max_num_batched_tokens, max_num_seqs, kv_blocks or tpot
    is_within_tpot: bool  # False when even with one request in the engine a step is longer than the target


def capacity(engine: Any, mean_prompt_tokens: float, mean_output_tokens: float, tpot_s: float | None = None) -> Capacity:
    """Returns the most requests/s that one replica sustains for requests of these mean lengths.

    With x requests finished per step, x prefills run beside x (O - 1) decodes: the largest x that the token budget,
    max_num_seqs, the KV blocks and the TPOT target allow gives x / t(x) requests/s, where t is `step_time` itself. As t
    grows slower than x, more work per step is always more throughput. Means only: no queueing, no TTFT, no variance of
    lengths (long prompts attend more), so plan with a target utilisation below 1.

    Args:
        engine: one ENGINE record, or an array of one.
        mean_prompt_tokens: P, at least 1.
        mean_output_tokens: O, at least 1.
        tpot_s: longest step allowed, in seconds; None = no limit. One token a step: a step's length is the TPOT.

    Whatever the watermark and however small the cache, a request that fits runs alone.

    Raises:
        ValueError: the mean request alone is over the KV cache.

    Source: the plan of docs/sources.md [1] (Little's law over the step), with prefill and decode sharing steps as engines do.
    """
    engine = engine[0] if getattr(engine, "shape", ()) else engine
    held = mean_prompt_tokens + mean_output_tokens / 2
    usable = float(engine.num_usable_blocks * engine.block_size)
    if held - 0.5 > usable:  # the last token of an answer has no KV
        raise ValueError(f"a request of {held:.0f} tokens on average is over the KV cache of {usable:.0f} tokens")
    usable -= float(engine.watermark_blocks * engine.block_size)
    stages = max(1, engine.num_stages)  # each has a step of its own, with its part of the requests
    per_step = {
        "max_num_batched_tokens": engine.max_num_batched_tokens / (mean_prompt_tokens + mean_output_tokens - 1),
        "max_num_seqs": engine.max_num_seqs / stages / mean_output_tokens,
        "kv_blocks": max(1.0, usable / (held + engine.block_size / 2)) / stages / mean_output_tokens,  # the last is half full
    }
    binding = min(per_step, key=lambda name: per_step[name])
    finished = per_step[binding]

    def seconds(finished_per_step: float) -> float:
        batch = balanced_batch(engine, finished_per_step, mean_prompt_tokens, mean_output_tokens)
        return float(step_time(batch, engine))

    is_within = tpot_s is None or seconds(finished) <= tpot_s
    if tpot_s is not None and not is_within:
        binding = "tpot"
        alone = min(finished, 1 / mean_output_tokens)  # one request in the engine
        finished, is_within = _largest_within(seconds, tpot_s, alone, finished)
    step_s = seconds(finished)
    batch = finished * mean_output_tokens * stages
    return Capacity(float(finished / step_s * stages), float(batch), step_s, float(batch * held), binding, is_within)


def balanced_batch(engine: Any, finished_per_step: float, mean_prompt_tokens: float, mean_output_tokens: float) -> Any:
    """Returns the mean step as a BATCH record: x prompts' worth of prefill beside x (O - 1) decodes, rounded to tokens.

    A prompt longer than what the decodes leave of the budget is read in chunks, each of which reads those before it.
    """
    x, prompt, output = finished_per_step, mean_prompt_tokens, mean_output_tokens
    decodes = x * (output - 1)
    context = prompt + output / 2
    chunks = max(1.0, prompt / max(1.0, engine.max_num_batched_tokens - decodes))
    batch = records(BATCH, 1)[0]
    batch.num_decodes = round(decodes)
    batch.num_requests = round(decodes + max(1.0, x))
    batch.num_tokens = round(decodes + x * prompt)
    batch.attended_tokens = decodes * context + x * prompt * prompt / 2
    batch.kv_tokens = round(decodes * context + x * prompt * (chunks + 1) / 2)
    return batch


def _largest_within(seconds: Callable[[float], float], limit_s: float, low: float, high: float) -> tuple[float, bool]:
    """Returns the largest x in [low, high] with seconds(x) <= limit_s; (low, False) when there is none."""
    if seconds(low) > limit_s:
        return low, False
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if seconds(middle) <= limit_s else (low, middle)
    return low, True
