"""`oracle`: knows the traffic's expected rate, past and future."""

import math

from autoscalers.arrivals import Arrivals
from autoscalers.autoscaler import KnownRate
from autoscalers.forecaster import Expect, Forecaster, Outlook, Peak, highest


class Oracle(Forecaster):
    """Expects what the traffic's own law says: the best any forecast of the rate can do, the bound to compare with.

    It knows rates, not requests: the scatter of single arrivals is as new to it as to any other.
    """

    is_oracle = True

    def start(self, outlook: Outlook) -> Expect:
        """Returns what expects the highest known rate.

        Raises:
            ValueError: the traffic's rate was not told.
        """
        if outlook.known_rate is None:
            raise ValueError("the oracle was started without the traffic's rate")
        return _Known(outlook.window_s, outlook.known_rate).peak


class _Known:
    """The rates of windows [k window_s, (k + 1) window_s], each asked for once, then forgotten."""

    def __init__(self, window_s: float, known_rate: KnownRate) -> None:
        self._window_s, self._known_rate = window_s, known_rate
        self._asked: dict[int, float] = {}  # by number of the window

    def peak(self, arrivals: Arrivals, now_s: float, end_s: float) -> Peak:
        """Returns the highest rate of the windows that touch [now_s, end_s]."""
        first = math.floor(now_s / self._window_s)
        past_last = max(first + 1, math.ceil(end_s / self._window_s))
        self._asked = {k: self._asked[k] if k in self._asked else self._ask(k) for k in range(first, past_last)}
        return highest(self._asked.values(), "oracle")

    def _ask(self, k: int) -> float:
        return self._known_rate(k * self._window_s, (k + 1) * self._window_s)
