"""vllm bench serve: one report a run; with --save-detailed request by request.

Source: vLLM's benchmarks/serve.py, 0.10 to 0.32.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from accuracy.errors import Measures
from accuracy.measured.results import Floats, Ramp, Requests, Sent
from accuracy.measured.tools.report import LENGTHS, NO_PREFIXES, PREFIXES, Report, failures, in_seconds, untold_lengths

NAME = "vllm bench serve"
KEYS = ("request_rate", "completed")

RAMPS = ("linear", "exponential")

DETAILED = ("input_lens", "output_lens", "ttfts")
"""What --save-detailed adds, a value a request, besides `start_times` and the rest."""

REPLAY = (
    "it has no rate, and yet not all requests were in flight at a time: it may replay a trace, whose instants only "
    "--save-detailed keeps; all are sent at once"
)


def read(report: Mapping[str, Any]) -> Iterator[Report]:
    """Yields the one run of a report.

    Raises:
        KeyError: a key is missing.
        ValueError: no request was completed.
    """
    num = int(report["completed"])
    if not num:
        raise ValueError("no request was completed")
    num_failed = _num_failed(report, num)
    has_each = all(len(report.get(key) or ()) == num + num_failed for key in DETAILED)
    is_done = np.array([not error for error in report.get("errors") or [""] * (num + num_failed)]) if has_each else None
    yield Report(
        sent=_sent(report, num, num_failed, is_done),
        real=_measures(report, num, is_done),
        mean_output_tokens=report["total_output_tokens"] / num,
        said=_said(report),
        is_chat="chat" in str(report.get("endpoint_type") or report.get("backend") or ""),
    )


def _num_failed(report: Mapping[str, Any], num: int) -> int:
    """Old versions do not count them; a data set may have fewer prompts than were asked for."""
    if report.get("failed") is not None:
        return int(report["failed"])
    num_sent = len(report.get("ttfts") or ()) or int(report.get("num_prompts") or num)
    return max(0, num_sent - num)


def _sent(report: Mapping[str, Any], num: int, num_failed: int, is_done: Any) -> Sent:
    rate, burstiness = float(report["request_rate"]), float(report.get("burstiness") or 1.0)
    given = int(report.get("max_concurrency") or 0)
    limit = given if given < num + num_failed else 0
    strategy = report.get("ramp_up_strategy")
    ramp = Ramp(strategy, float(report["ramp_up_start_rps"]), float(report["ramp_up_end_rps"])) if strategy in RAMPS else None
    not_told, problem = failures(num + num_failed, num_failed)
    if strategy and ramp is None:
        problem = f"its rate ramps up in a way that is not known: {str(strategy)[:40]}"
    sent = Sent(
        rate_per_s=0.0 if ramp or rate == float("inf") else rate,
        num_requests=num,
        num_prompt_tokens=round(report["total_input_tokens"] / num),
        num_output_tokens=round(report["total_output_tokens"] / num),
        is_even=burstiness == float("inf"),
        burstiness=burstiness,
        ramp=ramp,
        max_concurrency=limit,
        requests=None if is_done is None else _requests(report, limit, is_done),
        measures_all=True,
        problem=problem,
    )
    return replace(sent, not_told=not_told | _not_told(report, sent))


def _not_told(report: Mapping[str, Any], sent: Sent) -> dict[str, str]:
    """What a report does not say of what was sent."""
    found = {PREFIXES: NO_PREFIXES}
    if sent.requests is None:
        found[LENGTHS] = untold_lengths((report["total_input_tokens"], report["total_output_tokens"]), sent.num_requests)
    most = report.get("max_concurrent_requests") or sent.num_requests
    if sent.is_at_once and not sent.max_concurrency and most < sent.num_requests:
        found["arrivals"] = REPLAY
    if report.get("spec_decode_num_drafts"):
        found["drafts"] = "drafts were accepted; they are simulated only as far as server_args say which"
    return found


def _requests(report: Mapping[str, Any], limit: int, is_done: Any) -> Requests:
    """Those that were answered. A client that holds some back sends when another ends, which is not for a replay to say."""
    prompts, outputs = (np.asarray(report[key], np.int64)[is_done] for key in ("input_lens", "output_lens"))
    starts, waits = (np.asarray(report.get(key) or [], np.float64) for key in ("start_times", "queue_times"))
    at_s = None
    if len(starts) == len(is_done) and (not limit or len(waits) == len(is_done)):
        at_s = (starts - waits if limit else starts)[is_done]
        at_s = at_s - at_s.min()
    return Requests(np.maximum(prompts, 1), np.maximum(outputs, 1), at_s)


def _measures(report: Mapping[str, Any], num: int, is_done: Any) -> Measures:
    """Times in ms, or in s where their names do not end in it, as InferenceX writes them."""
    found: dict[tuple[str, str], float] = {}
    for metric, key in (("ttft_s", "ttft"), ("tpot_s", "tpot"), ("itl_s", "itl"), ("e2e_s", "e2el")):
        names = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
        for ending, units_per_s in (("", 1.0), ("_ms", 1e3)):
            values = {ours: report.get(f"{theirs}_{key}{ending}") for ours, theirs in names.items()}
            found |= in_seconds(metric, values, units_per_s)
    rate = report.get("request_throughput") or num / report["duration"]
    latencies = {} if is_done is None else _each(report, is_done)
    found = {key: value for key, value in found.items() if key[0] not in latencies}
    return Measures(latencies, found, {"requests_per_s": rate})


def _each(report: Mapping[str, Any], is_done: Any) -> dict[str, Floats]:
    """TTFT, and where the report has the tokens' instants E2E and TPOT, of each request that was answered."""
    ttft_s = np.asarray(report["ttfts"], np.float64)
    if len(report.get("latencies") or ()) == len(is_done):
        e2e_s = np.asarray(report["latencies"], np.float64)
    elif len(report.get("itls") or ()) == len(is_done):
        e2e_s = ttft_s + np.array([sum(gaps) for gaps in report["itls"]])
    else:
        return {"ttft_s": ttft_s[is_done]}
    num_gaps = np.asarray(report["output_lens"], np.float64) - 1
    tpot_s = np.where(num_gaps > 0, (e2e_s - ttft_s) / np.maximum(num_gaps, 1), np.nan)
    each = {"ttft_s": ttft_s, "e2e_s": e2e_s, "tpot_s": tpot_s}
    return {metric: values[is_done] for metric, values in each.items()}


def _said(report: Mapping[str, Any]) -> dict[str, Any]:
    """What it says of the engine: the model, and all that was given to it as --metadata."""
    names = ("gpu", "tp", "engine_version", "dtype")
    return {"model": report.get("model_id")} | {name: report[name] for name in names if name in report}
