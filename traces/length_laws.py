"""Laws of prompt and output lengths. Each turns a standard normal number into tokens, rising, so that two can correlate."""

from abc import abstractmethod
from functools import cached_property
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from sim.kinds import KindOf
from sim.limits import MAX_TOKENS
from sim.params import Params
from traces.normal import Z, log_shares_below, share_below, shares_below
from traces.rates import Floats

Tokens = NDArray[np.int64]


class LengthLaw(Params):
    """A law of lengths. A new one adds its parameters and these two, and may come from outside."""

    @abstractmethod
    def of_normal(self, normal: Floats) -> Tokens:
        """Returns one length for each standard normal number, (n,) each; rising."""

    @property
    @abstractmethod
    def expected_tokens(self) -> float:
        """The expected tokens, caps included."""


class Fixed(LengthLaw):
    """Every request has the same length."""

    tokens: int = Field(ge=1, le=MAX_TOKENS, description="Tokens of every request.")

    def of_normal(self, normal: Floats) -> Tokens:
        """Returns one length for each standard normal number."""
        return np.full(len(normal), self.tokens, np.int64)

    @property
    def expected_tokens(self) -> float:
        """Returns the expected tokens."""
        return float(self.tokens)


class Uniform(LengthLaw):
    """Every whole number from `low` to `high`, both included, is as likely as any other."""

    low: int = Field(ge=1, le=MAX_TOKENS, description="Smallest number of tokens.")
    high: int = Field(ge=1, le=MAX_TOKENS, description="Largest number of tokens.")

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self

    def of_normal(self, normal: Floats) -> Tokens:
        """Returns one length for each standard normal number."""
        steps = shares_below(normal) * (self.high - self.low + 1)
        return np.minimum(self.low + steps.astype(np.int64), self.high)

    @property
    def expected_tokens(self) -> float:
        """Returns the expected tokens."""
        return (self.low + self.high) / 2


class Capped(LengthLaw):
    """What the open-ended laws share: lengths outside [min, max] are moved to the nearer end."""

    min: int = Field(default=1, ge=1, le=MAX_TOKENS, description="Shorter lengths become this many tokens.")
    max: int | None = Field(
        default=None, ge=1, le=MAX_TOKENS, description="Longer lengths become this many tokens; null: 1,000,000,000."
    )

    @model_validator(mode="after")
    def _min_is_below_max(self) -> Self:
        if self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self

    @property
    def _longest(self) -> float:
        return float(MAX_TOKENS if self.max is None else self.max)

    def _clip(self, tokens: Floats) -> Tokens:
        return np.clip(tokens, self.min, self._longest).astype(np.int64)


class Exponential(Capped):
    """A geometric law on 1, 2, 3, ...: the memoryless one, whose standard deviation is about its mean."""

    mean: float = Field(ge=1, le=MAX_TOKENS, description="Expected tokens, before the caps.")

    @property
    def _log_more(self) -> float:  # log of the chance that one more token follows
        return float(np.log1p(-1 / self.mean)) if self.mean > 1 else -np.inf

    def of_normal(self, normal: Floats) -> Tokens:
        """Returns one length for each standard normal number."""
        return self._clip(np.ceil(log_shares_below(-normal) / self._log_more))

    @property
    def expected_tokens(self) -> float:
        """Returns the expected tokens, caps included: min + sum over n >= min of P(more than n), up to max."""
        tail_at_min = np.exp(self._log_more * self.min)
        tail_at_max = np.exp(self._log_more * self._longest)
        return float(self.min + (tail_at_min - tail_at_max) * self.mean)


