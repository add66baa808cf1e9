"""Prefixes that many prompts begin with, such as system prompts."""

from collections import Counter
from typing import Annotated

import numpy as np
from pydantic import Field

from sim.limits import MAX_TOKENS
from sim.params import Params
from sim.randomness import stream
from sim.records import SEGMENT
from traces.length_laws import Law, Tokens
from traces.rates import Floats
from traces.segments import Segments, named
from traces.traffic import ALL_PREFIX, Arrivals, count


class Prefixes(Params):
    """Prefixes that requests choose among, some more popular than others.

    A prefix is part of the prompt and does not make it longer: of a prompt that is no longer than its prefix, all but the last
    token is prefix.
    """

    num: int = Field(default=100, ge=1, le=1_000_000, description="Different prefixes.")
    tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | Law = Field(
        description="Length of a prefix, in tokens: of every one, or the law that each one's is drawn from, once for a seed."
    )
    zipf: float = Field(
        default=1.0,
        ge=0,
        le=100,
        description="How uneven their popularity is: the i-th is chosen in proportion to i**-zipf; 0: all alike.",
    )
    share: float = Field(default=1.0, ge=0, le=1, description="Share of the requests that begin with one of them.")

    @property
    def mean_tokens(self) -> float:
        """Expected tokens of a prefix."""
        return float(self.tokens) if isinstance(self.tokens, int) else self.tokens.expected_tokens

    def lengths(self, seed: int) -> Tokens:
        """Returns the tokens of every prefix, the most popular first, shape (num,)."""
        if isinstance(self.tokens, int):
            return np.full(self.num, self.tokens, np.int64)
        return self.tokens.of_normal(stream(seed, "prefix_lengths").standard_normal(self.num))

    def chances(self) -> Floats:
        """Returns the share of all requests that begin with each prefix, shape (num,)."""
        weights = np.arange(1, self.num + 1, dtype=np.float64) ** -self.zipf
        return self.share * weights / weights.sum()


class PrefixChoice:
    """Draws the prefix of one request after the other; the same whatever the size of the chunks."""

    def __init__(self, prefixes: Prefixes, seed: int) -> None:
        self._lengths = prefixes.lengths(seed)
        self._chosen_below = np.minimum(np.cumsum(prefixes.chances()), prefixes.share)
        self._chosen_below[-1] = prefixes.share  # neither a rounding more nor less
        self._random = stream(seed, "prefixes")

    def fill(self, rows: Arrivals, segments: Segments, counts: Counter[str]) -> None:
        """Writes `first_segment` and `num_segments` of every row, whose prompt length is known, and adds what they point to.

        `counts` gets the rows whose prefix had to be cut, as it leaves no token of their own.
        """
        prefix = np.searchsorted(self._chosen_below, self._random.random(len(rows)), side="right")
        lengths = np.append(self._lengths, 0)[prefix]  # beyond the last: none
        num_tokens = np.minimum(lengths, rows["num_prompt_tokens"] - 1)
        count(counts, ALL_PREFIX, int(np.count_nonzero(lengths > num_tokens)))
        has_prefix = num_tokens > 0
        chosen = np.empty(np.count_nonzero(has_prefix), SEGMENT)
        chosen["content"] = named("prefix", prefix[has_prefix])
        chosen["num_tokens"] = num_tokens[has_prefix]
        rows["num_segments"] = has_prefix
        rows["first_segment"] = segments.add(chosen, rows["num_segments"])
