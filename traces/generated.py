"""Traffic made from a law: a rate over time, the burstiness of the gaps, and the lengths."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from sim.randomness import stream
from sim.records import ARRIVAL
from traces.gaps import UnitRenewal
from traces.lengths import Lengths, Mix, RequestClass
from traces.prefixes import PrefixChoice, Prefixes
from traces.rates import Rate
from traces.rescaling import Rescaling
from traces.segments import Segments
from traces.traffic import Arrivals, Traffic


class Generated(Traffic):
    """A unit-rate renewal process pulled back through the expected count of a rate; each kind names both.

    Exact for any rate: no bins, no thinning, no drift. Sub-streams of the seed: arrivals, classes, prompt_lengths,
    output_lengths; noise where a kind has it; prefixes and prefix_lengths where they are asked for.
    """

    duration_s: float = Field(gt=0, description="Traffic stops after this long, in seconds.")
    rate_scale: float = Field(default=1.0, gt=0, description="Multiplies every rate.")
    lengths: Lengths | None = Field(default=None, description="Prompt and output lengths; or give `classes`.")
    classes: tuple[RequestClass, ...] = Field(
        default=(), strict=False, description="Classes of requests with a share and lengths each, instead of `lengths`."
    )
    prefixes: Prefixes | None = Field(
        default=None, description="What prompts begin with and share, such as system prompts; null: no token is shared."
    )

    @model_validator(mode="after")
    def _has_lengths(self) -> Self:
        if (self.lengths is None) == (not self.classes):
            raise ValueError("give either `lengths` or `classes`")
        names = [one.name for one in self.classes]
        if len(set(names)) < len(names):
            raise ValueError(f"classes share a name; given: {', '.join(names)}")
        return self

    @abstractmethod
    def rate(self, seed: int | None) -> Rate:
        """Returns the rate that this seed draws from; None: the expected rate, before any noise."""

    @abstractmethod
    def gap_cv(self) -> float:
        """Coefficient of variation of the gaps, once the rate is made even: 1 is a Poisson process."""

    def arrivals(self, seed: int, counts: Counter[str], segments: Segments, chunk_rows: int) -> Iterator[Arrivals]:
        """Yields the arrivals of this seed in chunks."""
        rescaling = Rescaling(self.rate(seed), self.duration_s)
        renewal = UnitRenewal(self.gap_cv(), stream(seed, "arrivals"))
        mix = Mix(self._mixed, seed)
        choice = None if self.prefixes is None else PrefixChoice(self.prefixes, seed)
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
            mix.fill(rows)
            if choice is not None:
                choice.fill(rows, segments)
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
    def _mixed(self) -> tuple[RequestClass, ...]:
        if self.lengths is not None:
            return (RequestClass(name="default", share=1.0, lengths=self.lengths),)
        return self.classes

    @property
    def shares_tokens(self) -> bool:
        """Whether some prompts begin alike."""
        return self.prefixes is not None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the request classes; a row's `class_id` is an index into it."""
        return tuple(one.name for one in self._mixed)

    @property
    def ends_at_s(self) -> float:
        """The instant after which nothing arrives; `limit` can end it earlier."""
        return self.duration_s

    @property
    def mean_prompt_tokens(self) -> float:
        """Expected prompt tokens of a request, caps included."""
        return self._mean([one.lengths.prompt.expected_tokens for one in self._mixed])

    @property
    def mean_output_tokens(self) -> float:
        """Expected output tokens of a request, caps included."""
        return self._mean([one.lengths.output.expected_tokens for one in self._mixed])

    def _mean(self, of_classes: list[float]) -> float:
        return float(np.average(of_classes, weights=[one.share for one in self._mixed]))
