"""What a run comes to: summary.json and summary.parquet.

The window is that of `measure`, or the whole run. Latencies, attainment and goodput are of the requests that ARRIVED in
it; throughput and tokens are of the requests that FINISHED in it; GPU-hours and dollars are billed in it. So a numerator and
its denominator always belong to the same window.

Attainment's denominator is `judged`: the requests to which a target of their class applies, served or not. Where there is none
(no targets, targets on gaps between tokens alone, on TPOT alone of one-token answers), attainment and goodput are null.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.pages.figures import percent
from experiments.results.costs import Machine, cost, per_million
from experiments.results.counts import Counts, Scope
from experiments.results.request_table import RequestTable
from experiments.results.targets import targets_by_class, verdict
from sim.metrics import REQUEST_METRICS, between, itl_percentiles, ranks_among_served
from sim.percentiles import OrderStatistics
from sim.records import FINISHED, IN_FLIGHT, REASON_NAMES, STATUS_NAMES

PERCENTILES = ("p50", "p90", "p95", "p99", "p99.9")
MAX = "p100"
ALLOCATION = "all dollars of the window over that many tokens of the requests that finished in it"


class _Ask(NamedTuple):
    """One percentile of one scope, over its values and `num_missing` infinitely late ones."""

    metric: str
    scope: str
    percentile: str
    num_missing: int


@dataclass(frozen=True)
class Run:
    """Everything that a summary is made of, at the end of a run."""

    counts: Counts
    slo: Mapping[str, Any]
    start_s: float  # the window
    end_s: float
    ended_at_s: float  # the run, which may not have come as far as the window
    machines: Sequence[Machine]
    itl_counts: NDArray[np.int64]  # (num_pools, NUM_ITL_BINS)
    itl_sums: NDArray[np.float64]  # (num_pools, 3) sum, sum of squares, maximum
    warnings: Sequence[str] = ()
    never_sent: Sequence[int] = ()  # requests of the whole run, by class; none = 0 of each
    has_prefix_cache: bool = False
    ideal_cached_share: float = np.nan
    step_times: Mapping[str, str] = field(default_factory=dict)  # of each pool: bound, measured, or a calibration


def summarise(run: Run, table: RequestTable) -> dict[str, Any]:
    """Returns the summary as plain data, NaN where a value does not exist.

    Args:
        run: counts and machines.
        table: the closed requests.parquet, read again for exact percentiles.
    """
    scopes = run.counts.scopes()
    scope_of = {None: scopes[0]} | {scope.name: scope for scope in scopes if scope.kind == "class"}
    asked = [(scope_of[name], target) for name, target in targets_by_class(run.slo, run.counts.classes)]
    asks = [
        _Ask(metric, scope.key, percentile, 0)
        for scope in scopes
        for metric in REQUEST_METRICS
        for percentile in (*PERCENTILES, MAX)
    ]
    late = {
        (scope.key, target): _Ask(target.metric, scope.key, target.percentile, _population(run, scope, target.metric)[1])
        for scope, target in asked
        if target.metric in REQUEST_METRICS
    }
    found = _exact(run.counts, table, scopes, [*asks, *late.values()])
    parts = {scope.key: _scope(run, scope, found) for scope in scopes}
    rows = []
    for scope, target in asked:
        n, missing = _population(run, scope, target.metric)
        ask = late.get((scope.key, target))
        value_s = found[ask] if ask else _itl(run, scope, [target.percentile])[target.percentile]
        rows.append(verdict(target, scope.name, value_s, n, missing))
    window = {"start_s": run.start_s, "end_s": run.end_s, "duration_s": run.end_s - run.start_s}
    return {
        "window": window,
        "all": parts["all"],
        "classes": {scope.name: parts[scope.key] for scope in scopes if scope.kind == "class"},
        "pools": {scope.name: parts[scope.key] for scope in scopes if scope.kind == "pool"},
        "targets": rows,
        "ideal_cached_token_share": run.ideal_cached_share,
        "step_times": dict(run.step_times),
        "warnings": [*run.warnings, *_warnings(run, parts["all"])],
    }


def _population(run: Run, scope: Scope, metric: str) -> tuple[int, int]:
    """Requests that have this metric, and those that should and do not because they were not served."""
    if metric not in REQUEST_METRICS:
        return int(run.itl_counts[scope.pools].sum()), 0
    return run.counts.tallies[metric].moments(scope.cells)[0], int(run.counts.missing[metric][scope.cells].sum())


def _exact(counts: Counts, table: RequestTable, scopes: list[Scope], asks: list[_Ask]) -> dict[_Ask, float]:
    """Exact percentiles: NaN of nothing, inf where the rank falls among the infinitely late."""
    cells = np.stack([scope.cells for scope in scopes])
    order: dict[str, dict[str, list[int]]] = {metric: defaultdict(list) for metric in REQUEST_METRICS}
    found: dict[_Ask, float] = {}
    places = {}
    for ask in dict.fromkeys(asks):
        scope = next(scope for scope in scopes if scope.key == ask.scope)
        n = counts.tallies[ask.metric].moments(scope.cells)[0]
        if n + ask.num_missing == 0:
            found[ask] = np.nan
            continue
        ranks_at = ranks_among_served(n, ask.num_missing, float(ask.percentile[1:]))
        if ranks_at is None:
            found[ask] = np.inf
            continue
        ranks = order[ask.metric][ask.scope]
        places[ask] = len(ranks), ranks_at[2]
        ranks += ranks_at[:2]
    statistics = {
        metric: OrderStatistics(counts.tallies[metric], cells, [np.array(ranks[scope.key], dtype=np.int64) for scope in scopes])
        for metric, ranks in order.items()
    }
    _reread(counts, table, statistics)
    values = {metric: dict(zip([s.key for s in scopes], one.values, strict=True)) for metric, one in statistics.items()}
    for ask, (i, weight) in places.items():
        low_s, high_s = values[ask.metric][ask.scope][i : i + 2]
        found[ask] = float(between(low_s, high_s, weight))
    return found


def _reread(counts: Counts, table: RequestTable, statistics: dict[str, OrderStatistics]) -> None:
    while unfinished := {metric: one for metric, one in statistics.items() if not one.is_done}:
        for columns in table.read(["class", "pool", "arrived_at_s", *unfinished]):
            cells = counts.measured_cells(columns)
            for metric, one in unfinished.items():
                one.observe(columns[metric], cells)
        for one in unfinished.values():
            one.narrow()


def _scope(run: Run, scope: Scope, found: Mapping[_Ask, float]) -> dict[str, Any]:
    counts, duration_s = run.counts, run.end_s - run.start_s
    statuses = counts.statuses[scope.cells].sum(axis=0)
    reasons = counts.reasons[scope.cells].sum(axis=0)
    good, judged, arrived = int(counts.good[scope.cells].sum()), int(counts.judged[scope.cells].sum()), int(statuses.sum())
    num_finished, input_tokens, output_tokens, cached_tokens = (int(x) for x in counts.finished[scope.cells].sum(axis=0))
    per_s = 1 / duration_s if duration_s > 0 else np.nan
    return {
        "requests": {
            "arrived": arrived,
            **dict(zip(STATUS_NAMES, statuses.tolist(), strict=True)),
            "never_sent": _never_sent(run, scope),
            "reasons": {name: n for name, n in zip(REASON_NAMES, reasons.tolist(), strict=True) if name and n},
        },
        **{metric: _metric(run, scope, metric, found) for metric in REQUEST_METRICS},
        "itl_s": _itl(run, scope, PERCENTILES),
        "arrivals_per_s": arrived * per_s,
        "requests_per_s": num_finished * per_s,
        "input_tokens_per_s": input_tokens * per_s,
        "output_tokens_per_s": output_tokens * per_s,
        "judged": judged,
        "goodput_per_s": good * per_s if judged else np.nan,
        "attainment": good / judged if judged else np.nan,
        "cached_token_share": cached_tokens / input_tokens if input_tokens and run.has_prefix_cache else np.nan,
        "num_preemptions": int(counts.preemptions[scope.cells].sum()),
        "cost": _cost(run, scope, input_tokens, output_tokens) if scope.kind != "class" else None,
    }


def _never_sent(run: Run, scope: Scope) -> int | None:
    """Requests that never arrived, of a class or all; of no pool, as none got there.

    Their client still held them back when the run ended, or the request that they follow did not finish.
    """
    if scope.kind == "pool":
        return None
    names = run.counts.classes if scope.kind == "all" else [scope.name]
    return sum(int(n) for name, n in zip(run.counts.classes, run.never_sent, strict=False) if name in names)


def _metric(run: Run, scope: Scope, metric: str, found: Mapping[_Ask, float]) -> dict[str, Any]:
    n, mean, std = run.counts.tallies[metric].moments(scope.cells)
    values = {percentile: found[_Ask(metric, scope.key, percentile, 0)] for percentile in (*PERCENTILES, MAX)}
    max_s = values.pop(MAX)
    return {"n": n, "missing": _population(run, scope, metric)[1], "mean": mean, "std": std, **values, "max": max_s}


def _itl(run: Run, scope: Scope, wanted: Sequence[str]) -> dict[str, Any]:
    """Gaps between tokens, pooled over the tokens of the scope's pools (classes share engines, so they have none)."""
    bins = run.itl_counts[scope.pools].sum(axis=0)
    total, squares, _ = run.itl_sums[scope.pools].sum(axis=0)
    n, max_s = int(bins.sum()), run.itl_sums[scope.pools, 2].max(initial=0.0)
    mean = total / n if n else np.nan
    std = np.sqrt(max(squares / n - mean * mean, 0.0)) if n else np.nan
    values = itl_percentiles(bins, [float(percentile[1:]) for percentile in wanted], max_s)
    percentiles = dict(zip(wanted, values, strict=True))
    return {"n": n, "missing": 0, "mean": mean, "std": std, **percentiles, "max": max_s if n else np.nan}


