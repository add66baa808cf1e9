"""Served results that others published: a rate, lengths and latency percentiles, and which of them can be simulated."""

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.validations.errors import Measures
from sim.errors import TraceError


@dataclass(frozen=True)
class Served:
    """One served result: so many requests a second, or at a time, of these lengths, and what their users saw."""

    name: str  # group/gpu/model/tp/workload/rate
    group: str
    model: str  # of the catalogue, or of `own`; "" where it has none
    gpu: str
    tensor_parallel_size: int
    quantization: str | None
    engine_version: str
    rate_per_s: float  # 0 = all are there from the start
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    is_even: bool  # requests are evenly spaced; otherwise Poisson, given how many come
    shares_prompts: bool  # its prompts come from a short list, and the prefix cache is on
    arguments: Mapping[str, Any] = field(default_factory=dict)
    real: Measures = field(default_factory=Measures)
    max_concurrency: int = 0  # requests that the client had in flight at most; 0 = no limit
    shortest_share: float = 1.0  # lengths are spread evenly from this share of those above to them
    front_end_s: float = 0.0  # for each request in the API server; of those sent at once, before the engine gets the first
    own: Mapping[str, Any] = field(default_factory=dict)  # its model and gpu, spelled out where the catalogue has none
    problem: str = ""  # why it cannot be simulated


def choose(
    results: Sequence[Served], include: Sequence[str], exclude: Sequence[str] = ()
) -> tuple[list[Served], dict[str, list[str]]]:
    """Returns the results whose names match and that can be simulated, and problem -> names of those that cannot.

    Raises:
        TraceError: nothing matches one of `include`.
    """
    chosen: dict[str, Served] = {}
    problems: dict[str, list[str]] = {}
    for pattern in include:
        matching = [one for one in results if fnmatch.fnmatch(one.name, pattern)]
        if not matching:
            groups = ", ".join(sorted({one.group for one in results}))
            raise TraceError(f"served results: nothing is named '{pattern}'; names are group/gpu/model/tp/workload/rate; "
                             f"groups: {groups}")  # fmt: skip
        for one in matching:
            if any(fnmatch.fnmatch(one.name, other) for other in exclude):
                problems.setdefault("excluded by the config", []).append(one.name)
            elif one.problem:
                problems.setdefault(one.problem, []).append(one.name)
            else:
                chosen[one.name] = one
    return [*chosen.values()], problems
