"""Served results that others published: what was sent, what its users saw, and which of them can be simulated."""

import fnmatch
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accuracy.errors import Measures
from sim.errors import TraceError

Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]


class Ramp(NamedTuple):
    """A rate that changes from the first request to the last, by its number: `vllm bench serve --ramp-up-strategy`."""

    strategy: str  # linear or exponential
    start_per_s: float
    end_per_s: float


class Requests(NamedTuple):
    """Requests one by one, in the order in which they were sent; each of shape (n,)."""

    num_prompt_tokens: Tokens
    num_output_tokens: Tokens
    at_s: Floats | None = None  # instants at which the client wanted to send them; None = by the rate


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What a load generator sent, as far as its report says."""

    rate_per_s: float = 0.0  # nominal; 0 = all are there from the start, or as `ramp` or `requests` say
    num_requests: int  # 0 = not known
    num_prompt_tokens: int  # on average
    num_output_tokens: int  # on average
    is_even: bool = False  # requests are evenly spaced; otherwise Poisson, given how many come
    burstiness: float = 1.0  # of gaps that are not even: 1 = Poisson, below it burstier; 1/cv^2, as in `vllm bench serve`
    ramp: Ramp | None = None
    num_at_start: int = 0  # of those at a rate, so many are sent at once before the others
    max_concurrency: int = 0  # requests that the client had in flight at most; 0 = no limit
    requests: Requests | None = None  # one by one, where the report has them
    lengths: Mapping[str, Any] = field(default_factory=dict)  # laws of `prompt` and `output` that count before `requests`
    shortest_share: float = 1.0  # lengths without a law are spread evenly from this share of those above to them
    prefixes: Mapping[str, Any] = field(default_factory=dict)  # what prompts begin with, as traffic's `prefixes`
    measures_all: bool = False  # its figures are of all requests, the first and the last included
    not_told: Mapping[str, str] = field(default_factory=dict)  # topic -> what the report does not say, and how it is taken
    problem: str = ""  # why it cannot be simulated

    def __post_init__(self) -> None:
        rates = (self.ramp.start_per_s, self.ramp.end_per_s) if self.ramp else ()
        if not (0 <= self.rate_per_s < np.inf and all(0 < rate < np.inf for rate in rates) and self.burstiness > 0):
            given = f"rate {self.rate_per_s:g}, ramp {self.ramp}, burstiness {self.burstiness:g}"
            raise ValueError(f"requests cannot be sent with {given}; rates and burstiness are positive")
        if self.num_requests < 0 or self.max_concurrency < 0:
            raise ValueError(f"{self.num_requests} requests, at most {self.max_concurrency} in flight, cannot be sent")

    @property
    def is_at_once(self) -> bool:
        """Whether all requests are there from the start."""
        has_instants = self.requests is not None and self.requests.at_s is not None
        return not self.rate_per_s and self.ramp is None and not has_instants


@dataclass(frozen=True, kw_only=True)
class Served(Sent):
    """One served result: so many requests a second, or at a time, of these lengths, and what their users saw."""

    name: str  # group/gpu/model/tp/workload/rate
    group: str
    model: str  # of the catalogue, or of `own`; "" where it has none
    gpu: str
    tensor_parallel_size: int
    quantization: str | None
    engine_version: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    real: Measures = field(default_factory=Measures)
    front_end_s: float = 0.0  # for each request in the API server; of those sent at once, before the engine gets the first
    own: Mapping[str, Any] = field(default_factory=dict)  # its model and gpu, spelled out where the catalogue has none


EXCLUDED, COULD_BE = "excluded by the config", "that could be simulated"


def choose(
    results: Sequence[Served], include: Sequence[str], exclude: Sequence[str] = ()
) -> tuple[list[Served], dict[str, list[str]]]:
    """Returns the results whose names match and that can be simulated, in the order of `include`, and why -> names of those
    that match and are left out.

    Raises:
        TraceError: nothing matches one of `include`.
    """
    matching: dict[str, Served] = {}
    for pattern in include:
        found = {one.name: one for one in results if fnmatch.fnmatch(one.name, pattern)}
        if not found:
            groups = ", ".join(sorted({one.group for one in results}))
            raise TraceError(f"served results: nothing is named '{pattern}'; names are group/gpu/model/tp/workload/rate; "
                             f"groups: {groups}")  # fmt: skip
        matching |= found
    chosen: list[Served] = []
    left_out: dict[str, list[str]] = {}
    for one in matching.values():
        is_excluded = any(fnmatch.fnmatch(one.name, pattern) for pattern in exclude)
        why = EXCLUDED if is_excluded else one.problem
        if why:
            left_out.setdefault(why, []).append(one.name)
        else:
            chosen.append(one)
    return chosen, left_out


def not_included(results: Sequence[Served], chosen: Sequence[Served], left_out: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Returns what would be said of the other results of a file, those that `include` does not name, and of how many.

    Args:
        results: all that the file has.
        chosen: those that are used.
        left_out: why those are not that `include` names.
    """
    settled = {one.name for one in chosen}.union(*left_out.values())
    return dict(Counter(one.problem or COULD_BE for one in results if one.name not in settled))


def what_is_left_out(chosen: Sequence[Served], left_out: Mapping[str, Sequence[str]], others: Mapping[str, int]) -> list[str]:
    """Returns in words, a line each, which results are left out and why, and what those that are not do not say."""
    lines = [f"{_counted(len(names))} left out: {why}" for why, names in left_out.items()]
    if others:
        reasons = "; ".join(f"{num:,} {why}" for why, num in sorted(others.items(), key=lambda one: -one[1]))
        lines.append(f"{_counted(sum(others.values()))} of the file not named by include: {reasons}")
    untold: dict[str, int] = Counter(text for one in chosen for text in one.not_told.values())
    return lines + [f"{_counted(num)}: {text}" for text, num in untold.items()]


def _counted(num: int) -> str:
    return f"{num:,} result{'' if num == 1 else 's'}"
