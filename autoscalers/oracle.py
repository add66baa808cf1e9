"""`oracle`: knows the traffic's expected rate, past and future."""

import math

from autoscalers.arrivals import Arrivals
from autoscalers.autoscaler import KnownRate
from autoscalers.forecaster import Forecaster, Peak, highest


class Oracle(Forecaster):
    """Expects what the traffic's own law says: the best any forecast of the rate can do, the bound to compare with.

    It knows rates, not requests: the scatter of single arrivals is as new to it as to any other.
    """

    is_oracle = True

    def __init__(
        self, window_s: float, interval_s: float, season_s: float, num_seasons: int, known_rate: KnownRate | None
    ) -> None:
        super().__init__(window_s, interval_s, season_s, num_seasons, known_rate)
        self._asked: dict[int, float] = {}  # by number of the window; each is asked for once, then forgotten

    def peak(self, arrivals: Arrivals, now_s: float, end_s: float) -> Peak:
        """Returns the highest known rate of the windows [k window_s, (k + 1) window_s] that touch [now_s, end_s]."""
        first = math.floor(now_s / self.window_s)
        past_last = max(first + 1, math.ceil(end_s / self.window_s))
        self._asked = {k: self._asked[k] if k in self._asked else self._ask(k) for k in range(first, past_last)}
        return highest(self._asked.values(), "oracle")

    def _ask(self, k: int) -> float:
        if self.known_rate is None:
            raise ValueError("the oracle was started without the traffic's rate")
        return self.known_rate(k * self.window_s, (k + 1) * self.window_s)
