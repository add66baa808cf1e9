"""A load generator's report, and what is said of the engine, as a served result."""

from dataclasses import fields
from typing import Any

import numpy as np

from accuracy.errors import Measures
from accuracy.measured.about import About
from accuracy.measured.engines import engine_of, engine_problems
from accuracy.measured.results import Sent, Served
from accuracy.measured.tools.report import CHAT, PREFIXES, Report

OTHER_CHAT = "prompts were rendered as chat, and how many tokens that adds to each is not known: none are added"

CHAT_TOKENS = {"qwen3": 8}
"""What a chat template adds to a prompt, by the beginning of the model's name.

Source: Qwen3's: <|im_start|> user newline, <|im_end|> newline, <|im_start|> assistant newline."""


def chat_tokens(model: str) -> int | None:
    """Returns the tokens that a model's chat template adds to a prompt; None where that is not known."""
    return next((tokens for name, tokens in CHAT_TOKENS.items() if model.startswith(name)), None)


def served_of_report(about: About, report: Report) -> Served:
    """Returns the result of a report of an engine."""
    row: dict[str, Any] = about.model_dump() | ({"engine": report.engine} if report.engine else {})
    engine = engine_of(row)
    sent: dict[str, Any] = {one.name: getattr(report.sent, one.name) for one in fields(Sent)}
    not_told = dict(report.sent.not_told)
    if report.is_chat and about.prompt_tokens is None:
        added = chat_tokens(engine.model) if about.chat_tokens is None else about.chat_tokens
        if added is None:
            not_told[CHAT] = OTHER_CHAT
        else:
            sent |= _longer(report.sent, added)
    if engine.arguments.get("enable_prefix_caching") is False:
        not_told.pop(PREFIXES, None)
    parts = (about.group, engine.gpu or "unknown-gpu", engine.title, f"tp{engine.size}", str(about.workload), _at(report.sent))
    real = _without_gaps(report.real) if report.sent.num_output_tokens <= 1 else _with_tpot(report)
    problems = {
        **engine_problems(row, engine),
        "clients gave up: overload with timeouts": about.quality.startswith("C"),
        "lengths are not known": not report.sent.num_prompt_tokens * report.sent.num_output_tokens,
        "no latencies": not real.statistics and not real.latencies,
    }
    return Served(
        **{
            **sent,
            **engine.fields(row),
            "name": report.name or "/".join(parts),
            "real": real,
            "front_end_s": about.front_end_s,
            "not_told": not_told,
            "problem": report.sent.problem or next((problem for problem, is_so in problems.items() if is_so), ""),
        }
    )


def _at(sent: Sent) -> str:
    if sent.ramp is not None:
        return f"{sent.ramp.start_per_s:g}-to-{sent.ramp.end_per_s:g}"
    return f"{sent.rate_per_s:g}" if sent.rate_per_s else "as-sent" if not sent.is_at_once else "all-at-once"


def _longer(sent: Sent, num_tokens: int) -> dict[str, Any]:
    """Its prompts with so many tokens more."""
    requests, prompt = sent.requests, sent.lengths.get("prompt")
    laws = dict(sent.lengths)
    if prompt is not None:
        amounts = ("tokens", "low", "high", "mean", "min", "max", "p50", "p90", "p95", "p99")
        laws["prompt"] = {
            key: value + num_tokens if key in amounts and value is not None
            else [one + num_tokens for one in value] if key == "values" and value is not None else value
            for key, value in prompt.items()
        }  # fmt: skip
    if requests is not None:
        requests = requests._replace(num_prompt_tokens=requests.num_prompt_tokens + num_tokens)
    return {"num_prompt_tokens": sent.num_prompt_tokens + num_tokens, "lengths": laws, "requests": requests}


def _with_tpot(report: Report) -> Measures:
    """What it measured; TPOT, if it did not, follows from the means of the other times and of the answers' lengths."""
    real, stated = report.real, report.sent.num_output_tokens
    num_gaps = (report.mean_output_tokens if round(report.mean_output_tokens) == stated else stated) - 1
    tpot_s = (real.value("e2e_s", "mean") - real.value("ttft_s", "mean")) / num_gaps
    if np.isfinite(real.value("tpot_s", "mean")) or not tpot_s > 0:
        return real
    return Measures(real.latencies, {**real.statistics, ("tpot_s", "mean"): tpot_s}, real.rates)


def _without_gaps(real: Measures) -> Measures:
    """Answers of one token have no gaps between tokens, whatever was written down."""
    gaps = ("tpot_s", "itl_s")
    latencies = {metric: values for metric, values in real.latencies.items() if metric not in gaps}
    return Measures(latencies, {key: value for key, value in real.statistics.items() if key[0] not in gaps}, real.rates)
