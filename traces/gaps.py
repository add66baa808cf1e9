"""Gaps between arrivals, in units of the mean gap: how bursty a process is, apart from how fast."""

import numpy as np

from traces.rates import Floats


class UnitRenewal:
    """A renewal process of rate one: gaps of mean one and a given coefficient of variation.

    cv 1 is a Poisson process; larger is burstier (gamma gaps; vLLM's `burstiness` is 1/cv^2); 0 is evenly spaced,
    the first arrival at 0. Otherwise the first gap is that of a process which has been running for ever, so that
    n arrivals are expected in any n units of time, from the first on.

    Source: Cox (1962), Renewal Theory, ch. 5: a residual is a uniform share of a gap drawn in proportion to its length;
    for a gamma law of shape k such a gap is gamma of shape k + 1.
    """

    def __init__(self, cv: float, random: np.random.Generator) -> None:
        self._cv, self._random = cv, random
        self._last: float | None = None

    def ticks(self, num_ticks: int) -> Floats:
        """Returns the next `num_ticks` arrivals, sorted. Calls add up to the same sequence however it is split."""
        if self._cv == 0:
            first = 0.0 if self._last is None else self._last + 1
            ticks = first + np.arange(num_ticks, dtype=np.float64)
        else:
            ticks = np.empty(num_ticks)
            num_drawn = 0
            if self._last is None:
                ticks[0], num_drawn = self._first_gap(), 1
            ticks[num_drawn:] = self._gaps(num_ticks - num_drawn)
            # The sum so far joins the first gap, not the running sum: the same additions in the same order.
            ticks[0] += self._last or 0.0
            np.cumsum(ticks, out=ticks)
        self._last = float(ticks[-1])
        return ticks

    def _gaps(self, num_gaps: int) -> Floats:
        if self._cv == 1:
            return self._random.standard_exponential(num_gaps)
        shape = self._cv**-2
        return self._random.standard_gamma(shape, num_gaps) / shape

    def _first_gap(self) -> float:
        shape = self._cv**-2
        return float(self._random.random() * self._random.standard_gamma(shape + 1) / shape)


class FixedCount:
    """The Poisson process of rate one, given how many come: the last of n arrivals just before a given end.

    Both inference-perf's `constant` load and `vllm bench serve` draw n exponential gaps and stretch them so that they add up to
    the duration.
    """

    def __init__(self, end: float, random: np.random.Generator) -> None:
        ticks = np.cumsum(random.standard_exponential(round(end)))
        last = np.nextafter(end, 0.0)
        self._ticks = np.minimum(ticks * (last / ticks[-1:]), last)  # the product may be a rounding more, and so be lost
        self._num_taken = 0

    def ticks(self, num_ticks: int) -> Floats:
        """Returns the next `num_ticks` arrivals, sorted; fewer where they end."""
        first = self._num_taken
        self._num_taken = min(first + num_ticks, len(self._ticks))
        return self._ticks[first : self._num_taken]
