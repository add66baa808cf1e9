"""Whether a number of replicas is enough: every target met on every seed, and on average with the stated confidence."""

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from experiments.pages.figures import share
from experiments.settings.experiment import Targets
from planning.plans.trial import Ran


class Target(NamedTuple):
    """A share of the requests and the limit that it must keep."""

    metric: str  # ttft_s or tpot_s
    percentile: str  # p99
    limit_s: float

    @property
    def share(self) -> float:
        """The percentile as a share."""
        return float(self.percentile[1:]) / 100

    def is_missed_by(self, share: float) -> bool:
        """Whether a share of the requests is too small: 999 of 1,000 are enough for p99.9, however floats round.

        >>> Target("ttft_s", "p99.9", 1.0).is_missed_by(999 / 1000), Target("ttft_s", "p99", 1.0).is_missed_by(0.9899)
        (False, True)
        """
        return share < self.share - 1e-12

    def __str__(self) -> str:
        name = self.metric.removesuffix("_s").upper()
        return f"{name} {self.percentile} <= {self.limit_s:g} s"


def targets_of(slo: Targets) -> list[Target]:
    """Returns the targets that a trial can be judged by."""
    given = {"ttft_s": slo.ttft_s or {}, "tpot_s": slo.tpot_s or {}}
    return [Target(metric, name, limit) for metric, limits in given.items() for name, limit in limits.items()]


def share_within(ran: Ran, target: Target) -> float:
    """Returns the share of all requests that keep the target's limit; a one-token answer has no TPOT and is left out.

    Who was never served is in the count and keeps nothing. NaN where no request has such a value to keep.
    """
    values = ran.values(target.metric)
    return float(np.mean(values <= target.limit_s)) if len(values) else math.nan


@dataclass(frozen=True)
class Verdict:
    """The answer for one number of replicas."""

    is_enough: bool | None  # None where no target can be measured
    why: str
    num_seeds: int  # that it took
    shares: dict[Target, list[float]]  # within each target, by seed


def judged(runs: Callable[[int], Ran], seeds: Iterable[int], targets: list[Target], confidence: float) -> Verdict:
    """Tries one seed after the other and stops at the first that misses a target.

    Requests of one run depend on each other, seeds do not: so a target counts as met if the lower confidence bound of the mean
    share over the seeds (Student's t, one-sided) is at least the percentile, and no seed is below it. A target of which a seed
    has no sample is neither met nor missed, and the others decide.

    Args:
        runs: seed -> what became of its requests.
        seeds: at least two.
        targets: what to keep.
        confidence: such as 0.95.
    """
    shares: dict[Target, list[float]] = {target: [] for target in targets}
    count = 0
    for count, seed in enumerate(seeds, start=1):
        ran = runs(seed)
        for target in targets:
            shares[target].append(share_within(ran, target))
        missed = [target for target in targets if target.is_missed_by(shares[target][-1])]
        if missed:
            return Verdict(False, f"{missed[0]}: {share(shares[missed[0]][-1])} of seed {seed}", count, shares)
    sampled = {target: found for target, found in shares.items() if not any(map(math.isnan, found))}
    if not sampled:
        return Verdict(None, "no target can be measured: no request has a value for one", count, shares)
    for target, found in sampled.items():
        low = lower_bound(found, confidence)
        if target.is_missed_by(low):
            text = f"{share(statistics.mean(found))} on average, but {share(low)} at {confidence * 100:g} % confidence"
            return Verdict(False, f"{target}: {text}", count, shares)
    tightest = min(sampled, key=lambda target: statistics.mean(sampled[target]) - target.share)
    return Verdict(True, f"{tightest}: {share(statistics.mean(sampled[tightest]))}, the tightest", count, shares)


def lower_bound(values: list[float], confidence: float) -> float:
    """Returns the one-sided lower confidence bound of the mean of independent values, by Student's t.

    >>> round(lower_bound([0.99, 0.992, 0.994], 0.95), 4)  # 0.992 - 2.92 * 0.002 / sqrt(3)
    0.9886
    """
    quantile = float(stats.t.ppf(confidence, len(values) - 1))
    return statistics.mean(values) - quantile * statistics.stdev(values) / math.sqrt(len(values))
