"""Served results that others published: a rate, lengths and latency percentiles, one JSON a line."""

import fnmatch
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.errors import STATISTICS, Measures
from experiments.served_reports import rows_of
from replicas.catalog import gpus, models
from sim.errors import TraceError

MODELS = {
    "llama-2-7b-hf": "llama-2-7b",
    "llama-2-70b-hf": "llama-2-70b",
    "meta-llama-3-8b-instruct": "llama-3.1-8b",
    "llama-3.1-8b-instruct": "llama-3.1-8b",
    "llama-3.1-70b-instruct": "llama-3.1-70b",
    "llama-3.3-70b-instruct": "llama-3.1-70b",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "codellama-34b-instruct-hf": "codellama-34b",
    "mistral-nemo-instruct-2407": "mistral-nemo-12b",
    "qwen2.5-7b-instruct": "qwen2.5-7b",
    "llama-3.1-8b-instruct-fp8": "llama-3.1-8b",
}
"""Names of models on Hugging Face, without the owner and in lower case, and of the same shapes in our catalogue."""

DTYPES = {"bf16": None, "fp16": None, "fp16/bf16": None, "bfloat16": None, "fp8": "fp8"}
"""How a result names the dtype of its weights, and the surrogate's `quantization`."""

SERVED_SHARE = 0.95
"""Below this share of the offered rate the client was held up by its own limit of requests in flight, or gave up: a closed
loop, which an open one does not repeat. Assumption: an open run of minutes ends with less than a twentieth of it in flight."""


@dataclass(frozen=True)
class Served:
    """One served result: so many requests a second of these lengths, and what their users saw."""

    name: str  # group/gpu/model/tp/workload/rate
    group: str
    model: str  # of the catalogue; "" where it has none
    gpu: str
    tensor_parallel_size: int
    quantization: str | None
    engine_version: str
    rate_per_s: float
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    is_even: bool  # requests are evenly spaced; otherwise they are Poisson
    shares_prompts: bool  # its prompts come from a short list, and the prefix cache is on
    arguments: Mapping[str, Any] = field(default_factory=dict)
    real: Measures = field(default_factory=Measures)
    concurrency: int = 0  # of a closed loop, whose rate is not known; 0 = open
    problem: str = ""  # why it cannot be simulated as an open run


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
    if path.suffix == ".csv":
        return read_silicon(path)
    for number, row in enumerate(rows_of(path) if path.suffix in (".yaml", ".yml") else _lines(path), start=1):
        try:
            one = _served(row)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TraceError(f"{path}:{number}: is not a served result ({type(error).__name__}: {error})") from error
        names[one.name] = names.get(one.name, 0) + 1
        again = f"#{names[one.name]}" if names[one.name] > 1 else ""
        results.append(replace(one, name=one.name + again))
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


def read_silicon(path: Path) -> list[Served]:
    """Reads closed loops in the form of aiconfigurator's silicon_sample.csv, aggregated engines only.

    Raises:
        TraceError: no such file, or a column is missing.
    """
    try:
        table = pd.read_csv(path, low_memory=False)
        table = table[table["mode"] == "agg"]
        return [_silicon(row) for row in table.to_dict("records")]
    except (OSError, KeyError, ValueError) as error:
        raise TraceError(f"{path}: is no table of served results ({type(error).__name__}: {error})") from error


def _silicon(row: Mapping[Any, Any]) -> Served:
    name = str(row["model_path"]).split("/")[-1]
    model, gpu = _model_of(name), str(row["system"]).replace("_", "-")
    sizes = [int(row[key]) if row[key] == row[key] else 1 for key in ("isl", "osl", "batch_size", "tp_size")]
    quantization = DTYPES.get(str(row["gemm_quant_mode"]))
    problems = {
        f"engine {row['backend']}, not vllm": row["backend"] != "vllm",
        f"model {name} is not in the catalogue": not model,
        f"GPU {gpu} is not in the catalogue": gpu not in gpus(),
        f"{row['gemm_quant_mode']} weights": row["gemm_quant_mode"] not in ("fp8", "bfloat16"),
        "pipeline parallelism": row["pp_size"] > 1,
    }
    version = row["backend_version"]
    times = {("ttft_s", "mean"): row["silicon_ttft_ms"] / 1e3, ("tpot_s", "mean"): row["silicon_tpot_ms"] / 1e3}
    return Served(
        name=f"silicon/{gpu}/{name}/tp{sizes[3]}/{sizes[0]}-{sizes[1]}/c{sizes[2]}",
        group="silicon",
        model=model,
        gpu=gpu,
        tensor_parallel_size=sizes[3],
        quantization=quantization,
        engine_version=str(version) if version == version else "",
        rate_per_s=0.0,
        num_requests=max(60, 3 * sizes[2]),
        num_prompt_tokens=sizes[0],
        num_output_tokens=sizes[1],
        is_even=True,
        shares_prompts=False,
        arguments={"async_scheduling": True} if version != version else {},
        real=Measures(statistics=times),
        concurrency=sizes[2],
        problem=next((problem for problem, is_so in problems.items() if is_so), ""),
    )


