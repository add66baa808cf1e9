"""Simulates a recorded run: the same stamps, lengths, shared tokens and engine arguments."""

import json
from pathlib import Path
from typing import Any

from accuracy.measured.arguments import options_of
from accuracy.measured.names import model_of
from accuracy.measured.recordings import Recording
from experiments.settings.experiment import Experiment
from experiments.settings.loading import RunConfig
from experiments.settings.mistakes import validated
from replicas.calibration.file import Calibration
from replicas.catalog import models
from sim.errors import TraceError

DATA_PARALLEL_ROUTER = {"kind": "vllm_old", "scrape_interval_s": 0.1}
"""How vLLM up to 0.19 spreads requests over its data-parallel ranks."""

_DTYPES = {"auto": None, "half": "float16", "float": "float32"}
"""What vLLM also calls a dtype; auto is the model's own."""

_OF_THE_SCHEDULER = (
    "async_scheduling",
    "enable_chunked_prefill",
    "scheduler_reserve_full_isl",
    "watermark",
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
)


def engine_options(recording: Recording) -> tuple[dict[str, Any], list[str]]:
    """Returns the surrogate's options for a recorded engine, and the arguments that it does not know, in words."""
    options, unknown = options_of(recording.meta["engine_args"])
    scheduler = recording.meta.get("scheduler_config", {})
    options |= {name: scheduler[name] for name in _OF_THE_SCHEDULER if name in scheduler}
    if "policy" in scheduler:
        options["scheduling_policy"] = scheduler["policy"]
    if recording.meta.get("num_gpu_blocks") is not None:
        options["num_gpu_blocks"] = recording.meta["num_gpu_blocks"]
    return options, unknown


def simulation_of(
    recording: Recording, calibration: Calibration, path: str, scale: float, seed: int, scratch: Path
) -> RunConfig:
    """Returns the run that repeats a recording.

    Args:
        recording: what to repeat.
        calibration: the step times, for the model and the device.
        path: the file it was read from.
        scale: multiplies the step times.
        seed: of the run.
        scratch: folder for the traffic's file.

    Raises:
        TraceError: the engine's arguments contradict each other or the calibration.
    """
    differences = other_engine(recording, calibration)
    if differences:
        raise TraceError(f"{recording.meta_path}: is of another engine than {path}: {'; '.join(differences)}")
    options, _ = engine_options(recording)
    document = {
        "name": recording.name,
        "kind": "simulate",
        "seed": seed,
        "traffic": traffic_of(recording, scratch),
        "router": DATA_PARALLEL_ROUTER if options.get("data_parallel_size", 1) > 1 else {"kind": "round_robin"},
        "pools": [
            {
                "name": "main",
                "model": calibration.document["model"],
                "gpu": calibration.document["gpu"],
                "replicas": {"kind": "surrogate", "calibration": path, "step_time_scale": scale, **options},
                "autoscaler": {"kind": "fixed", "replicas": 1},
            }
        ],
        "timeline_interval_s": 1.0,
    }
    return RunConfig(validated(Experiment, document, str(recording.meta_path)), str(recording.folder))


def other_engine(recording: Recording, calibration: Calibration) -> list[str]:
    """Returns what of a recorded engine is surely not what was calibrated, in words; names of models differ, so they may."""
    arguments = recording.meta["engine_args"]
    found = []
    dtype = _DTYPES.get(str(arguments.get("dtype", "auto")), arguments.get("dtype"))
    if dtype is not None and calibration.dtype != "fp8" and dtype != calibration.dtype:
        found.append(f"dtype {dtype}, calibrated was {calibration.dtype}")
    size = arguments.get("tensor_parallel_size", 1)
    if size != calibration.tensor_parallel_size:
        found.append(f"tensor_parallel_size {size}, calibrated was {calibration.tensor_parallel_size}")
    model = model_of(str(arguments.get("model", "")))
    if model and calibration.model.name in models() and model != calibration.model.name:
        found.append(f"model {model}, calibrated was {calibration.model.name}")
    return found


def traffic_of(recording: Recording, scratch: Path) -> dict[str, Any]:
    """Returns the recording's requests as traffic: its table, or where prompts were recorded, hashes of their blocks."""
    if recording.prompts is None or recording.shared_blocks is None:
        if "prefix_id" in recording.requests and (recording.requests["prefix_id"] >= 0).any():
            raise TraceError(
                f"{recording.requests_path}: requests have a prefix_id, but there is no {recording.name}_prompts.json"
            )
        columns = {"arrived_at": "arrival_s", "num_prompt_tokens": "prompt_len", "num_output_tokens": "output_len"}
        return {"kind": "table", "path": str(recording.requests_path), "time_unit": "s", "columns": columns, "sort_rows": True}
    block_size = int(recording.meta["engine_args"].get("block_size", 16))
    path = scratch / f"{recording.name}.jsonl"
    requests = recording.requests
    rows = zip(requests["arrival_s"], requests["output_len"], recording.prompts, strict=True)
    lines = [
        {"timestamp": at_s * 1e3, "input_length": len(prompt), "output_length": int(output), "hash_ids": ids}
        for (at_s, output, prompt), ids in zip(rows, recording.shared_blocks, strict=True)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return {"kind": "mooncake", "path": str(path), "time_unit": "ms", "trace_block_tokens": block_size, "sort_rows": True}
