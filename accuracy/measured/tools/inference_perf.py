"""inference-perf: one report a stage; times in s. Older ones have the lengths under other names.

Its TPOT and ITL counted two chunks a token, and a report does not say whether they still do: they are left out.

Source: inference-perf's reportgen/base.py and loadgen/load_timer.py, from 0.2.0 on.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from accuracy.errors import Measures
from accuracy.measured.results import Sent
from accuracy.measured.tools.report import LENGTHS, NO_PREFIXES, PREFIXES, Report, failures, in_seconds, law_of

NAME = "inference-perf"
KEYS = ("load_summary", "successes")

HELD_UP = 0.95
"""Below this share of the rate that was asked for, the client had no worker free to send with."""


def read(report: Mapping[str, Any]) -> Iterator[Report]:
    """Yields the one stage of a report. What it calls constant are exponential gaps that are stretched to fill the stage.

    Raises:
        KeyError: a key is missing.
    """
    load, successes = report["load_summary"], report["successes"]
    if "latency" not in successes:
        raise ValueError("it is of the server's own metrics; stage_N_lifecycle_metrics.json has the client's")
    rate, limit = float(load.get("requested_rate") or 0.0), int(load.get("concurrency") or 0)
    rate = 0.0 if limit else rate  # a stage of so many at a time has its number of requests for a rate
    num_failed = int((report.get("failures") or {}).get("count") or 0)
    not_told, problem = failures(load["count"], num_failed)
    if not rate and not limit:
        problem = "the rate is not in the report: it is of several stages, or of a trace"
    if rate and load.get("achieved_rate", rate) < HELD_UP * rate:
        problem = "the client sent more slowly than it was asked to, and how many it had in flight is not in the report"
    prompts = successes.get("prompt_tokens") or successes["prompt_len"]
    answers = successes.get("output_tokens") or successes["output_len"]
    if (successes.get("client_fallback_requests") or {"output": 1})["output"]:
        output, laws = answers["median"], {}
        not_told[LENGTHS] = "answers' lengths are of text that was encoded again: all are taken to be as long as the median"
    else:
        output, laws = answers["mean"], {"output": law_of(_points(answers), answers["mean"])}
    laws["prompt"] = law_of(_points(prompts), prompts["mean"])
    yield Report(
        sent=Sent(
            rate_per_s=rate,
            num_requests=int(load["count"]) - num_failed,
            num_prompt_tokens=round(prompts["mean"]),
            num_output_tokens=round(output),
            max_concurrency=limit,
            lengths={name: law for name, law in laws.items() if law},
            measures_all=True,
            not_told=not_told | {PREFIXES: _cached(prompts)},
            problem=problem,
        ),
        real=Measures(
            statistics=_times(successes["latency"]), rates={"requests_per_s": successes["throughput"]["requests_per_sec"]}
        ),
        mean_output_tokens=output,
    )


def _times(latency: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    names = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
    found: dict[tuple[str, str], float] = {}
    for metric, key in (("ttft_s", "time_to_first_token"), ("e2e_s", "request_latency")):
        values = latency.get(key) or {}
        found |= in_seconds(metric, {ours: values.get(theirs) for ours, theirs in names.items()}, 1.0)
    return found


def _points(values: Mapping[str, float]) -> list[tuple[float, float]]:
    """Quantiles of a summary: min, p0.1, p1, ..., median, ..., max."""
    ranks = {"min": 0.0, "median": 50.0, "max": 100.0} | {name: float(name[1:]) for name in values if name[1:2].isdigit()}
    return [(rank / 100, values[name]) for name, rank in ranks.items() if name in values]


def _cached(prompts: Mapping[str, float]) -> str:
    return "its prompts found tokens in the prefix cache; taken as all different" if prompts.get("cached") else NO_PREFIXES
