"""Reports of vllm bench serve, inference-perf and GuideLLM as served results, of the engine that an index names."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from sim.errors import TraceError

ABOUT = ("model", "gpu", "tp")
"""What an index must say of the engine; `server_args`, `engine_version`, `dtype`, `arrival`, `prompt_tokens`, `output_tokens`
may be there too. Lengths count before those of a report, which some tools take from text that was encoded again."""

Row = dict[str, Any]


def rows_of(index: Path) -> Iterator[Row]:
    """Yields the rows of an index, in the form of serving_ground_truth.jsonl.

    The index is YAML: `about`, a mapping with `ABOUT`, and `reports`, a list of JSON files beside it.

    Raises:
        TraceError: the index or a report cannot be read, or is none of the tools'.
    """
    try:
        found = yaml.safe_load(index.read_text(encoding="utf-8"))
        about, reports = dict(found["about"]), [*found["reports"]]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise TraceError(f"{index}: is not an index with about and reports ({type(error).__name__}: {error})") from error
    missing = [name for name in ABOUT if name not in about]
    if missing:
        raise TraceError(f"{index}: about: no {missing[0]}; needed are {', '.join(ABOUT)}")
    for name in reports:
        path = index.parent / str(name)
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
            rows = [*_rows(report)]
        except OSError as error:
            raise TraceError(f"{path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
            raise TraceError(f"{path}: is no report that we know ({type(error).__name__}: {error})") from error
        yield from (_whole(row, about, path.stem) for row in rows)


def _rows(report: Mapping[str, Any]) -> Iterator[Row]:
    if "benchmarks" in report:
        yield from map(_guidellm, report["benchmarks"])
    elif "load_summary" in report:
        yield _inference_perf(report)
    elif "request_rate" in report:
        yield _vllm_bench(report)
    else:
        raise ValueError("known are vllm bench serve, inference-perf and GuideLLM")


def _whole(row: Row, about: Mapping[str, Any], name: str) -> Row:
    """A row with all that `serving_ground_truth.jsonl` has, TPOT from the other times and the length."""
    lengths = {"in_len": about.get("prompt_tokens"), "out_len": about.get("output_tokens")}
    row |= {key: {"mean": value} for key, value in lengths.items() if value}
    if row["ttft_ms"].get("mean") and row["e2e_ms"].get("mean"):
        gaps = max(1.0, row["out_len"]["mean"] - 1)
        row["tpot_ms"] = {"mean_derived": (row["e2e_ms"]["mean"] - row["ttft_ms"]["mean"]) / gaps}
    fixed: Row = {
        "group": "reports",
        "engine": "vllm",
        "engine_version": None,
        "dtype": "bf16",
        "server_args": {},
        "quality": "",
    }
    plain: Row = {"workload": name, "itl_ms": None, "concurrency": None, "notes": ""}
    return {**fixed, **plain, **row, **{key: about[key] for key in about if key not in ("prompt_tokens", "output_tokens")}}


def _vllm_bench(report: Mapping[str, Any]) -> Row:
    """vllm bench serve: times in ms, the answers' lengths as counted by the server. A rate of `inf` is all at once."""
    rate = float(report["request_rate"])
    times = {key: _percentiles(report, key) for key in ("ttft", "tpot", "e2el")}
    even = report.get("burstiness") == float("inf")
    arrival = "constant" if even else "Poisson" if report.get("burstiness", 1.0) == 1.0 else "gamma"
    arrival = arrival if rate < float("inf") else "all at once"
    num, limit = int(report["completed"]), report.get("max_concurrency")
    if not num:
        raise ValueError("no request was completed")
    return {
        "rate": rate if rate < float("inf") else None,
        "arrival": f"{arrival}, at most {limit} in flight" if limit else arrival,
        "in_len": {"mean": report["total_input_tokens"] / num},
        "out_len": {"mean": report["total_output_tokens"] / num},
        "num_prompts": report["num_prompts"],
        "ttft_ms": times["ttft"],
        "tpot_ms": times["tpot"],
        "e2e_ms": times["e2el"],
        "throughput_req_s": report["request_throughput"],
    }


def _percentiles(report: Mapping[str, Any], key: str) -> Row:
    found = {"mean": report.get(f"mean_{key}_ms"), "p50": report.get(f"median_{key}_ms")}
    found |= {name: report.get(f"{name}_{key}_ms") for name in ("p90", "p99")}
    return {name: value for name, value in found.items() if value is not None}


def _inference_perf(report: Mapping[str, Any]) -> Row:
    """One stage's lifecycle metrics: times in s. Its TPOT and ITL count two chunks a token, so they are left out."""
    successes, load = report["successes"], report["load_summary"]

    def times(key: str) -> Row:
        values = successes["latency"][key]
        names = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
        return {name: values[theirs] * 1e3 for name, theirs in names.items() if theirs in values}

    return {
        "rate": load["requested_rate"],
        "arrival": "inference-perf constant",
        "in_len": {"mean": successes["prompt_len"]["mean"]},
        "out_len": {"mean": successes["output_len"]["median"]},
        "num_prompts": load["count"],
        "ttft_ms": times("time_to_first_token"),
        "tpot_ms": {},
        "e2e_ms": times("request_latency"),
        "throughput_req_s": successes["throughput"]["requests_per_sec"],
    }


_GUIDELLM = {
    "poisson": "Poisson",
    "throughput": "all at once",
    "synchronous": "all at once, at most 1 in flight",
    "concurrent": "all at once, at most {streams} in flight",
}


def _guidellm(benchmark: Mapping[str, Any]) -> Row:
    """One benchmark of a GuideLLM report: latency of a request in s, the others in ms."""
    metrics, strategy = benchmark["metrics"], benchmark["config"]["strategy"]

    def times(key: str, scale: float) -> Row:
        values = metrics[key]["successful"]
        found = {"mean": values["mean"], **{name: values["percentiles"].get(name) for name in ("p50", "p90", "p99")}}
        return {name: value * scale for name, value in found.items() if value}

    return {
        "rate": strategy.get("rate"),
        "arrival": _GUIDELLM.get(strategy["type_"], strategy["type_"]).format(**strategy),
        "in_len": {"mean": metrics["prompt_token_count"]["successful"]["mean"]},
        "out_len": {"mean": metrics["output_token_count"]["successful"]["mean"]},
        "num_prompts": metrics["request_totals"]["successful"],
        "ttft_ms": times("time_to_first_token_ms", 1.0),
        "tpot_ms": {},
        "e2e_ms": times("request_latency", 1e3),
        "throughput_req_s": metrics["requests_per_second"]["successful"]["mean"],
    }
