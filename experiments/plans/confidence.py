"""Whether a number of replicas is enough: every target met on every seed, and on average with the stated confidence."""

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from experiments.plans.trial import Ran
from experiments.settings.experiment import Targets


class Target(NamedTuple):
    """A share of the requests and the limit that it must keep."""

    metric: str  # ttft_s or tpot_s
    percentile: str  # p99
    limit_s: float

    @property
    def share(self) -> float:
        """The percentile as a share."""
        return float(self.percentile[1:]) / 100

    def __str__(self) -> str:
        name = self.metric.removesuffix("_s").upper()
        return f"{name} {self.percentile} <= {self.limit_s:g} s"


def targets_of(slo: Targets) -> list[Target]:
    """Returns the targets that a trial can be judged by."""
    given = {"ttft_s": slo.ttft_s or {}, "tpot_s": slo.tpot_s or {}}
    return [Target(metric, name, limit) for metric, limits in given.items() for name, limit in limits.items()]


def share_within(ran: Ran, target: Target) -> float:
    """Returns the share of all requests that keep the target's limit; a one-token answer has no TPOT and is left out.

    Who was never served is in the count and keeps nothing.
    """
    values: Any = getattr(ran, target.metric)
    counted = ran.num_output_tokens > 1 if target.metric == "tpot_s" else np.ones(len(values), np.bool_)
    return float(np.mean(values[counted] <= target.limit_s)) if counted.any() else 1.0


@dataclass(frozen=True)
class Verdict:
    """The answer for one number of replicas."""

    is_enough: bool
    why: str
    num_seeds: int  # that it took
    shares: dict[Target, list[float]]  # within each target, by seed


def judged(runs: Callable[[int], Ran], seeds: Iterable[int], targets: list[Target], confidence: float) -> Verdict:
    """Tries one seed after the other and stops at the first that misses a target.

    Requests of one run depend on each other, seeds do not: so a target counts as met if the lower confidence bound of the mean
    share over the seeds (Student's t, one-sided) is at least the percentile, and no seed is below it.

    Args:
        runs: seed -> what became of its requests.
        seeds: at least two.
        targets: at least one.
        confidence: such as 0.95.
    """
    shares: dict[Target, list[float]] = {target: [] for target in targets}
    for count, seed in enumerate(seeds, start=1):
        ran = runs(seed)
        for target in targets:
            shares[target].append(share_within(ran, target))
        missed = [target for target in targets if shares[target][-1] < target.share]
        if missed:
            share = shares[missed[0]][-1]
            return Verdict(False, f"{missed[0]}: {share:.2%} of seed {seed}".replace("%", " %"), count, shares)
    for target, found in shares.items():
        low = lower_bound(found, confidence)
        if low < target.share:
            text = f"{target}: {statistics.mean(found):.2%} on average, but {low:.2%} at {confidence:.0%} confidence"
            return Verdict(False, text.replace("%", " %"), count, shares)
    tightest = min(targets, key=lambda target: statistics.mean(shares[target]) - target.share)
    text = f"{tightest}: {statistics.mean(shares[tightest]):.2%}, the tightest".replace("%", " %")
    return Verdict(True, text, count, shares)


def lower_bound(values: list[float], confidence: float) -> float:
    """Returns the one-sided lower confidence bound of the mean of independent values, by Student's t.

    >>> round(lower_bound([0.99, 0.992, 0.994], 0.95), 4)  # 0.992 - 2.92 * 0.002 / sqrt(3)
    0.9886
    """
    quantile = float(stats.t.ppf(confidence, len(values) - 1))
    return statistics.mean(values) - quantile * statistics.stdev(values) / math.sqrt(len(values))
