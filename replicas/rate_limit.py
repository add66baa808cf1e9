"""A rate limit in tokens, not requests: a class reserves what a request may take, and settles with what it took.

A bucket fills at a steady rate up to its capacity and starts full. A request reserves its prompt and the longest answer that
its client allows, because nobody knows how long it will be; when it ends, what it did not use comes back.
Source: `TokenBucketLimiter` of docs/sources.md [2], The gateway.
"""

from typing import Any

import numpy as np

from sim.compiled import verb
from sim.records import FAILED, FINISHED, TIMED_OUT


@verb
def level_at(bucket: Any, now_s: float) -> float:
    """Returns the tokens in `bucket` (a BUCKET record) at `now_s`, which never runs backwards."""
    level: float = min(bucket.capacity_tokens, bucket.level_tokens + (now_s - bucket.filled_at_s) * bucket.tokens_per_s)
    return level


@verb
def reserve(bucket: Any, num_tokens: int, now_s: float) -> None:
    """Takes tokens that are there."""
    bucket.level_tokens, bucket.filled_at_s = level_at(bucket, now_s) - num_tokens, now_s


@verb
def reconcile(bucket: Any, num_reserved: int, num_used: int, now_s: float) -> None:
    """Gives back what was reserved and not used, up to the capacity."""
    level = level_at(bucket, now_s) + (num_reserved - num_used)
    bucket.level_tokens, bucket.filled_at_s = min(bucket.capacity_tokens, level), now_s


@verb
def most_tokens(kind: Any, request: Any) -> int:
    """Returns the tokens that a request of this CLASS may take: its prompt, and what its client allows or asks for."""
    num_output_tokens = kind.max_tokens if kind.max_tokens > 0 else request.num_output_tokens
    num_tokens: int = request.num_prompt_tokens + num_output_tokens
    return num_tokens


@verb
def settle(kind: Any, request: Any, status: int, now_s: float) -> None:
    """Reconciles what a request that was let in has reserved, when it ends; one that no engine served has used nothing."""
    if kind.bucket.tokens_per_s > 0:
        was_served = status in (FINISHED, FAILED) or (status == TIMED_OUT and not np.isnan(request.scheduled_at_s))
        num_used = request.num_prompt_tokens + request.num_generated_tokens if was_served else 0
        reconcile(kind.bucket, most_tokens(kind, request), num_used, now_s)
