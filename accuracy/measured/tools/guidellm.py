"""GuideLLM: one report of several benchmarks; latency of a request in s, the others in ms.

Source: guidellm's benchmark/benchmark.py and scheduler/strategy.py of 0.2 and 0.3, schemas and strategies of 0.4 to 0.8.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from accuracy.errors import Measures
from accuracy.measured.results import Requests, Sent
from accuracy.measured.tools.report import (
    LENGTHS,
    NO_PREFIXES,
    NUMBER,
    PREFIXES,
    SPREAD,
    Report,
    failures,
    in_seconds,
    law_of,
)  # fmt: skip

NAME = "GuideLLM"
KEYS = ("benchmarks",)

AT_A_RATE, AT_ONCE = ("constant", "poisson"), ("throughput", "concurrent", "synchronous")

PERCENTILES = {"p001": 0.1, "p01": 1, "p05": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99,
               "p999": 99.9}  # fmt: skip

UNTOLD_NUMBER = "how many requests were sent is not in the report: it is taken to be a stretch of a long run"


def read(report: Mapping[str, Any]) -> Iterator[Report]:
    """Yields the benchmarks of a report.

    Raises:
        KeyError: a key is missing.
    """
    yield from map(_benchmark, report["benchmarks"])


def _benchmark(benchmark: Mapping[str, Any]) -> Report:
    metrics, strategy = benchmark["metrics"], _strategy(benchmark)
    kind = str(strategy["type_"])
    made = _made(benchmark)
    num_failed = int(made.get("errored") or 0)
    num = int(made.get("successful") or 0)
    not_told, problem = failures(num + num_failed, num_failed)
    if made.get("incomplete"):
        not_told["incomplete"] = "requests had not ended when it did; they are not in its figures, and are not sent"
    if kind not in AT_A_RATE + AT_ONCE:
        problem = f"its strategy is not known: {kind[:40]}; known are {', '.join(AT_A_RATE + AT_ONCE)}"
    elif strategy.get("rampup_duration") or strategy.get("startup_duration"):
        problem = "it ramps up, by a rule that differs between versions"
    if _has_phases(benchmark):
        not_told["phases"] = "its figures leave out the warm-up and cool-down; ours have all requests"
    lengths = [metrics[key]["successful"] for key in ("prompt_token_count", "output_token_count")]
    laws = {name: _law(one) for name, one in zip(("prompt", "output"), lengths, strict=True)}
    if None in laws.values():
        not_told[LENGTHS] = SPREAD
    limit = {"synchronous": 1, "concurrent": int(strategy.get("streams") or 0)}.get(kind, strategy.get("max_concurrency") or 0)
    rate = float(strategy["rate"]) if kind in AT_A_RATE else 0.0
    if not num:
        not_told[NUMBER] = UNTOLD_NUMBER
        problem = problem if rate else "how many requests were sent is not in the report"
    means = [one["mean"] for one in lengths]
    requests = _requests(benchmark, num, is_open=kind in AT_A_RATE and not 0 < limit < num)
    if requests is not None:
        laws, not_told = {}, {topic: text for topic, text in not_told.items() if topic != LENGTHS}
    rates = metrics.get("requests_per_second", {}).get("successful", {})
    sent = Sent(
        rate_per_s=rate,
        num_requests=num,
        num_prompt_tokens=round(means[0]),
        num_output_tokens=round(means[1]),
        is_even=kind == "constant",
        num_at_start=int(rate) if strategy.get("initial_burst") else 0,
        max_concurrency=int(limit) if kind == "concurrent" or not num or limit < num else 0,
        requests=requests,
        lengths={name: law for name, law in laws.items() if law},
        measures_all=num > 0,
        not_told=not_told | {PREFIXES: NO_PREFIXES},
        problem=problem,
    )
    real = Measures(statistics=_times(metrics), rates={"requests_per_s": rates["mean"]} if rates.get("mean") else {})
    return Report(sent, real, means[1])


def _strategy(benchmark: Mapping[str, Any]) -> Mapping[str, Any]:
    """What it sent by: under `config` since 0.4, before that under `args`, or `scheduler`."""
    places = [benchmark.get(name) or {} for name in ("config", "args", "scheduler")]
    found = next((place["strategy"] for place in places if "strategy" in place), None)
    if found is None:
        raise KeyError("strategy")
    return {"type_": found} if isinstance(found, str) else {"type_": found.get("kind"), **found}


def _made(benchmark: Mapping[str, Any]) -> Mapping[str, Any]:
    """How many requests ended how; {} where the report does not say."""
    places: tuple[Mapping[str, Any], ...] = (
        benchmark["metrics"],
        benchmark,
        {"request_totals": (benchmark.get("run_stats") or {}).get("requests_made")},
        {"request_totals": (benchmark.get("scheduler_metrics") or {}).get("requests_made")},
    )
    return next((found for place in places if (found := place.get("request_totals"))), {})


def _has_phases(benchmark: Mapping[str, Any]) -> bool:
    places = [benchmark.get(name) or {} for name in ("config", "args")]
    given = [place.get(phase) for place in places for phase in ("warmup", "cooldown")]
    numbers = [f"{phase}_{by}" for phase in ("warmup", "cooldown") for by in ("number", "duration")]
    given += [place.get(number) for place in places for number in numbers]
    return any(one.get("percent") or one.get("value") if isinstance(one, Mapping) else one for one in given)


def _law(values: Mapping[str, Any]) -> dict[str, Any] | None:
    percentiles = values.get("percentiles") or {}
    points = [(rank / 100, percentiles[name]) for name, rank in PERCENTILES.items() if percentiles.get(name) is not None]
    points += [(rank, values[name]) for name, rank in (("min", 0.0), ("max", 1.0)) if values.get(name) is not None]
    if not points:  # only a mean: taken as it is
        return {"kind": "fixed", "tokens": max(1, round(values["mean"]))} if values["mean"] == round(values["mean"]) else None
    return law_of(points, values["mean"])


def _requests(benchmark: Mapping[str, Any], num: int, is_open: bool) -> Requests | None:
    """One by one, where all are in the report."""
    listed = benchmark.get("requests") or {}
    all_of_them = listed.get("successful") or [] if isinstance(listed, Mapping) else []
    if not num or len(all_of_them) != num or not all("prompt_tokens" in one and "output_tokens" in one for one in all_of_them):
        return None
    starts = [one.get("start_time") or one.get("request_start_time") for one in all_of_them]
    prompts, outputs = (np.array([one[key] or 1 for one in all_of_them]) for key in ("prompt_tokens", "output_tokens"))
    at_s = np.array(starts, np.float64) - min(starts) if is_open and all(starts) else None
    return Requests(np.maximum(prompts, 1), np.maximum(outputs, 1), at_s)


def _times(metrics: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for metric, key, units_per_s in (("ttft_s", "time_to_first_token_ms", 1e3), ("e2e_s", "request_latency", 1.0)):
        values = (metrics.get(key) or {}).get("successful") or {}
        percentiles = values.get("percentiles") or {}
        names = {"mean": values.get("mean"), **{name: percentiles.get(name) for name in ("p50", "p90", "p99")}}
        found |= in_seconds(metric, names, units_per_s)
    return found
