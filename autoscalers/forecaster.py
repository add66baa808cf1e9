"""What a forecaster is: options in, and out of them what expects the highest arrival rate between two instants."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple

from autoscalers.arrivals import Arrivals
from autoscalers.autoscaler import KnownRate
from sim.params import Params


class Peak(NamedTuple):
    """The highest expected arrival rate, per second (NaN = no forecast, hold the pool), and where it comes from."""

    rate_per_s: float
    reason: str


class Outlook(NamedTuple):
    """What a forecaster is told of the pool it works for."""

    window_s: float
    """Time over which a rate is averaged: a shorter one sees noise, a longer one rounds peaks off."""
    interval_s: float
    """Time between two decisions, no longer than the window."""
    season_s: float
    """Time after which traffic repeats."""
    known_rate: KnownRate | None
    """The traffic's expected rate, for an oracle; else None."""


Expect = Callable[[Arrivals, float, float], Peak]
"""(arrivals, now_s, end_s) -> the highest rate, averaged over `window_s`, expected within [now_s, end_s].

Every instant before `end_s` is covered by a window that begins no later than it and less than an interval earlier, or else
begins at it: a mean that begins much earlier would hide what rises behind it. It may keep a memory, of bounded size.
"""


class Forecaster(Params):
    """Expects rates from the past (or, an oracle, from the future). A new one adds its options and `start`, nothing else.

    >>> class Twice(Forecaster):
    ...     def start(self, outlook):
    ...         return lambda arrivals, now_s, end_s: Peak(2 * arrivals.rate_per_s(now_s - outlook.window_s, now_s), "twice")
    """

    is_oracle: ClassVar[bool] = False

    def memory_s(self, outlook: Outlook) -> float:
        """Returns how far back it looks, in seconds."""
        return outlook.window_s

    @abstractmethod
    def start(self, outlook: Outlook) -> Expect:
        """Returns what forecasts for one pool in one run, with a fresh memory."""


def highest(rates_per_s: Iterable[float], reason: str) -> Peak:
    """Returns the highest of the rates; negative counts as 0, what is no number is dropped, and the reason says so.

    >>> highest([10.0, float("inf"), 12.0], "forecast")
    Peak(rate_per_s=12.0, reason='forecast, dropped 1 that is no number')
    >>> highest([-5.0], "forecast")
    Peak(rate_per_s=0.0, reason='forecast')
    """
    rates = list(rates_per_s)
    finite = [max(0.0, rate) for rate in rates if math.isfinite(rate)]
    if len(finite) < len(rates):
        reason += f", dropped {len(rates) - len(finite)} that is no number"
    return Peak(max(finite, default=math.nan), reason)