def choose(
    results: Sequence[Served], include: Sequence[str], exclude: Sequence[str] = ()
) -> tuple[list[Served], dict[str, list[str]]]:
    """Returns the results whose names match and that can be simulated, and problem -> names of those that cannot.

    Raises:
        TraceError: nothing matches one of `include`.
    """
    chosen: dict[str, Served] = {}
    problems: dict[str, list[str]] = {}
    for pattern in include:
        matching = [one for one in results if fnmatch.fnmatch(one.name, pattern)]
        if not matching:
            groups = ", ".join(sorted({one.group for one in results}))
            raise TraceError(f"served results: nothing is named '{pattern}'; names are group/gpu/model/tp/workload/rate; "
                             f"groups: {groups}")  # fmt: skip
        for one in matching:
            if any(fnmatch.fnmatch(one.name, other) for other in exclude):
                problems.setdefault("excluded by the config", []).append(one.name)
            elif one.problem:
                problems.setdefault(one.problem, []).append(one.name)
            else:
                chosen[one.name] = one
    return [*chosen.values()], problems


def _served(row: Mapping[str, Any]) -> Served:
    arguments = arguments_of(row["server_args"])
    lengths, answers = row["in_len"] or {}, row["out_len"] or {}
    prompt = (lengths.get("measured_prompt") or {}).get("mean") or lengths.get("total") or lengths.get("mean") or 0
    output = answers.get("requested") or answers.get("p50") or answers.get("mean") or 0  # the mean is of re-encoded text
    rate = row["rate"] if isinstance(row["rate"], int | float) else 0.0
    model, gpu = _model_of(row["model"]), _gpu_of(row["gpu"])
    words = str(row["workload"]).split(";")[0].lower().removeprefix("inference-perf shared_prefix ")
    workload = re.sub(r"[^a-z0-9+]+", "-", words).strip("-")
    parts = (row["group"], gpu or "unknown-gpu", row["model"].split("/")[-1], f"tp{row['tp']}", workload, f"{rate:g}")
    return Served(
        name="/".join(parts),
        group=row["group"],
        model=model,
        gpu=gpu,
        tensor_parallel_size=int(row["tp"] or 1),
        quantization=DTYPES.get(str(row["dtype"]).lower()),
        engine_version=str(row["engine_version"] or ""),
        rate_per_s=float(rate),
        num_requests=int(row["num_prompts"] or 0),
        num_prompt_tokens=round(prompt),
        num_output_tokens=round(output),
        is_even="constant" in str(row["arrival"]),
        shares_prompts=("system" in lengths or "shared_prefix" in str(row["workload"]))
        and bool(arguments.get("enable_prefix_caching", True)),
        arguments=arguments,
        real=_measures(row),
        problem=_problem(row, model, gpu, rate, prompt * output),
    )


def _problem(row: Mapping[str, Any], model: str, gpu: str, rate: float, lengths: float) -> str:
    """Why a result is not one of an open run of a known engine; "" where it is."""
    served = row["throughput_req_s"]
    workload, quality = str(row["workload"]), str(row["quality"])
    problems = {
        f"engine {row['engine']}, not vllm": row["engine"] != "vllm",
        "vLLM's V0 engine": "v0_engine" in workload,
        "drafts, whose acceptance is not known": "eagle" in workload,
        "mixes stages of different rates": isinstance(row["rate"], list) or "mixes stages" in quality,
        "no rate: a closed loop, or all at once": not rate,
        "clients gave up: overload with timeouts": quality.startswith("C"),
        "closed loop: the client's limit of requests in flight held the rate down": bool(
            served and rate and served < SERVED_SHARE * rate
        ),
        "arrivals are neither evenly spaced nor Poisson": not re.search(r"constant|Poisson(?!-like)", str(row["arrival"])),
        f"model {row['model']} is not in the catalogue": not model,
        f"GPU {row['gpu']} is not in the catalogue": not gpu,
        f"dtype {row['dtype']} is not known": str(row["dtype"]).lower().split("?")[0] not in DTYPES,
        "lengths are not known": not lengths,
        "no latencies": not _measures(row).statistics,
    }
    return next((problem for problem, is_so in problems.items() if is_so), "")


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


def arguments_of(given: Any) -> dict[str, Any]:
    """Returns vLLM's arguments by name, from a mapping or a command line.

    >>> arguments_of(["--max-num-seqs=128", "--no-enable-prefix-caching", "--model=$(ID)"])
    {'max_num_seqs': 128, 'enable_prefix_caching': False, 'model': '$(ID)'}
    """
    pairs = dict(given) if isinstance(given, Mapping) else dict(_options(given if isinstance(given, list) else ()))
    named = {_ALIASES.get(name, name.replace("-", "_")): value for name, value in pairs.items()}
    return {name: _value(value) for name, value in named.items() if value not in ("", None)}


_ALIASES = {"gpu_mem_util": "gpu_memory_utilization", "cpu_offload": "cpu_offload_gb"}
"""Short names in some published results."""


def _options(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if name.startswith("no-") and not equals:
            yield name.removeprefix("no-"), False
        else:
            yield name, value if equals else True


def _value(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _model_of(name: str) -> str:
    short = name.split("/")[-1].lower()
    return short if short in models() else MODELS.get(short, "")


def _gpu_of(name: str) -> str:
    """The catalogue's name of a GPU that is named in prose: `H100 SXM 80GB`, `A100 80GB`, `RTX 4090 24GB`."""
    words = name.lower().replace("rtx pro 6000", "rtx-pro-6000").replace("rtx 4090", "rtx-4090").split()
    variant = "pcie" if "pcie" in words else "sxm"
    for word in words[:1]:
        for known in (word, f"{word}-{variant}"):
            if known in gpus():
                return known
    return ""
