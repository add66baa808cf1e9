"""Targets of a class, and whether they were met, counting requests that were never served as infinitely late."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from sim.metrics import REQUEST_METRICS


class Target(NamedTuple):
    """A percentile of a metric and the most it may be."""

    metric: str
    percentile: str  # "p99"
    limit_s: float

    @property
    def percent(self) -> float:
        """The percentile as a number.

        >>> Target("ttft_s", "p99.9", 1.0).percent
        99.9
        """
        return float(self.percentile[1:])


def targets(slo: Mapping[str, Any], class_name: str | None = None) -> list[Target]:
    """Returns the targets of a class: those of the top level, each metric replaced where the class gives its own.

    >>> slo = {"ttft_s": {"p99": 1.0}, "tpot_s": {"p90": 0.05}, "classes": {"batch": {"ttft_s": {"p90": 30.0}}}}
    >>> [tuple(target) for target in targets(slo, "batch")]
    [('ttft_s', 'p90', 30.0), ('tpot_s', 'p90', 0.05)]
    """
    own = (slo.get("classes") or {}).get(class_name) or {}
    merged = {**slo, **{metric: limits for metric, limits in own.items() if limits}}
    return [
        Target(metric, percentile, limit_s)
        for metric, limits in merged.items()
        if metric != "classes" and limits
        for percentile, limit_s in limits.items()
        if limit_s is not None
    ]


def request_limits_s(wanted: list[Target]) -> dict[str, float]:
    """Returns the limit that one request must keep for each metric: that of its highest percentile.

    Only metrics with one value a request: a target on ITL is judged on the pooled gaps alone.

    >>> request_limits_s([Target("ttft_s", "p50", 0.3), Target("ttft_s", "p99", 1.0)])
    {'ttft_s': 1.0}
    """
    ordered = sorted(wanted, key=lambda target: target.percent)
    return {target.metric: target.limit_s for target in ordered if target.metric in REQUEST_METRICS}


def verdict(target: Target, scope: str, value_s: float, n: int, missing: int) -> dict[str, Any]:
    """Returns the row of one target in the summary.

    Args:
        target: what was asked.
        scope: class, or "all".
        value_s: the percentile over n values and `missing` infinite ones; inf when it falls among those, NaN when
            there is neither.
        n: requests with a value (gaps, for ITL).
        missing: requests that should have one and were never served.
    """
    return {
        "scope": scope,
        "metric": target.metric,
        "percentile": target.percentile,
        "limit_s": target.limit_s,
        "value_s": value_s,
        "met": None if math.isnan(value_s) else value_s <= target.limit_s,
        "n": n,
        "missing": missing,
    }
