"""What the reader of a load generator's report returns, and what the readers share."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from accuracy.errors import Measures
from accuracy.measured.results import Sent

MOST_FAILED = 0.05
"""Of a report with a larger share of failed requests nobody knows what its engine was asked to do."""

CLOSE = 0.02
"""How near the mean of a law that is made of percentiles must be to the mean beside them."""

NUM_QUANTILES = 200

LENGTHS, PREFIXES, NUMBER, CHAT = "lengths", "prefixes", "num_requests", "chat"
"""Topics of which a report may say nothing; an index may, under the same names (of chat: the prompts' tokens)."""

AS_MEANS = "each request's lengths are not in the report: all are taken to be as long as the mean"
SPREAD = (
    "lengths differ from request to request and only their means are in the report: all are taken to be as long as the mean, "
    "which makes simulated times too short, the tail of TTFT most"
)
NO_PREFIXES = "whether prompts begin alike is not in the report: taken as all different"


class Report(NamedTuple):
    """One report of one load."""

    sent: Sent
    real: Measures  # without TPOT: what follows from the means of TTFT and E2E
    mean_output_tokens: float
    engine: str | None = None  # as the report names it; None = it does not
    said: Mapping[str, Any] = {}  # what it says of the engine, by the names of an index
    is_chat: bool = False  # prompts are rendered by a chat template, whose tokens it does not count
    name: str | None = None  # of the result; None = put together from what is known of the engine and the load


def in_seconds(metric: str, values: Mapping[str, float | None], units_per_s: float) -> dict[tuple[str, str], float]:
    """Returns (metric, statistic) -> seconds of what is there; 0, which tools write where there is no value, is not."""
    return {(metric, name): value / units_per_s for name, value in values.items() if value and np.isfinite(value)}


def law_of(points: Iterable[tuple[float, float]], mean: float) -> dict[str, Any] | None:
    """Returns the law of lengths with these quantiles; None where they do not tell it.

    Args:
        points: share of the requests, and the length that they do not exceed.
        mean: of all lengths; the law must have it too.
    """
    ranks, tokens = np.array(sorted(points), np.float64).reshape(-1, 2).T
    if not len(ranks):
        return None
    if np.ptp(tokens) == 0:
        return {"kind": "fixed", "tokens": max(1, round(mean))} if abs(tokens[0] - mean) < 1 else None
    at = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
    values = np.maximum(1, np.rint(np.interp(at, ranks, tokens))).astype(int)
    is_it = ranks[0] <= CLOSE and ranks[-1] >= 1 - CLOSE and abs(values.mean() / mean - 1) <= CLOSE
    return {"kind": "empirical", "values": values.tolist()} if is_it else None


def untold_lengths(totals: Iterable[float], num: int) -> str:
    """Returns what to say of lengths of which only the totals over so many requests are known."""
    return AS_MEANS if all(total % num == 0 for total in totals) else SPREAD


def failures(num_sent: int, num_failed: int) -> tuple[dict[str, str], str]:
    """Returns what a report does not say of requests that failed, and why it cannot be simulated if there are many."""
    if not num_failed:
        return {}, ""
    if num_failed > MOST_FAILED * num_sent:
        return {}, "more than one request in twenty failed, and what they asked of the engine is not known"
    return {"failed": "requests failed; they are not in its figures, and are not sent"}, ""