class Lognormal(Capped):
    """Few short, most middling, some very long: the usual look of prompts and answers. Given by mean and a percentile."""

    mean: float = Field(ge=1, le=MAX_TOKENS, description="Expected tokens, before the caps.")
    p50: float | None = Field(default=None, gt=0, description="Median; below the mean.")
    p90: float | None = Field(default=None, gt=0, description="90th percentile; mean to 2.27 times the mean.")
    p95: float | None = Field(default=None, gt=0, description="95th percentile; mean to 3.87 times the mean.")
    p99: float | None = Field(default=None, gt=0, description="99th percentile; mean to 14.97 times the mean.")

    @model_validator(mode="after")
    def _percentile_can_be(self) -> Self:
        if len(self._given) != 1:
            names = ", ".join(name for name, _, _ in self._given) or "none"
            raise ValueError(f"give the mean and exactly one of p50, p90, p95, p99; given: {names}")
        name, z, tokens = self._given[0]
        low, high = (0.0, self.mean) if z == 0 else (self.mean, self.mean * np.exp(z * z / 2))
        if not low <= tokens <= high:
            raise ValueError(
                f"no lognormal law has mean {self.mean:g} and {name} {tokens:g}; "
                f"with this mean, {name} lies between {low:g} and {high:g}"
            )
        return self

    @property
    def _given(self) -> list[tuple[str, float, float]]:
        return [(name, z, tokens) for name, z in Z.items() if (tokens := getattr(self, name)) is not None]

    @cached_property
    def _sigma(self) -> float:
        # mean = exp(mu + sigma^2/2) and percentile = exp(mu + z sigma) leave sigma^2/2 - z sigma + log(percentile/mean)
        # = 0. Of its two roots the smaller is the law with the lighter tail; at the median (z = 0) only one is positive.
        _, z, tokens = self._given[0]
        spread = np.sqrt(max(0.0, z * z - 2 * np.log(tokens / self.mean)))
        return float(spread if z == 0 else z - spread)

    @cached_property
    def _mu(self) -> float:
        return float(np.log(self.mean) - self._sigma**2 / 2)

    def of_normal(self, normal: Floats) -> Tokens:
        """Returns one length for each standard normal number, rounded to the nearest whole token."""
        return self._clip(np.rint(np.exp(self._mu + self._sigma * normal)))

    @property
    def expected_tokens(self) -> float:
        """Returns the expected tokens, caps included, to about a hundredth of a token (rounding evens out)."""
        return float(self.min + self._mean_below(self._longest) - self._mean_below(float(self.min)))

    def _mean_below(self, cap: float) -> float:
        """E[min(X, cap)], the partial expectation of a lognormal law."""
        if self._sigma == 0:
            return min(self.mean, cap)
        z = (np.log(cap) - self._mu) / self._sigma
        return float(self.mean * share_below(z - self._sigma) + cap * share_below(-z))


class Empirical(Capped):
    """Lengths drawn, with replacement, from a list or from a column of a CSV or Parquet file."""

    values: list[int] | None = Field(default=None, min_length=1, description="The lengths, in tokens, all at least 1.")
    path: str | None = Field(default=None, description="A CSV or Parquet file, instead of `values`.")
    column: str | None = Field(default=None, description="The column of `path` that holds lengths in tokens.")

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.values is None) == (self.path is None) or (self.path is None) != (self.column is None):
            raise ValueError("give either `values`, or `path` with `column`")
        if self.values is not None and min(self.values) < 1:
            raise ValueError(f"values holds {min(self.values)}; a length is at least 1 token")
        if self.values is not None and max(self.values) > MAX_TOKENS:
            raise ValueError(f"values holds {max(self.values):,}; a length is at most {MAX_TOKENS:,} tokens")
        return self

    @cached_property
    def _sorted(self) -> Tokens:
        if self.values is not None:
            return np.sort(np.asarray(self.values, np.int64))
        from traces.files import read_lengths  # here: it brings pyarrow, and few configs have such a file

        return np.sort(read_lengths(self.path or "", self.column or ""))

    def of_normal(self, normal: Floats) -> Tokens:
        """Returns one length for each standard normal number."""
        rank = (shares_below(normal) * len(self._sorted)).astype(np.int64)
        return self._clip(self._sorted[np.minimum(rank, len(self._sorted) - 1)].astype(np.float64))

    @property
    def expected_tokens(self) -> float:
        """Returns the expected tokens, caps included."""
        return float(self._clip(self._sorted.astype(np.float64)).mean())


LAWS: dict[str, type[LengthLaw]] = {
    "fixed": Fixed,
    "uniform": Uniform,
    "lognormal": Lognormal,
    "exponential": Exponential,
    "empirical": Empirical,
}
"""The table of length laws; `kind` in YAML chooses."""

Law = Annotated[LengthLaw, KindOf("length law", LAWS, LengthLaw)]
"""A field of a config that holds one."""
