"""Traffic made from a law: a rate over time, the burstiness of the gaps, and the lengths."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from sim.limits import MAX_REQUESTS, MAX_RUN_S
from sim.randomness import stream
from sim.records import ARRIVAL
from traces.drawn import Drawn
from traces.gaps import FixedCount, UnitRenewal
from traces.rates import Rate
from traces.rescaling import Rescaling
from traces.segments import Segments
from traces.traffic import Arrivals


class Generated(Drawn):
    """A unit-rate renewal process pulled back through the expected count of a rate; each kind names both.

    Exact for any rate: no bins, no thinning, no drift. Sub-streams of the seed, besides those of the requests: arrivals; noise
    where a kind has it.
    """

    duration_s: float = Field(gt=0, le=MAX_RUN_S, description="Traffic stops after this long, in seconds.")
    rate_scale: float = Field(default=1.0, gt=0, description="Multiplies every rate.")

    @model_validator(mode="after")
    def _can_be_counted(self) -> Self:
        with np.errstate(all="ignore"):  # rates that are infinite together are refused below, in words
            num_expected = self.mean_rate_per_s(0.0, self.duration_s) * self.duration_s
        if self.limit is None and not num_expected <= MAX_REQUESTS:
            raise ValueError(
                f"{num_expected:,.6g} requests are expected, and a run has at most {MAX_REQUESTS:,}; lower the rate or "
                "duration_s, or give `limit`"
            )
        return self

    @abstractmethod
    def rate(self, seed: int | None) -> Rate:
        """Returns the rate that this seed draws from; None: the expected rate, before any noise."""

    @abstractmethod
    def gap_cv(self) -> float:
        """Coefficient of variation of the gaps, once the rate is made even: 1 is a Poisson process."""

    def process(self, num_expected: float, random: np.random.Generator) -> UnitRenewal | FixedCount:
        """Returns the process of rate one whose first `num_expected` units of time are pulled back."""
        return UnitRenewal(self.gap_cv(), random)

    def arrivals(self, seed: int, counts: Counter[str], segments: Segments, chunk_rows: int) -> Iterator[Arrivals]:
        """Yields the arrivals of this seed in chunks."""
        rescaling = Rescaling(self.rate(seed), self.duration_s)
        renewal = self.process(rescaling.total, stream(seed, "arrivals"))
        draw = self.drawing(seed, segments, counts)
        latest_s = 0.0
        while True:
            room = chunk_rows if self.limit is None else min(chunk_rows, self.limit - counts["read"])
            ticks = renewal.ticks(room)
            num_rows = int(np.searchsorted(ticks, rescaling.total))
            rows = np.zeros(num_rows, ARRIVAL)
            # Instants closer than their rounding may come out in the wrong order; the later one gives way.
            at_s = np.maximum.accumulate(np.concatenate([[latest_s], rescaling.instants(ticks[:num_rows])]))
            latest_s = float(at_s[-1])
            rows["arrived_at_s"] = at_s[1:]
            draw(rows)
            counts["read"] += num_rows
            yield rows
            if num_rows < room or counts["read"] == self.limit:
                return

    def mean_rate_per_s(self, start_s: float, end_s: float) -> float:
        """Returns the expected mean rate over [start_s, end_s), exactly; noise has mean one and is left out.

        Nothing arrives before 0 or after the duration.
        """
        instants_s = np.clip(np.array([start_s, end_s]), 0.0, self.duration_s)
        first, last = self._expected_rate.expected(instants_s)
        if end_s <= start_s:
            return float(self._expected_rate.per_s(instants_s)[0]) if 0 <= start_s < self.duration_s else 0.0
        return float((last - first) / (end_s - start_s))

    @cached_property
    def _expected_rate(self) -> Rate:
        return self.rate(None)

    @property
    def ends_at_s(self) -> float:
        """The instant after which nothing arrives; `limit` can end it earlier."""
        return self.duration_s
