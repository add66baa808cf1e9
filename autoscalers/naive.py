"""`naive`: the rate to come is the rate just seen."""

from autoscalers.arrivals import Arrivals
from autoscalers.forecaster import Forecaster, Peak, highest


class Naive(Forecaster):
    """Expects the arrival rate of the last window: reactive scaling on demand, a cold start and a window behind."""

    def peak(self, arrivals: Arrivals, now_s: float, end_s: float) -> Peak:
        """Returns the rate of the last `window_s`; 0 before any traffic."""
        if arrivals.is_empty:
            return Peak(0.0, "naive, no traffic seen yet")
        return highest([arrivals.rate_per_s(now_s - self.window_s, now_s)], "naive")