def _cost(run: Run, scope: Scope, input_tokens: int, output_tokens: int) -> dict[str, Any]:
    names = {name for name, mine in zip(run.counts.pools, scope.pools, strict=True) if mine}
    gpu_hours, dollars = cost([m for m in run.machines if m["pool"] in names], run.start_s, run.end_s)
    return {
        "gpu_hours": gpu_hours,
        "dollars": dollars,
        "dollars_per_hour": dollars * 3600 / (run.end_s - run.start_s) if run.end_s > run.start_s else np.nan,
        "dollars_per_1m_input_tokens": per_million(dollars, input_tokens),
        "dollars_per_1m_output_tokens": per_million(dollars, output_tokens),
        "dollars_per_1m_total_tokens": per_million(dollars, input_tokens + output_tokens),
        "allocation": ALLOCATION,
    }


def _warnings(run: Run, whole: dict[str, Any]) -> list[str]:
    """What a reader of the percentiles has to know."""
    found = []
    requests = whole["requests"]
    if requests["never_sent"]:
        found.append(
            f"{requests['never_sent']:,} requests were never sent: the run ended while their client held them back, "
            "or the request that they follow did not finish; they are not among those that arrived, and in no other number"
        )
    if run.start_s >= run.ended_at_s:
        ended = f"the run ended at {run.ended_at_s:,.6g} s"
        found.append(f"nothing was measured: the window begins at {run.start_s:,.6g} s, and {ended}")
    elif not requests["arrived"]:
        found.append(f"no request arrived between {run.start_s:,.6g} and {run.end_s:,.6g} s, where requests are measured")
    unserved = {name: requests[name] for name in STATUS_NAMES if name != STATUS_NAMES[FINISHED] and requests[name]}
    if unserved:
        parts = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in unserved.items())
        found.append(
            f"{sum(unserved.values()):,} of {requests['arrived']:,} requests did not finish ({parts}): their latencies are "
            "missing from means and percentiles, which look better than they are; targets count them as never served"
        )
    if requests[STATUS_NAMES[IN_FLIGHT]]:
        found.append("the run ended with requests in flight; raise max_drain_s, or give the fleet more capacity")
    if run.ideal_cached_share > 0 and whole["cached_token_share"] == 0:
        found.append(
            f"the prefix caches found nothing, though requests share {percent(run.ideal_cached_share, 0)} of their prompts"
        )
    if requests["arrived"] and not whole["cost"]["gpu_hours"]:
        found.append("no replica was paid for in the window, so there is no cost to report")
    return found
