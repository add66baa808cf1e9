"""Reads served results: JSON lines, load generators' reports, aiconfigurator's table."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.served.names import DTYPES, arguments_of, gpu_of, model_of, version_of
from experiments.served.reports import rows_of
from experiments.served.results import Served
from experiments.served.silicon import read_silicon
from experiments.validations.errors import STATISTICS, Measures
from replicas import catalog
from sim.errors import TraceError

SERVED_SHARE = 0.95
"""Below this share of the offered rate the client was held up by its own limit of requests in flight, or gave up; where the
limit is not known, that cannot be repeated. Assumption: an open run of minutes ends with less than a twentieth in flight."""

RANDOM_LENGTHS, SAME_LENGTH = ((128, 4), (1000, 2000), (2000, 100), (4000, 200), (32000, 100)), 0.01
"""Prompts and answers of gpustack's random requests, and how near their means must be; its others are ShareGPT's conversations.

Source: the means in its reports."""

CHAT, CHAT_TOKENS = "/v1/chat/completions", {"qwen3": 8}
"""Where a bench's prompts are rendered as chat, and the tokens that this adds to a question, by the model's name.

Source: the chat template of Qwen3: <|im_start|> user newline, <|im_end|> newline, <|im_start|> assistant newline."""

PARSES_TEMPLATES, TEMPLATE_S = (0, 11, 0), 9.2e-3
"""vLLM's version that parses the chat template again for each request (`resolve_chat_template_kwargs`), in the API server's
event loop, and how long that takes. Requests that come at once are all parsed before the engine is told of the first.

Source: 1,000 at once for Qwen3 32B on gpustack's H100. Their TTFT grows evenly from 9.8 s (p50 21.3, p99 32.7), half a step
of 1.1 s after the first was scheduled. Nothing that is validated here was served there; another host has another CPU."""

INFERENCE_PERF = "inference-perf"
"""Its `constant` load draws exponential gaps, and stretches them so that the last request of a stage comes at its end.

Source: ConstantLoadTimer of 0.2.0 and 0.3.0. Stages of 60 requests at 1/s took 58.5 to 59.7 s to send, not 59."""

DTYPE_IN_NAME, DTYPES_IN_NAMES = "see model/flags", {"FP8": "fp8", "AWQ": "awq"}
"""What a result says whose dtype is the end of its model's name, and those ends."""


def read_served(path: str | Path) -> list[Served]:
    """Reads JSON lines in the form of `serving_ground_truth.jsonl`, an index of load generators' reports (YAML), or
    aiconfigurator's `silicon_sample.csv`.

    Every line or report becomes a result, perhaps with a problem.

    Raises:
        TraceError: no such file, or a line or report is no result.
    """
    path = Path(path)
    results: list[Served] = []
    names: dict[str, int] = {}
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    if path.suffix == ".csv":
        return read_silicon(path)
    for number, row in enumerate(rows_of(path) if path.suffix in (".yaml", ".yml") else _lines(path), start=1):
        try:
            one = _served(row)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = " ".join(str(error).split())
            raise TraceError(f"{path}:{number}: is not a served result ({type(error).__name__}: {why})") from error
        names[one.name] = names.get(one.name, 0) + 1
        again = f"#{names[one.name]}" if names[one.name] > 1 else ""
        results.append(replace(one, name=one.name + again))
    if not results:
        raise TraceError(f"{path}: no result in it")
    return results


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise TraceError(f"{path}:{number}: is not JSON ({error})") from error
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error


