"""Dollars per token with the rule that allots them named, and the utilisation at which a fleet of one's own beats an API."""

import math
from dataclasses import dataclass

from sim.checks import check_not_negative, check_positive, check_share


@dataclass(frozen=True)
class TokenCost:
    """Dollars per million tokens, and by which rule they were allotted."""

    rule: str
    per_million: float  # input and output tokens together
    per_million_input: float
    per_million_output: float


def dollars_per_million(num_gpus: float, price_per_gpu_hour: float, tokens_per_s: float) -> float:
    """Returns what a million tokens cost a fleet that makes `tokens_per_s` of them.

    >>> round(dollars_per_million(112, 2.0, 200 * 2400), 4)
    0.1296

    Raises:
        ValueError: a number is out of range.
    """
    check_not_negative("num_gpus", num_gpus)
    check_not_negative("price_per_gpu_hour", price_per_gpu_hour)
    check_positive("tokens_per_s", tokens_per_s)
    return num_gpus * price_per_gpu_hour / 3600 / tokens_per_s * 1e6


def token_cost(
    prefill_gpus: float, decode_gpus: float, price_per_gpu_hour: float, input_per_s: float, output_per_s: float
) -> TokenCost:
    """Returns the costs of a fleet whose GPUs are known by phase: prefill's go to the input tokens, decode's to the output's.

    The first token of an answer is prefill's work and counts as output: below 1 % from a hundred output tokens on. Answers of
    one token have no decode GPUs, and cost nothing by this rule.
    """
    return TokenCost(
        "prefill GPUs to input tokens, decode GPUs to output tokens",
        dollars_per_million(prefill_gpus + decode_gpus, price_per_gpu_hour, input_per_s + output_per_s),
        dollars_per_million(prefill_gpus, price_per_gpu_hour, input_per_s),
        dollars_per_million(decode_gpus, price_per_gpu_hour, output_per_s),
    )


def blended_price(input_per_million: float, output_per_million: float, prompt_tokens: float, output_tokens: float) -> float:
    """Returns an API's dollars per million tokens, input and output together, for requests of these lengths.

    >>> round(blended_price(0.10, 0.60, 2000, 400), 4)
    0.1833

    Raises:
        ValueError: a number is out of range.
    """
    check_not_negative("input_per_million", input_per_million)
    check_not_negative("output_per_million", output_per_million)
    check_positive("prompt_tokens", prompt_tokens)
    check_positive("output_tokens", output_tokens)
    dollars = input_per_million * prompt_tokens + output_per_million * output_tokens
    return dollars / (prompt_tokens + output_tokens)


def break_even_utilization(full_cost: float, api_price: float) -> float:
    """Returns the utilisation above which the fleet is cheaper than the API; above 1, it never is.

    A fleet costs the same whatever it serves, so at utilisation u its tokens cost full_cost / u, which is below the API's
    price for u > full_cost / api_price.

    Args:
        full_cost: dollars per million tokens when the fleet works to capacity.
        api_price: dollars per million of the same tokens.

    Source: docs/sources.md [1], Self-hosting against an API.

    >>> break_even_utilization(0.1, 0.4)
    0.25

    Raises:
        ValueError: a number is not positive.
    """
    check_positive("full_cost", full_cost)
    check_positive("api_price", api_price)
    return full_cost / api_price


def mean_utilization(mean_per_s: float, peak_per_s: float, max_utilization: float) -> float:
    """Returns how much of a fleet is used that was sized for the peak and never scaled down.

    Source: docs/sources.md [1], Self-hosting against an API.

    >>> mean_utilization(120, 200, 0.8)
    0.48

    Raises:
        ValueError: a number is out of range, or the mean is above the peak.
    """
    check_positive("mean_per_s", mean_per_s)
    check_positive("peak_per_s", peak_per_s)
    check_share("max_utilization", max_utilization)
    if mean_per_s > peak_per_s * (1 + 1e-9):
        raise ValueError(f"mean_per_s {mean_per_s:g} is above peak_per_s {peak_per_s:g}")
    return mean_per_s / peak_per_s * max_utilization


def cosine_day_mean(peak_per_s: float, trough_per_s: float) -> float:
    """Returns the mean of a day that goes from trough to peak and back as a cosine: half-way between them.

    >>> cosine_day_mean(200, 40)
    120.0
    """
    check_positive("peak_per_s", peak_per_s)
    check_not_negative("trough_per_s", trough_per_s)
    return math.fsum((peak_per_s, trough_per_s)) / 2
