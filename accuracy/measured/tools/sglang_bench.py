"""SGLang's bench_serving: one JSON line a run, of whichever engine it was pointed at.

Source: sglang's bench_serving.py: Poisson arrivals; random lengths are uniform from random_range_ratio of the nominal one on.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from accuracy.errors import Measures
from accuracy.measured.results import Sent
from accuracy.measured.tools.report import LENGTHS, NO_PREFIXES, PREFIXES, Report, in_seconds, untold_lengths

NAME = "SGLang's bench_serving"
KEYS = ("request_rate", "completed", "mean_e2e_latency_ms")

RANDOM = ("random", "random-ids")
"""Data sets whose lengths are drawn as above."""


def read(report: Mapping[str, Any]) -> Iterator[Report]:
    """Yields the one run of a report.

    Raises:
        KeyError: a key is missing.
        ValueError: no request was completed.
    """
    num = int(report["completed"])
    if not num:
        raise ValueError("no request was completed")
    limit, is_trace = int(report.get("max_concurrency") or 0), report["request_rate"] == "trace"
    rate = float("inf") if is_trace else float(report["request_rate"])
    laws = _laws(report)
    totals = [report["total_input_tokens"], report["total_output_tokens"]]
    sent = Sent(
        rate_per_s=rate if rate < float("inf") else 0.0,
        num_requests=num,
        num_prompt_tokens=round(totals[0] / num),
        num_output_tokens=round(totals[1] / num),
        max_concurrency=limit if limit < num else 0,
        lengths=laws,
        measures_all=True,
        not_told={PREFIXES: NO_PREFIXES} | ({} if laws else {LENGTHS: untold_lengths(totals, num)}),
        problem="requests were sent by the stamps of a trace, which is not in the report" if is_trace else "",
    )
    found: dict[tuple[str, str], float] = {}
    for metric, key in (("ttft_s", "ttft"), ("tpot_s", "tpot"), ("itl_s", "itl"), ("e2e_s", "e2e_latency")):
        names = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
        found |= in_seconds(metric, {ours: report.get(f"{theirs}_{key}_ms") for ours, theirs in names.items()}, 1e3)
    rates = {"requests_per_s": report.get("request_throughput") or num / report["duration"]}
    mean = totals[1] / num
    engine = str(report.get("backend") or "sglang").split("-")[0]
    yield Report(sent, Measures(statistics=found, rates=rates), mean, engine)


def _laws(report: Mapping[str, Any]) -> dict[str, Any]:
    nominal = {"prompt": report.get("random_input_len"), "output": report.get("random_output_len")}
    ratio = report.get("random_range_ratio")
    if report.get("dataset_name") not in RANDOM or None in nominal.values() or ratio is None:
        return {}
    highs = {side: int(tokens or 1) for side, tokens in nominal.items()}
    return {side: {"kind": "uniform", "low": max(1, int(high * ratio)), "high": high} for side, high in highs.items()}
