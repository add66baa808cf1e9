"""`naive`: the rate to come is the rate just seen."""

from autoscalers.arrivals import Arrivals
from autoscalers.forecaster import Expect, Forecaster, Outlook, Peak, highest


class Naive(Forecaster):
    """Expects the arrival rate of the last window: reactive scaling on demand, a cold start and a window behind."""

    def start(self, outlook: Outlook) -> Expect:
        """Returns what expects the rate of the last window; 0 before any traffic."""

        def peak(arrivals: Arrivals, now_s: float, end_s: float) -> Peak:
            if arrivals.is_empty:
                return Peak(0.0, "naive, no traffic seen yet")
            return highest([arrivals.rate_per_s(now_s - outlook.window_s, now_s)], "naive")

        return peak