def _served(row: Mapping[str, Any]) -> Served:
    own = {key: row[key] for key in ("model", "gpu") if isinstance(row.get(key), Mapping)}
    names = {key: found(own[key]).name for key, found in (("model", catalog.model), ("gpu", catalog.gpu)) if key in own}
    row = {**row, **names}
    arguments = arguments_of(row["server_args"])
    dtype, is_bench = str(row["dtype"]).lower(), row["dtype"] == DTYPE_IN_NAME
    if is_bench:
        dtype = DTYPES_IN_NAMES.get(str(row["model"]).rpartition("-")[2], "bf16")
    lengths, answers = row["in_len"] or {}, row["out_len"] or {}
    prompt = (lengths.get("measured_prompt") or {}).get("mean") or lengths.get("total") or lengths.get("mean") or 0
    output = answers.get("requested") or answers.get("p50") or answers.get("mean") or 0  # the mean is of re-encoded text
    rate = row["rate"] if isinstance(row["rate"], int | float) else 0.0
    model, gpu = names.get("model") or model_of(row["model"]), names.get("gpu") or gpu_of(row["gpu"])
    words = str(row["workload"]).split(";")[0].lower().removeprefix("inference-perf shared_prefix ")
    workload = re.sub(r"[^a-z0-9+]+", "-", words).strip("-")
    size = int(arguments.get("tensor_parallel_size") or row["tp"] or 1)
    limit = re.search(r"(\d+) in flight", str(row["arrival"]))
    if is_bench:
        workload = f"{prompt:.0f}-{output:.0f}"
        prompt += _chat_tokens(row, model) or 0
        arguments.setdefault("max_model_len", round(prompt + output))  # a default as long as the model's may not fit ours
    at = f"{rate:g}" if rate else "all-at-once"
    parts = (row["group"], gpu or "unknown-gpu", row["model"].split("/")[-1], f"tp{size}", workload, at)
    return Served(
        name="/".join(parts),
        group=row["group"],
        model=model,
        gpu=gpu,
        tensor_parallel_size=size,
        quantization=DTYPES.get(dtype),
        engine_version=str(row["engine_version"] or ""),
        rate_per_s=float(rate),
        num_requests=int(row["num_prompts"] or 0),
        num_prompt_tokens=round(prompt),
        num_output_tokens=round(output),
        is_even="constant" in str(row["arrival"]) and INFERENCE_PERF not in f"{row['group']} {row['arrival']}",
        shares_prompts=("system" in lengths or "shared_prefix" in str(row["workload"]))
        and bool(arguments.get("enable_prefix_caching", True)),
        arguments=arguments,
        real=_measures(row),
        max_concurrency=int(limit[1]) if limit else 0,
        front_end_s=TEMPLATE_S if CHAT in row["workload"] and version_of(row["engine_version"]) == PARSES_TEMPLATES else 0.0,
        own=own,
        problem=_problem(row, model, gpu, rate, prompt * output, dtype),
    )


def _problem(row: Mapping[str, Any], model: str, gpu: str, rate: float, lengths: float, dtype: str) -> str:
    """Why a result is not one of an open run of a known engine; "" where it is."""
    served = row["throughput_req_s"]
    workload, quality = str(row["workload"]), str(row["quality"])
    problems = {
        f"engine {row['engine']}, not vllm": row["engine"] != "vllm",
        "vLLM's V0 engine": "v0_engine" in workload,
        "drafts, whose acceptance is not known": "eagle" in workload,
        "mixes stages of different rates": isinstance(row["rate"], list) or "mixes stages" in quality,
        "neither a rate nor all at once": not rate and "all at once" not in str(row["arrival"]),
        "lengths are spread, and only their means are known": row["dtype"] == DTYPE_IN_NAME and not _is_fixed(row),
        "clients gave up: overload with timeouts": quality.startswith("C"),
        f"served under {SERVED_SHARE:.0%} of the offered rate, and how many the client had in flight is not known": bool(
            served and rate and served < SERVED_SHARE * rate and "in flight" not in str(row["arrival"])
        ),
        "arrivals are neither evenly spaced, nor Poisson, nor all at once": not re.search(
            r"constant|Poisson(?!-like)|all at once", str(row["arrival"])
        ),
        f"model {row['model']} is not in the catalogue": not model,
        f"GPU {row['gpu']} is not in the catalogue": not gpu,
        f"dtype {row['dtype']} is not known": dtype.split("?")[0] not in DTYPES,
        "lengths are not known": not lengths,
        "no latencies": not _measures(row).statistics,
        f"chat template of {row['model']} is not known": CHAT in workload and _chat_tokens(row, model) is None,
    }
    return next((problem for problem, is_so in problems.items() if is_so), "")


def _chat_tokens(row: Mapping[str, Any], model: str) -> int | None:
    """The tokens that a chat template adds to a prompt; None where it is not known."""
    if CHAT not in row["workload"]:
        return 0
    return next((tokens for name, tokens in CHAT_TOKENS.items() if model.startswith(name)), None)


def _is_fixed(row: Mapping[str, Any]) -> bool:
    """Tells whether all requests were as long as each other: random prompts of a length whose answers did not end early."""
    prompt, output = row["in_len"]["mean"], row["out_len"]["mean"]
    return any(abs(prompt / p - 1) < SAME_LENGTH and abs(output / o - 1) < SAME_LENGTH for p, o in RANDOM_LENGTHS)


def _measures(row: Mapping[str, Any]) -> Measures:
    """Times in seconds. TPOT is what follows from E2E, TTFT and the length: some tools count two chunks a token."""
    found: dict[tuple[str, str], float] = {}
    for metric in ("ttft", "tpot", "itl", "e2e"):
        values = row[f"{metric}_ms"] or {}
        if metric == "tpot" and "mean_derived" in values:
            values = {"mean": values["mean_derived"]}
        if metric == "itl" and "tpot_ms" in row and "mean_derived" in (row["tpot_ms"] or {}):
            values = {}  # these groups' ITL is their TPOT again
        found |= {(f"{metric}_s", name): values[name] / 1e3 for name in STATISTICS if values.get(name)}
    rate = row["throughput_req_s"]
    return Measures(statistics=found, rates={"requests_per_s": rate} if rate else {})
