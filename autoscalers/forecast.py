"""`forecast`: enough replicas for the demand that is coming, asked for one cold start ahead."""

import math
from typing import Annotated, Self

from pydantic import Field, model_validator

from autoscalers.arrivals import Arrivals
from autoscalers.autoscaler import Autoscaler, KnownRate
from autoscalers.forecaster import Forecaster, Outlook
from autoscalers.limits import Policy, Wanted
from autoscalers.naive import Naive
from autoscalers.oracle import Oracle
from autoscalers.seasonal_naive import SeasonalNaive
from autoscalers.sizing import NO_CAPACITY, replicas_for
from sim.kinds import KindOf
from sim.views import PoolView

FORECASTERS: dict[str, type[Forecaster]] = {
    "naive": Naive,
    "seasonal_naive": SeasonalNaive,
    "oracle": Oracle,
}


class Forecast(Autoscaler):
    """Sizes the pool for the highest arrival rate expected until what is decided at the next tick can be ready.

    A replica asked for now is ready one cold start from now, and the next chance to ask is one interval away: looking
    ahead by their sum, with the right rates, is never behind. Demand is arrivals, not completions: a pool that is too
    small completes what it can and looks well.

        wanted = ceil(highest rate in [now, now + horizon] / target_utilization / replica_requests_per_s)
    """

    forecaster: Annotated[Forecaster, KindOf("forecaster", FORECASTERS, Forecaster, takes_word=True)] = Field(
        default="seasonal_naive", validate_default=True, description="Where the expected rate comes from."
    )
    horizon_s: float | None = Field(
        default=None, gt=0, description="How far to look ahead; null = one cold start and one interval."
    )
    target_utilization: float = Field(
        default=0.8, gt=0, le=1, description="Share of the capacity, 0 to 1, that the expected demand should fill."
    )
    replica_requests_per_s: float | None = Field(
        default=None,
        gt=0,
        description="Requests per second that one replica sustains within the targets; null = the pool's figure.",
    )
    rate_window_s: float = Field(
        default=60.0,
        gt=0,
        description="Time over which arrival rates are measured, one interval at least; whatever its length, what is asked for "
        "is ready in time for a whole window. The oracle's rates have no noise: it looks at single intervals.",
    )
    season_s: float = Field(default=86400.0, gt=0, description="Time after which traffic repeats: a day, or a week.")
    clear_backlog_s: float | None = Field(
        default=None,
        gt=0,
        description="Adds the capacity that serves the waiting requests within this time; null = none. Kept as it is "
        "while replicas are starting: their queue is the cold start's, not the forecast's error.",
    )

    @model_validator(mode="after")
    def _check_season(self) -> Self:
        if self.horizon_s is not None and self.horizon_s > self.season_s:
            raise ValueError(f"horizon_s {self.horizon_s:g} looks further ahead than season_s {self.season_s:g}")
        return self

    @property
    def is_oracle(self) -> bool:
        """True with the forecaster `oracle`."""
        return self.forecaster.is_oracle

    def policy(self, known_rate: KnownRate | None, seed: int) -> Policy:
        """Returns a policy that remembers the arrivals its forecaster looks back to."""
        window_s = self.interval_s if self.is_oracle else max(self.rate_window_s, self.interval_s)
        return _Demand(self, Outlook(window_s, self.interval_s, self.season_s, known_rate)).wanted


class _Demand:
    """One pool's past arrivals, and the demand that they lead a forecaster to expect."""

    def __init__(self, options: Forecast, outlook: Outlook) -> None:
        self._options = options
        self._expect = options.forecaster.start(outlook)
        self._arrivals = Arrivals(options.forecaster.memory_s(outlook))
        self._catch_up_per_s = 0.0

    def wanted(self, view: PoolView) -> Wanted:
        """Takes in what has arrived and returns the replicas for the peak expected within the horizon."""
        options = self._options
        self._arrivals.observe(view.scraped_at_s, view.num_arrived)
        horizon_s = options.horizon_s or view.cold_start_s + options.interval_s
        peak = self._expect(self._arrivals, view.scraped_at_s, view.now_s + horizon_s)
        demand_per_s = peak.rate_per_s + self._catch_up(view)
        if math.isnan(demand_per_s):
            return Wanted(math.nan, peak.reason)
        each_per_s = options.replica_requests_per_s or view.replica_requests_per_s
        if each_per_s is None:
            return NO_CAPACITY
        number = replicas_for(demand_per_s, options.target_utilization * each_per_s)
        load = f"{demand_per_s:.4g} requests/s / ({options.target_utilization:g} x {each_per_s:.4g}) = {number}"
        return Wanted(number, f"forecast: {peak.reason}: {load}")

    def _catch_up(self, view: PoolView) -> float:
        if self._options.clear_backlog_s is not None and view.num_starting == 0:
            self._catch_up_per_s = view.num_waiting / self._options.clear_backlog_s
        return self._catch_up_per_s
