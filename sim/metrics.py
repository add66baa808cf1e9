"""What is measured, defined once: TTFT, TPOT, ITL, E2E, queue time, and which requests meet the targets.

Functions of REQUEST records (`sim.records.REQUEST`): arrays in, arrays out, in seconds. A value that does not exist is
NaN and becomes null in results; it is never 0 and never part of a mean, a percentile or a count.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.compiled import verb
from sim.records import FINISHED

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def ttft_s(requests: Any) -> Floats:
    """Time to first token, from arrival, queueing included; absent for requests that never got a token.

    A request that got its first token and failed later keeps its TTFT: the user did see it.
    """
    return np.asarray(requests["first_token_at_s"] - requests["arrived_at_s"])


def e2e_s(requests: Any) -> Floats:
    """End to end: last token minus arrival, every wait and preemption included; absent unless the request finished."""
    elapsed_s = requests["finished_at_s"] - requests["arrived_at_s"]
    return np.where(requests["status"] == FINISHED, elapsed_s, np.nan)


def tpot_s(requests: Any) -> Floats:
    """Time per output token after the first: (E2E - TTFT) / (output tokens - 1), one value a request.

    Absent for one-token outputs, which have no gap, and for requests that did not finish.
    """
    gaps = requests["num_generated_tokens"] - 1
    has_gaps = (requests["status"] == FINISHED) & (gaps > 0)
    decode_s = requests["finished_at_s"] - requests["first_token_at_s"]
    return np.where(has_gaps, decode_s / np.maximum(gaps, 1), np.nan)


def queue_s(requests: Any) -> Floats:
    """Wait until an engine first scheduled the request, from arrival; absent for requests never scheduled."""
    return np.asarray(requests["scheduled_at_s"] - requests["arrived_at_s"])


REQUEST_METRICS: dict[str, Callable[[Any], Floats]] = {
    "ttft_s": ttft_s,
    "tpot_s": tpot_s,
    "e2e_s": e2e_s,
    "queue_s": queue_s,
}
"""The metrics with one value a request. ITL is not here: it is pooled over tokens (`itl_bin`)."""


def has_metric(metric: str, num_answer_tokens: NDArray[np.int64]) -> Bools:
    """Which requests have this metric once they are served in full: TPOT takes two tokens, the others every answer has.

    >>> has_metric("tpot_s", np.array([1, 2])).tolist(), has_metric("ttft_s", np.array([1, 2])).tolist()
    ([False, True], [True, True])
    """
    return np.asarray(num_answer_tokens > (1 if metric == "tpot_s" else 0))


def judged(num_answer_tokens: NDArray[np.int64], limits_s: Mapping[str, float]) -> Bools:
    """Which requests some limit applies to: the denominator of attainment.

    Served or not: one that was shed, failed or timed out is judged by what it should have had. A request without limits,
    or with limits on metrics alone that it cannot have, is neither good nor bad.

    Args:
        num_answer_tokens: (n,) tokens of the whole answer, delivered or not.
        limits_s: metric name -> limit.

    >>> judged(np.array([1, 2]), {"tpot_s": 0.05}).tolist(), judged(np.array([1, 2]), {}).tolist()
    ([False, True], [False, False])
    """
    found = np.zeros(num_answer_tokens.size, dtype=np.bool_)
    for metric in limits_s:
        found |= has_metric(metric, num_answer_tokens)
    return found


def meets(values: Mapping[str, Floats], status: NDArray[np.int64], limits_s: Mapping[str, float]) -> Bools:
    """Which requests meet every limit that applies to them, and at least one: the numerator of attainment and goodput.

    A request must have finished, so a shed, failed, timed-out or unfinished one never counts; a metric that a finished
    request does not have (the TPOT of a one-token output) can be neither met nor missed.

    Args:
        values: metric name -> (n,) seconds, NaN when absent.
        status: (n,) REQUEST.status.
        limits_s: metric name -> limit, inclusive.

    >>> values = {"ttft_s": np.array([0.5, 1.0, 2.0, 0.5]), "tpot_s": np.array([np.nan, 0.05, 0.01, 0.01])}
    >>> meets(values, np.array([1, 1, 1, 2]), {"ttft_s": 1.0, "tpot_s": 0.05}).tolist()
    [True, True, False, False]
    >>> meets(values, np.array([1, 1, 1, 2]), {"tpot_s": 0.05}).tolist()
    [False, True, True, False]
    """
    is_met, is_missed = np.zeros((2, status.size), dtype=np.bool_)
    for metric, limit_s in limits_s.items():
        is_met |= values[metric] <= limit_s
        is_missed |= values[metric] > limit_s
    return (status == FINISHED) & is_met & ~is_missed


# ITL goes into bins cut from the bits of the float: exponent and 10 mantissa bits, so a bin is at most 0.1 % wide.
_SHIFT = 42
_FIRST = int(np.float64(2.0**-20).view(np.int64)) >> _SHIFT
NUM_ITL_BINS = 40 << 10
"""40 octaves, 2**-20 s (1 us) to 2**20 s (12 days), of 1024 bins each; the outermost bins take what lies beyond."""

ITL_EDGES_S: Floats = (np.arange(_FIRST, _FIRST + NUM_ITL_BINS + 1, dtype=np.int64) << _SHIFT).view(np.float64)
"""(NUM_ITL_BINS + 1,) bin b holds gaps in [edges[b], edges[b + 1])."""


@verb
def itl_bin(gap_s: float) -> Any:
    """Bin of an inter-token gap in seconds; add the number of requests that got a token to `itl_counts[pool, bin]`.

    >>> bool(ITL_EDGES_S[itl_bin(0.02)] <= 0.02 < ITL_EDGES_S[itl_bin(0.02) + 1])
    True
    """
    return min(max((np.float64(gap_s).view(np.int64) >> _SHIFT) - _FIRST, 0), NUM_ITL_BINS - 1)


_WIDE = 3
NUM_LATENCY_BINS = NUM_ITL_BINS >> _WIDE
"""Latencies of whole requests go into bins of eight bins of ITL each, at most 0.8 % wide: what autoscalers look at often."""


@verb
def latency_bin(seconds: float) -> Any:
    """Bin of a request's TTFT, TPOT or E2E in `fleet.latency_counts`.

    >>> bool(ITL_EDGES_S[8 * latency_bin(0.02)] <= 0.02 < ITL_EDGES_S[8 * (latency_bin(0.02) + 1)])
    True
    """
    return itl_bin(seconds) >> _WIDE


def latency_percentile(counts: NDArray[np.int64], percent: float) -> float:
    """A percentile of latencies in seconds, from their bins: within 0.5 % of the exact one; NaN when empty.

    Args:
        counts: (NUM_LATENCY_BINS,) requests per bin, or (NUM_ITL_BINS,) gaps per bin.
        percent: 0 to 100.
    """
    if counts.size == NUM_LATENCY_BINS:
        narrow = np.zeros(NUM_ITL_BINS, np.int64)
        narrow[1 << (_WIDE - 1) :: 1 << _WIDE] = counts  # each in the middle of its bin
        counts = narrow
    return float(itl_percentiles(counts, [percent])[0])


def percentile_ranks(n: int, percents: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """The two order statistics (0-based) that each percentile lies between, and the weight of the upper one.

    NumPy's default ('linear', type 7 of Hyndman & Fan 1996): rank p/100 * (n - 1). This is the one definition of a
    percentile in Daybreak.

    >>> [x.tolist() for x in percentile_ranks(4, [50.0, 100.0])]
    [[1, 3], [2, 3], [0.5, 0.0]]
    """
    ranks = np.asarray(percents, dtype=np.float64) / 100 * (n - 1)
    low = np.floor(ranks).astype(np.int64)
    return low, np.minimum(low + 1, n - 1), ranks - low


def between(low: ArrayLike, high: ArrayLike, weight: ArrayLike) -> Floats:
    """Value `weight` of the way from `low` to `high`, in NumPy's order of operations so that they agree to the bit."""
    low, high, weight = (np.asarray(x, dtype=np.float64) for x in (low, high, weight))
    gap: Floats = high - low
    return np.where(weight >= 0.5, high - gap * (1 - weight), low + gap * weight)


