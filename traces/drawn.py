"""Requests made from laws: lengths, classes and shared prefixes, whenever it is that they arrive."""

from collections import Counter
from collections.abc import Callable
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from sim.limits import MAX_CLASSES
from sim.records import ARRIVAL
from traces.lengths import Lengths, Mix, RequestClass
from traces.prefixes import PrefixChoice, Prefixes
from traces.segments import Segments
from traces.shown import shown
from traces.traffic import SAMPLE_ROWS, Arrivals, Traffic


class Drawn(Traffic):
    """What is asked, apart from when; each kind adds the instants.

    Sub-streams of the seed: classes, prompt_lengths, output_lengths; prefixes and prefix_lengths where they are asked for.
    """

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
            twice = next(name for name, num in Counter(names).items() if num > 1)
            raise ValueError(f"classes: two are named {shown(twice)}; names must differ")
        if len(names) > MAX_CLASSES:
            raise ValueError(f"classes: {len(names):,} are given; at most {MAX_CLASSES:,} are told apart")
        return self

    def drawing(self, seed: int, segments: Segments, counts: Counter[str]) -> Callable[[Arrivals], None]:
        """Returns what fills in the requests of this seed, chunk after chunk: rows that have their instants."""
        mix = Mix(self._mixed, seed)
        choice = None if self.prefixes is None else PrefixChoice(self.prefixes, seed)

        def draw(rows: Arrivals) -> None:
            mix.fill(rows)
            if choice is not None:
                choice.fill(rows, segments, counts)

        return draw

    @property
    def _mixed(self) -> tuple[RequestClass, ...]:
        if self.lengths is not None:
            return (RequestClass(name="default", share=1.0, lengths=self.lengths),)
        return self.classes

    @property
    def notes(self) -> list[str]:
        """Whether prefixes are as long as the prompts that they are part of."""
        if self.prefixes is None or self.prefixes.mean_tokens < self.mean_prompt_tokens:
            return []
        means = f"{self.prefixes.mean_tokens:,.0f} tokens on average, prompts {self.mean_prompt_tokens:,.0f}"
        return [f"prefixes are as long as the prompts that begin with them ({means}): prompts are all prefix"]

    @property
    def shares_tokens(self) -> bool:
        """Whether some prompts begin alike."""
        return self.prefixes is not None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the request classes; a row's `class_id` is an index into it."""
        return tuple(one.name for one in self._mixed)

    @property
    def mean_prompt_tokens(self) -> float:
        """Expected prompt tokens of a request, caps included."""
        return self._mean([one.lengths.prompt.expected_tokens for one in self._mixed])

    @property
    def mean_output_tokens(self) -> float:
        """Expected output tokens of a request, caps included."""
        return self._mean([one.lengths.output.expected_tokens for one in self._mixed])

    def sample(self) -> Arrivals:
        """Returns requests drawn from the laws, always the same ones, all at 0."""
        rows = np.zeros(SAMPLE_ROWS, ARRIVAL)
        Mix(self._mixed, seed=0).fill(rows)
        return rows

    def _mean(self, of_classes: list[float]) -> float:
        return float(np.average(of_classes, weights=[one.share for one in self._mixed]))
