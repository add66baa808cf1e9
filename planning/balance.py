"""An engine in balance below its capacity: the mean step at a rate of requests, where what starts equals what ends."""

from dataclasses import dataclass
from typing import Any

from replicas.capacity import balanced_batch
from replicas.step_time import step_time
from sim.checks import check_positive


@dataclass(frozen=True)
class Balance:
    """The mean step, if requests came as evenly as steps do."""

    step_s: float  # a decode's time per token
    batch: float  # requests in the engine, mean
    answer_s: float  # from the first token to the last


def balance(engine: Any, requests_per_s: float, mean_prompt_tokens: float, mean_output_tokens: float) -> Balance | None:
    """Returns the step time t at which requests_per_s x t requests start and end in a step; None above the capacity.

    The fixed point of t = step_time(prefill of x prompts beside x (O - 1) decodes) with x = requests_per_s t. It is unique, as
    t grows slower than x, and exists up to where arithmetic or memory is full. Little's law makes the batch of it. Means only:
    no idle time between requests, no clumps of prompts, so a lower bound of the time per token.

    Raises:
        ValueError: a number is not positive.

    Source: mean-field balance of a batch-service engine, as `replicas.capacity.capacity`.
    """
    check_positive("requests_per_s", requests_per_s)
    check_positive("mean_prompt_tokens", mean_prompt_tokens)
    check_positive("mean_output_tokens", mean_output_tokens)

    def seconds(finished_per_step: float) -> float:
        return float(step_time(balanced_batch(engine, finished_per_step, mean_prompt_tokens, mean_output_tokens), engine))

    most = min(engine.max_num_seqs / mean_output_tokens, engine.max_num_batched_tokens)
    low, high = 0.0, float(most)
    if high / seconds(high) < requests_per_s:
        return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if middle < requests_per_s * seconds(middle) else (low, middle)
    step_s = seconds(high)
    batch = requests_per_s * mean_output_tokens * step_s
    return Balance(step_s, batch, (mean_output_tokens - 1) * step_s)
