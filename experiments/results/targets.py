"""Targets of a class, and whether they were met, counting requests that were never served as infinitely late.

Whether one was met has three answers: true, false, and null where no request had the metric, so that it was not measurable.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
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
    ]


def targets_by_class(slo: Mapping[str, Any], classes: Sequence[str]) -> list[tuple[str | None, Target]]:
    """Returns every target with the class that it is about; None = all requests.

    Where classes have targets of their own, each class is judged by its own and all together by none, but for the gaps
    between tokens: classes share engines, so gaps are pooled over all of them.

    >>> slo = {"itl_s": {"p99": 0.1}, "ttft_s": {"p99": 1.0}, "classes": {"batch": {"ttft_s": {"p90": 30.0}}}}
    >>> [(name, target.metric, target.limit_s) for name, target in targets_by_class(slo, ["chat", "batch"])]
    [(None, 'itl_s', 0.1), ('chat', 'ttft_s', 1.0), ('batch', 'ttft_s', 30.0)]
    """
    if len(classes) == 1:
        return [(None, target) for target in targets(slo, classes[0])]
    own = slo.get("classes") or {}
    is_even = not any(own.values())
    together = [target for target in targets(slo) if is_even or target.metric == "itl_s"]
    by_class = [(name, target) for name in classes for target in targets(slo, name)]
    return [
        *((None, target) for target in together),
        *((name, one) for name, one in by_class if one.metric != "itl_s" or (own.get(name) or {}).get("itl_s")),
    ]


def all_met(met: Iterable[bool | None]) -> bool | None:
    """Whether several targets were met together: no as soon as one was missed, null while one was not measurable.

    >>> all_met([True, True]), all_met([True, None]), all_met([None, False]), all_met([])
    (True, None, False, None)
    """
    found = list(met)
    if False in found:
        return False
    return True if found and None not in found else None


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
