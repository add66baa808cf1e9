"""`seasonal_naive`: today will be as yesterday was."""

import math
from statistics import fmean

from pydantic import Field

from autoscalers.arrivals import Arrivals
from autoscalers.forecaster import Expect, Forecaster, Outlook, Peak
from autoscalers.naive import Naive


class SeasonalNaive(Forecaster):
    """Expects the rates of the same hours one season ago (or the mean over several seasons).

    It never expects less than the rate just seen: a day busier than the last is met as `naive` would meet it, and a
    falling load is followed one window late. Until a whole season has been seen it is `naive`, and says so.
    """

    num_seasons: int = Field(default=1, ge=1, description="Past seasons that are averaged.")

    def memory_s(self, outlook: Outlook) -> float:
        """All the seasons that it averages, and the window before them."""
        return self.num_seasons * outlook.season_s + outlook.window_s

    def start(self, outlook: Outlook) -> Expect:
        """Returns what expects the highest mean of past seasons, or the last window's rate if higher."""
        return _Seasons(self.num_seasons, outlook).peak


class _Seasons:
    """Past seasons of one pool."""

    def __init__(self, num_seasons: int, outlook: Outlook) -> None:
        self._num_seasons, self._outlook = num_seasons, outlook
        self._present = Naive().start(outlook)

    def peak(self, arrivals: Arrivals, now_s: float, end_s: float) -> Peak:
        present = self._present(arrivals, now_s, end_s)
        num_seen = self._num_seasons_seen(arrivals, now_s)
        if num_seen == 0:
            return Peak(present.rate_per_s, f"seasonal_naive, no full season seen yet: {present.reason}")
        past = max(self._past_rate(arrivals, start_s, num_seen) for start_s in self._starts_s(now_s, end_s))
        if present.rate_per_s > past:
            return Peak(present.rate_per_s, "seasonal_naive, busier than past seasons: naive")
        return Peak(past, f"seasonal_naive over {num_seen}")

    def _num_seasons_seen(self, arrivals: Arrivals, now_s: float) -> int:
        if arrivals.is_empty:
            return 0
        return min(self._num_seasons, math.floor((now_s - arrivals.first_s) / self._outlook.season_s))

    def _starts_s(self, now_s: float, end_s: float) -> list[float]:
        """Windows side by side, and one that begins an interval before the end: when what is asked for now is ready.

        Without the last, a window longer than the cold start would be a mean over the quiet before a rise and the rise.
        """
        window_s, last_s = self._outlook.window_s, max(now_s, end_s - self._outlook.interval_s)
        return [*(now_s + i * window_s for i in range(math.ceil((last_s - now_s) / window_s))), last_s]

    def _past_rate(self, arrivals: Arrivals, start_s: float, num_seasons: int) -> float:
        window_s, season_s = self._outlook.window_s, self._outlook.season_s
        lags_s = [season * season_s for season in range(1, num_seasons + 1)]
        return fmean(arrivals.rate_per_s(start_s - lag_s, start_s - lag_s + window_s) for lag_s in lags_s)
