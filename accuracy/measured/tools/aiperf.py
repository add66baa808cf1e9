"""AIPerf, and genai-perf before it: profile_export_aiperf.json, one report a run, each metric with its unit.

Source: aiperf's docs/tutorials/working-with-profile-exports.md and common/config/loadgen_config.py, 0.2 to 0.10.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from accuracy.errors import Measures
from accuracy.measured.results import Sent
from accuracy.measured.tools.report import LENGTHS, NO_PREFIXES, NUMBER, PREFIXES, SPREAD, Report, failures, in_seconds, law_of

NAME = "AIPerf"
KEYS = ("request_latency", "input_config")

UNITS_PER_S = {"s": 1.0, "sec": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}

ARRIVALS = ("poisson", "constant", "gamma")

METRICS = (("ttft_s", "time_to_first_token"), ("tpot_s", "inter_token_latency"), ("e2e_s", "request_latency"))
"""Its inter_token_latency is one value a request, (E2E - TTFT) / (output tokens - 1), which is our TPOT."""


def read(report: Mapping[str, Any]) -> Iterator[Report]:
    """Yields the one run of a report.

    Raises:
        KeyError: a key is missing.
        ValueError: a unit is not known.
    """
    load = _load(report)
    num = round(_average(report, "request_count")) or int(load.get("request_count") or 0)
    rate, limit = load.get("request_rate") or 0.0, load.get("concurrency") or 0
    num_failed = round(_average(report, "error_request_count"))
    not_told, problem = failures(num + num_failed, num_failed)
    pattern = str(load.get("arrival_pattern") or load.get("request_rate_mode") or _usual_pattern(report)).lower()
    problem = _problem(report, load, pattern) or problem
    sides = {"prompt": report["input_sequence_length"], "output": report["output_sequence_length"]}
    laws = {name: _law(values) for name, values in sides.items()}
    if None in laws.values():
        not_told[LENGTHS] = SPREAD
    if not num:
        not_told[NUMBER] = "how many requests were sent is not in the report: it is taken to be a stretch of a long run"
        problem = problem or ("" if rate else "how many requests were sent is not in the report")
    prefixes = _prefixes(report)
    is_readable = not problem
    sent = Sent(
        rate_per_s=float(rate) if is_readable else 0.0,
        num_requests=num,
        num_prompt_tokens=round(sides["prompt"]["avg"]),
        num_output_tokens=round(sides["output"]["avg"]),
        is_even=pattern == "constant",
        burstiness=float(load.get("arrival_smoothness") or 1.0) if pattern == "gamma" else 1.0,
        max_concurrency=int(limit) if is_readable and (not num or limit < num) else 0,
        lengths={name: law for name, law in laws.items() if law},
        prefixes=prefixes,
        measures_all=num > 0,
        not_told=not_told | ({} if prefixes else {PREFIXES: NO_PREFIXES}),
        problem=problem,
    )
    rates = _average(report, "request_throughput")
    endpoint = (report["input_config"] or {}).get("endpoint") or {}
    yield Report(
        sent=sent,
        real=Measures(statistics=_times(report), rates={"requests_per_s": rates} if rates else {}),
        mean_output_tokens=sides["output"]["avg"],
        said={"model": next(iter(endpoint.get("model_names") or []), None)},
        is_chat=endpoint.get("type") == "chat",
    )


def _load(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Under `loadgen`; genai-perf has it as perf_analyzer's stimulus, or before that among all its options."""
    config = report["input_config"] or {}
    stimulus = (config.get("perf_analyzer") or {}).get("stimulus")
    options = {key: config.get(key) for key in ("request_rate", "concurrency", "request_count")}
    return config.get("loadgen") or stimulus or options


def _usual_pattern(report: Mapping[str, Any]) -> str:
    """How requests arrive where nothing is said: AIPerf's Poisson, and before it perf_analyzer's constant gaps."""
    return "poisson" if "loadgen" in (report["input_config"] or {}) else "constant"


def _problem(report: Mapping[str, Any], load: Mapping[str, Any], pattern: str) -> str:
    rate, limit = load.get("request_rate"), load.get("concurrency")
    turns = (((report["input_config"] or {}).get("input") or {}).get("conversation") or {}).get("turn") or {}
    problems = {
        "neither a rate nor how many at a time is in the report": not rate and not limit,
        "it sweeps several loads": isinstance(rate, list) or isinstance(limit, list),
        "its load ramps up, by a rule that is not known": any(load.get(key) for key in load if "ramp" in key),
        "how many prompts are computed at a time is limited": bool(load.get("prefill_concurrency")),
        f"its arrivals are not known: {pattern[:40]}": bool(rate) and pattern not in ARRIVALS,
        "its requests are turns of conversations": (turns.get("mean") or 1) > 1,
        "it was cancelled": bool(report.get("was_cancelled")),
    }
    return next((problem for problem, is_so in problems.items() if is_so), "")


def _average(report: Mapping[str, Any], key: str) -> float:
    """0 where the report does not have it."""
    return float((report.get(key) or {}).get("avg") or 0.0)


def _law(values: Mapping[str, Any]) -> dict[str, Any] | None:
    points = [(float(name[1:]) / 100, value) for name, value in values.items() if name[1:2].isdigit() and value is not None]
    points += [(rank, values[name]) for name, rank in (("min", 0.0), ("max", 1.0)) if values.get(name) is not None]
    return law_of(points, values["avg"])


def _prefixes(report: Mapping[str, Any]) -> dict[str, Any]:
    """System prompts that it draws from a pool, or the one that all share."""
    prompt = ((report["input_config"] or {}).get("input") or {}).get("prompt") or {}
    pool = prompt.get("prefix_prompt") or {}
    if pool.get("pool_size") and pool.get("length"):
        return {"num": int(pool["pool_size"]), "tokens": int(pool["length"]), "zipf": 0.0}
    shared = pool.get("shared_system_prompt_length") or 0
    return {"num": 1, "tokens": int(shared), "zipf": 0.0} if shared else {}


def _times(report: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for metric, key in METRICS:
        values = report.get(key) or {}
        unit = str(values.get("unit") or "ms")
        if unit not in UNITS_PER_S:
            raise ValueError(f"{key} is in {unit[:20]}; known are {', '.join(UNITS_PER_S)}")
        names = {"mean": values.get("avg"), **{name: values.get(name) for name in ("p50", "p90", "p99")}}
        found |= in_seconds(metric, names, UNITS_PER_S[unit])
    return found
