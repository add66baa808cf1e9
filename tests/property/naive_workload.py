"""A workload of the conformance recorder (`tests/conformance/record.py`) as the naive engine is told it."""

import math
from typing import Any

from tests.conformance.workloads import version_of
from tests.property.naive_request import Request, Settings


def settings_of(workload: dict[str, Any]) -> Settings:
    arguments, num_blocks = workload["engine_args"], workload["num_gpu_blocks"]
    same = {name: arguments[name] for name in Settings.__dataclass_fields__ if name in arguments}
    same["num_stages"] = arguments.get("pipeline_parallel_size", 1)
    watermark_blocks = int(arguments.get("watermark", 0.0) * num_blocks)
    is_0_30 = version_of(workload) == "0.30.0"
    versions = {"threshold_binds_alone": is_0_30, "passed_by_go_first": is_0_30}
    return Settings(num_usable_blocks=num_blocks - 1, watermark_blocks=watermark_blocks, **same, **versions)


def arriving_of(workload: dict[str, Any]) -> list[tuple[int, Request]]:
    """Returns the requests by step; those of one step in the order of the workload."""
    requests = sorted(workload["requests"], key=lambda r: r["arrival_step"])
    return [(told["arrival_step"], request_of(told)) for told in requests]


def request_of(told: dict[str, Any]) -> Request:
    tokens, accepted = told["prompt"] + told["output_ids"], told.get("accepted", [0])
    return Request(
        told["id"],
        num_prompt_tokens=len(told["prompt"]),
        num_output_tokens=told["output_len"],
        max_tokens=told.get("max_tokens"),
        priority=told.get("priority", 0),
        lora=told.get("lora", 0),
        grammar_ready_at=told.get("grammar_ready_step", -math.inf),
        tokens=lambda position: tokens[position],
        num_accepted=lambda known: accepted[known % len(accepted)],
    )
