"""Spread between nominally identical real runs: closed loops of one engine, the same prompts and concurrency, other answers."""

from collections.abc import Sequence
from dataclasses import fields
from itertools import combinations
from typing import NamedTuple

import numpy as np

from accuracy.measured.results import Served
from accuracy.repeated.simulated import Outcome

ALIKE = 0.1
"""Two runs count as repeats where their simulated TTFTs are as close: no answer is so long that requests wait for memory."""


class Repeats(NamedTuple):
    """Pairs of runs whose TTFT should be the same but for what a simulation says of their difference."""

    num_pairs: int
    difference: float  # mean of |ratio of real TTFTs / ratio of simulated ones - 1|

    @property
    def floor(self) -> float:
        """Mean error of a model that is right of the mean of many runs; two of them are the root of 2 further apart."""
        return self.difference / float(np.sqrt(2))


def repeats(results: Sequence[Served], outcomes: Sequence[Outcome]) -> Repeats:
    """Returns how far TTFT means of repeated closed loops are apart.

    Args:
        results: served results.
        outcomes: what came of each when simulated, in the same order.
    """
    found = []
    for (one, here), (other, there) in combinations(zip(results, outcomes, strict=True), 2):
        real, simulated = (
            np.log(a.value("ttft_s", "mean") / b.value("ttft_s", "mean"))
            for a, b in ((one.real, other.real), (here.measures, there.measures))
        )
        if are_alike(one, other) and abs(simulated) < ALIKE and np.isfinite(real):
            found.append(abs(np.expm1(abs(real - simulated))))
    return Repeats(len(found), float(np.mean(found)) if found else float("nan"))


MAY_DIFFER = ("name", "real", "num_output_tokens", "not_told")
"""What two runs need not have in common; everything else says which engine it was, or which load."""


def are_alike(one: Served, other: Served) -> bool:
    """Tells whether two results are closed loops of the same engine and the same prompts."""
    if not (one.is_at_once and one.max_concurrency) or one.requests is not None or other.requests is not None:
        return False
    names = [field.name for field in fields(Served) if field.name not in (*MAY_DIFFER, "lengths", "requests")]
    is_same = all(getattr(one, name) == getattr(other, name) for name in names)
    return is_same and one.lengths.get("prompt") == other.lengths.get("prompt")
