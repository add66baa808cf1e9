"""A result that an index spells out, where no tool's report of it is at hand: a published table, for instance."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from accuracy.errors import Measures
from accuracy.measured.about import Load, StatedLengths
from accuracy.measured.results import Sent
from accuracy.measured.tools.report import Report
from experiments.settings.mistakes import mistakes_in
from sim.errors import TraceError
from traces.length_laws import Law


class Stated(Load):
    """What was sent, and what its users saw."""

    name: str | None = Field(default=None, description="Of the result; null = group/gpu/model/tp/workload/rate.")
    shortest_share: float = Field(default=1.0, gt=0, le=1, description="Lengths spread evenly from this share of the stated.")
    measures_all: bool = Field(default=False, description="Figures are of all requests, the first and the last included.")
    problem: str = Field(default="", description="Why it cannot be simulated.")
    measured: dict[Literal["ttft_s", "tpot_s", "itl_s", "e2e_s"], dict[Literal["mean", "p50", "p90", "p99"], float]] = Field(
        default={}, description="Seconds, by metric and statistic."
    )
    requests_per_s: float | None = Field(default=None, gt=0, description="That ended, on average.")


def stated_report(given: Mapping[str, Any], where: str) -> Report:
    """Returns a spelled-out result as a report.

    Raises:
        TraceError: a key is not known, or its value is not allowed.
    """
    try:
        said = Stated.model_validate(dict(given))
    except ValidationError as error:
        raise TraceError(f"{where}: reports: {'; '.join(map(str, mistakes_in(Stated, given, error)))}") from error
    laws = said.lengths or StatedLengths()
    sent = Sent(
        rate_per_s=0.0 if said.arrival == "all at once" else said.rate or 0.0,
        num_requests=said.num_requests or 0,
        num_prompt_tokens=_tokens(said.prompt_tokens, laws.prompt),
        num_output_tokens=_tokens(said.output_tokens, laws.output),
        is_even=said.arrival == "constant",
        max_concurrency=said.max_concurrency or 0,
        lengths=laws.model_dump(mode="json", exclude_none=True),
        shortest_share=said.shortest_share,
        prefixes={} if said.prefixes is None else said.prefixes.model_dump(mode="json"),
        measures_all=said.measures_all,
        problem=said.problem,
    )
    statistics: dict[tuple[str, str], float] = {
        (metric, name): value for metric, values in said.measured.items() for name, value in values.items()
    }
    rates = {} if said.requests_per_s is None else {"requests_per_s": said.requests_per_s}
    return Report(sent, Measures(statistics=statistics, rates=rates), float(sent.num_output_tokens), name=said.name)


def _tokens(stated: float | None, law: Law | None) -> int:
    """Tokens on average; 0 = not known."""
    return round(stated or (law.expected_tokens if law else 0))
