"""What every forecaster answers: the highest arrival rate to expect between two instants."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from autoscalers.arrivals import Arrivals
from autoscalers.autoscaler import KnownRate


class Peak(NamedTuple):
    """The highest expected arrival rate, per second (NaN = no forecast, hold the pool), and where it comes from."""

    rate_per_s: float
    reason: str


class Forecaster(ABC):
    """Expects rates from the past (or, an oracle, from the future). A new one fills in `peak`, nothing else.

    Args:
        window_s: Time over which a rate is averaged: a shorter one sees noise, a longer one rounds peaks off.
        interval_s: Time between two decisions, no longer than the window.
        season_s: Time after which traffic repeats.
        num_seasons: Past seasons to average.
        known_rate: The traffic's expected rate, for an oracle; else None.
    """

    is_oracle: ClassVar[bool] = False

    def __init__(
        self, window_s: float, interval_s: float, season_s: float, num_seasons: int, known_rate: KnownRate | None
    ) -> None:
        self.window_s = window_s
        self.interval_s = interval_s
        self.season_s = season_s
        self.num_seasons = num_seasons
        self.known_rate = known_rate

    @property
    def memory_s(self) -> float:
        """How far back it looks."""
        return self.window_s

    @abstractmethod
    def peak(self, arrivals: Arrivals, now_s: float, end_s: float) -> Peak:
        """Returns the highest rate, averaged over `window_s`, expected within [now_s, end_s].

        Every instant before `end_s` is covered by a window that begins no later than it and less than an interval earlier, or
        else begins at it: a mean that begins much earlier would hide what rises behind it.
        """


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
