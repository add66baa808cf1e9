"""What an index says of an engine and of the load that was sent to it, and a report's load as the index says."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from accuracy.measured.results import Sent
from accuracy.measured.tools.report import LENGTHS, NUMBER, PREFIXES
from experiments.settings.mistakes import mistakes_in
from sim.errors import TraceError
from sim.params import Params
from traces.length_laws import Law
from traces.prefixes import Prefixes

NEEDED = ("model", "gpu", "tp")
"""What an index must say of the engine."""

ONE_PREFIX = "its prompts are said to begin with a system prompt, but not how many there are: taken to be one"


class StatedPrefixes(Prefixes):
    """Prefixes as load generators choose them: all alike unless said otherwise."""

    zipf: float = Field(default=0.0, ge=0, le=100, description="How uneven their popularity is.")


class StatedLengths(Params):
    """Laws of lengths, as in traffic."""

    prompt: Law | None = Field(default=None, description="Of prompts; null = as the report says.")
    output: Law | None = Field(default=None, description="Of answers; null = as the report says.")


class Load(Params):
    """What was sent, as far as an index says it."""

    arrival: Literal["constant", "Poisson", "all at once"] | None = Field(default=None, description="How requests arrived.")
    rate: float | None = Field(default=None, gt=0, description="Requests per second.")
    max_concurrency: int | None = Field(default=None, ge=1, description="Requests that the client had in flight at most.")
    num_requests: int | None = Field(default=None, ge=1, description="Requests that were sent.")
    prompt_tokens: float | None = Field(default=None, ge=1, description="Tokens of every prompt.")
    output_tokens: float | None = Field(default=None, ge=1, description="Tokens of every answer.")
    lengths: StatedLengths | None = Field(default=None, description="Laws of the lengths, as in traffic.")
    prefixes: StatedPrefixes | None = Field(default=None, description="What prompts begin with and share, as in traffic.")


class About(Load):
    """The engine that served, and what its reports do not say of the load; this counts before what they say."""

    model: str | dict[str, Any] = Field(description="Its name on Hugging Face, or its shape as in a pool.")
    gpu: str | dict[str, Any] = Field(description="Its name, or its peaks as in a pool.")
    tp: int = Field(ge=1, description="GPUs of an engine.")
    engine: str = Field(default="vllm", description="What served.")
    engine_version: str | int | float | None = Field(default=None, description="Its version.")
    dtype: str = Field(default="bf16", description="Of the weights.")
    server_args: dict[str, Any] | list[str] | str = Field(default={}, description="Its arguments.")
    group: str = Field(default="reports", description="First word of the results' names.")
    workload: str | None = Field(default=None, description="Word of the results' names; null = the report's file.")
    quality: str = Field(default="", description="A grade; those that begin with C are left out.")
    notes: Any = Field(default=None, description="For readers.")
    source_url: Any = Field(default=None, description="For readers.")
    n_gpu: Any = Field(default=None, description="For readers.")
    chat_tokens: int | None = Field(default=None, ge=0, description="That the chat template adds; null = as the model's does.")
    front_end_s: float = Field(default=0.0, ge=0, description="Of each request in the API server, before the engine gets it.")
    in_len: dict[str, float] = Field(default={}, description="Tokens of prompts: `system`, which they share, and `total`.")
    out_len: dict[str, float] = Field(default={}, description="Tokens of answers: `requested`, or their `mean`.")


def about_of(given: Mapping[str, Any], where: Path | str) -> About:
    """Returns what an index says.

    Raises:
        TraceError: it does not say what is needed, or something that is not known or not allowed.
    """
    missing = [name for name in NEEDED if given.get(name) is None]
    if missing:
        raise TraceError(f"{where}: about: no {missing[0]}; needed are {', '.join(NEEDED)}")
    try:
        return About.model_validate(dict(given))
    except ValidationError as error:
        raise TraceError(f"{where}: about: {'; '.join(map(str, mistakes_in(About, given, error)))}") from error


def as_stated(sent: Sent, about: About) -> Sent:
    """Returns what was sent as an index says, as far as it says it."""
    sent = _with_lengths(sent, about)
    told = dict(sent.not_told)
    if about.prefixes is not None:
        sent = replace(sent, prefixes=about.prefixes.model_dump(mode="json"))
        told.pop(PREFIXES, None)
    elif about.in_len.get("system"):
        sent = replace(sent, prefixes={"num": 1, "tokens": int(about.in_len["system"]), "zipf": 0.0})
        told[PREFIXES] = ONE_PREFIX
    if about.num_requests is not None:
        sent = replace(sent, num_requests=about.num_requests, measures_all=True)
        told.pop(NUMBER, None)
    if about.max_concurrency is not None:
        sent = replace(sent, max_concurrency=about.max_concurrency)
    return _with_arrivals(replace(sent, not_told=told), about)


def _with_arrivals(sent: Sent, about: About) -> Sent:
    if about.arrival is None and about.rate is None:
        return sent
    requests = None if sent.requests is None else sent.requests._replace(at_s=None)
    sent = replace(sent, ramp=None, requests=requests, rate_per_s=about.rate or sent.rate_per_s)
    if about.arrival is not None:
        sent = replace(sent, is_even=about.arrival == "constant", burstiness=1.0, num_at_start=0)
    return replace(sent, rate_per_s=0.0) if about.arrival == "all at once" else sent


def _with_lengths(sent: Sent, about: About) -> Sent:
    means = {
        "prompt": about.prompt_tokens or about.in_len.get("total") or about.in_len.get("mean"),
        "output": about.output_tokens or about.out_len.get("requested") or about.out_len.get("mean"),
    }
    laws: dict[str, Any] = {side: {"kind": "fixed", "tokens": round(mean)} for side, mean in means.items() if mean}
    expected = {side: round(mean) for side, mean in means.items() if mean}
    if about.lengths is not None:
        stated = about.lengths.model_dump(mode="json", exclude_none=True)
        laws |= stated
        expected |= {side: round(getattr(about.lengths, side).expected_tokens) for side in stated}
    told = {topic: text for topic, text in sent.not_told.items() if topic != LENGTHS or set(laws) != set(means)}
    return replace(
        sent,
        num_prompt_tokens=expected.get("prompt", sent.num_prompt_tokens),
        num_output_tokens=expected.get("output", sent.num_output_tokens),
        lengths={**sent.lengths, **laws},
        not_told=told,
    )
