"""One engine step in closed form, by the engine's own step time: decodes, prefills, and the terms that make them up."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from replicas.step_time import step_time
from sim.checks import check_not_negative, check_whole
from sim.records import BATCH, records
from sim.step_terms import TERMS


def equal_requests(num_requests: int, new_tokens: int, cached_tokens: int, *, num_adapters: int = 0, num_masks: int = 0) -> Any:
    """Returns the BATCH record of a step of equal requests, each with `new_tokens` on top of `cached_tokens`.

    Args:
        num_requests: at least 1.
        new_tokens: of each, at least 1; 1 is a decode.
        cached_tokens: of each, whose KV is there already.
        num_adapters: distinct LoRA adapters among them.
        num_masks: requests with structured output.

    Raises:
        ValueError: a number is out of range.
    """
    check_whole("num_requests", num_requests)
    check_whole("new_tokens", new_tokens)
    check_whole("cached_tokens", cached_tokens, 0)
    batch = records(BATCH, 1)[0]
    batch.num_requests = num_requests
    batch.num_tokens = num_requests * new_tokens
    batch.attended_tokens = num_requests * new_tokens * (cached_tokens + new_tokens / 2)
    batch.kv_tokens = num_requests * (cached_tokens + new_tokens)
    batch.num_adapters, batch.num_masks = num_adapters, num_masks
    return batch


def decode_step_s(engine: Any, num_requests: int, context_tokens: float, *, num_adapters: int = 0) -> float:
    """Returns the seconds in which each of `num_requests` requests of `context_tokens` tokens gets its next token.

    Args:
        engine: one ENGINE record, from `Engine.engine`.
        num_requests: the batch.
        context_tokens: of each, the new token included; rounded to tokens.
        num_adapters: distinct LoRA adapters in the batch.

    Source: the step-time model of docs/sources.md [1].

    >>> from replicas.catalog import gpu, model
    >>> from replicas.surrogate import Surrogate
    >>> engine = Surrogate().engine(model("llama-3.1-8b"), gpu("h100-sxm"))[0]
    >>> [round(1000 * decode_step_s(engine, 64, 2048, num_adapters=n), 1) for n in (0, 64)]  # ms: an adapter costs bytes
    [9.9, 11.5]

    Raises:
        ValueError: a number is out of range.
    """
    return float(step_time(equal_requests(num_requests, 1, round(context_tokens) - 1, num_adapters=num_adapters), engine))


def prefill_s(engine: Any, prompt_tokens: float, cached_tokens: float = 0) -> float:
    """Returns the seconds of a step that reads one prompt whole, of which `cached_tokens` lie in the prefix cache.

    Each new token attends to the cached ones and to half the new ones. A prompt above max_num_batched_tokens takes several
    steps, which read the KV of the earlier ones again: that is left out, and below 1 % up to 100,000 tokens.

    Source: the step-time model of docs/sources.md [1].

    Raises:
        ValueError: a number is out of range, or nothing is left to compute.
    """
    new_tokens = round(prompt_tokens) - round(cached_tokens)
    return float(step_time(equal_requests(1, new_tokens, round(cached_tokens)), engine))


@dataclass(frozen=True)
class Terms:
    """The parts of one step, in seconds; the slower of the first two counts, then the others."""

    arithmetic_s: float
    memory_s: float
    links_s: float
    overhead_s: float
    cpu_s: float
    step_s: float

    @property
    def binding(self) -> str:
        """What a faster GPU would have to be faster at: arithmetic, memory, links, or the CPU."""
        parts = {"arithmetic": self.arithmetic_s, "memory": self.memory_s, "links": self.links_s, "cpu": self.cpu_s}
        return max(parts, key=lambda name: parts[name])


def terms(engine: Any, batch: Any) -> Terms:
    """Returns the terms of `batch`'s step time, each found by switching the others off in `step_time` itself."""
    gpu = {term.field: 0.0 for term in TERMS if term.is_cpu}
    roofs = {"flops_per_s": np.inf, "bytes_per_s": np.inf}
    links = {"comm_s": 0.0, "comm_s_per_token": 0.0}
    fixed = {"overhead_s": 0.0}

    def seconds(*off: dict[str, float]) -> float:
        bare = engine.copy()
        for fields in off:
            for name, value in fields.items():
                bare[name] = value
        return float(step_time(batch, bare))

    return Terms(
        arithmetic_s=seconds(gpu, links, fixed, {"bytes_per_s": np.inf}),
        memory_s=seconds(gpu, links, fixed, {"flops_per_s": np.inf}),
        links_s=seconds(gpu, fixed, roofs),
        overhead_s=seconds(gpu, links, roofs),
        cpu_s=seconds(links, fixed, roofs),
        step_s=seconds(),
    )


def mask_cpu_s(num_requests: int, s_per_mask: float = 40e-6, num_threads: int = 1) -> float:
    """Returns the CPU seconds of a step's grammar masks; they must fit within the GPU's step, or the step waits for them.

    Args:
        num_requests: requests with structured output in the step.
        s_per_mask: to fill one row; XGrammar reports below 40 us for JSON schemas.
        num_threads: that fill rows at the same time.

    Source: docs/sources.md [1], Structured output (Dong et al. 2024).

    >>> round(mask_cpu_s(64) * 1000, 1)
    2.6

    Raises:
        ValueError: a number is out of range.
    """
    check_whole("num_requests", num_requests, 0)
    check_not_negative("s_per_mask", s_per_mask)
    check_whole("num_threads", num_threads)
    return -(-num_requests // num_threads) * s_per_mask


def mask_bytes(num_requests: int, vocab: int) -> int:
    """Returns the bytes of a step's masks: one bit a token of the vocabulary, in whole 32-bit words.

    Source: docs/sources.md [1], Structured output.

    >>> mask_bytes(1, 128_256)  # 4,008 words
    16032

    Raises:
        ValueError: a number is out of range.
    """
    check_whole("num_requests", num_requests, 0)
    check_whole("vocab", vocab)
    return num_requests * -(-vocab // 32) * 4