def percentiles(values: Floats, percents: ArrayLike) -> tuple[int, Floats]:
    """n and percentiles of the values that exist; NaN when there are none.

    >>> percentiles(np.array([np.nan, 20.0, 30.0]), [50])
    (2, array([25.]))
    """
    percents = np.asarray(percents, dtype=np.float64)
    ordered = np.sort(values[~np.isnan(values)])
    if ordered.size == 0:
        return 0, np.full(percents.shape, np.nan)
    low, high, weight = percentile_ranks(ordered.size, percents)
    return ordered.size, between(ordered[low], ordered[high], weight)


def ranks_among_served(n: int, num_missing: int, percent: float) -> tuple[int, int, float] | None:
    """`percentile_ranks` of `n` values and `num_missing` infinitely late ones behind them; None where it falls among those.

    At least one of the two is above 0.

    >>> ranks_among_served(98, 2, 90.0), ranks_among_served(98, 2, 99.0)
    ((89, 90, 0.10000000000000853), None)
    """
    ranks = percentile_ranks(n + num_missing, percent)
    low, high, weight = int(ranks[0]), int(ranks[1]), float(ranks[2])
    if weight == 0:  # an order statistic itself: the one above it does not matter
        high = low
    return (low, high, weight) if high < n else None


def percentile_of_all(values: Floats, num_missing: int, percent: float) -> float:
    """A percentile over the values that exist and `num_missing` infinitely late ones; NaN of nothing, inf among those.

    >>> percentile_of_all(np.array([2.0, 1.0]), 1, 50.0), percentile_of_all(np.array([2.0, 1.0]), 1, 51.0)
    (2.0, inf)
    """
    present = values[~np.isnan(values)]
    if present.size + num_missing == 0:
        return np.nan
    ranks = ranks_among_served(present.size, num_missing, percent)
    if ranks is None:
        return np.inf
    low, high, weight = ranks
    ordered = np.partition(present, sorted({low, high}))
    return float(between(ordered[low], ordered[high], weight))


def itl_percentiles(counts: NDArray[np.int64], percents: ArrayLike, max_s: float = np.inf) -> Floats:
    """Percentiles of inter-token gaps in seconds, from their bins: within 0.05 % of the exact ones; NaN when empty.

    Args:
        counts: (NUM_ITL_BINS,) gaps per bin.
        percents: 0 to 100.
        max_s: the largest gap, known exactly; nothing is reported above it.
    """
    percents = np.asarray(percents, dtype=np.float64)
    cumulated = np.cumsum(counts)
    n = int(cumulated[-1])
    if n == 0:
        return np.full(percents.shape, np.nan)
    middle_s = np.minimum((ITL_EDGES_S[:-1] + ITL_EDGES_S[1:]) / 2, max_s)
    low, high, weight = percentile_ranks(n, percents)
    below_s, above_s = (middle_s[np.searchsorted(cumulated, ranks, side="right")] for ranks in (low, high))
    return between(below_s, above_s, weight)
