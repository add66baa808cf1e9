"""Makes a workload smaller as long as something stays wrong with it."""

import time
from collections.abc import Callable, Collection, Iterator
from copy import deepcopy
from typing import Any

from tests.conformance.workloads import add_accepted, num_blocks_needed

Workload = dict[str, Any]
Request = dict[str, Any]


def shrunk(workload: Workload, is_wrong: Callable[[Workload], bool], seconds: float = 60.0) -> Workload:
    """Returns a smaller workload that is still wrong: each change that keeps it so is kept, until time is up."""
    deadline = time.monotonic() + seconds
    is_changing = True
    while is_changing:
        is_changing = False
        for smaller in smaller_workloads(workload):
            if time.monotonic() > deadline:
                return workload
            if is_possible(smaller) and is_wrong(smaller):
                workload, is_changing = smaller, True
                break
    return workload


def is_possible(workload: Workload) -> bool:
    """Whether every request can be served, which vLLM's scheduler does not ask."""
    arguments, requests = workload["engine_args"], workload["requests"]
    if "pipeline_parallel_size" in arguments and "num_speculative_tokens" in arguments and "async_scheduling" not in arguments:
        return False
    return bool(requests) and all(
        len(request["prompt"]) < arguments["max_model_len"]
        and num_blocks_needed(arguments, request) < workload["num_gpu_blocks"]
        for request in requests
    )


def smaller_workloads(workload: Workload) -> Iterator[Workload]:
    """Yields what may be tried next, the largest steps first."""
    requests = workload["requests"]
    size = len(requests) // 2
    while size:
        for start in range(len(requests) - size, -1, -size):  # the last arrivals first: they matter least
            yield changed(workload, requests=requests[:start] + requests[start + size :])
        size //= 2
    for names in OPTIONS:
        if names[0] in workload["engine_args"]:
            yield changed(workload, removed=names)
    yield changed(workload, max_model_len=workload["engine_args"]["max_model_len"] // 2)
    for edit in EDITS:
        for number in (None, *range(len(requests))):
            smaller = changed(workload, edit=edit, only=number)
            if smaller != workload:
                yield smaller


OPTIONS: tuple[tuple[str, ...], ...] = (
    ("num_speculative_tokens", "speculative_method", "acceptance_rate"),
    ("max_loras",),
    ("async_scheduling",),
    ("enable_prefix_caching",),
    ("scheduling_policy",),
    ("long_prefill_token_threshold_adaptive",),
    ("long_prefill_token_threshold", "long_prefill_token_threshold_adaptive"),
    ("watermark",),
    ("enable_chunked_prefill",),
    ("scheduler_reserve_full_isl",),
    ("pipeline_parallel_size",),
    ("prefill_schedule_interval",),
)


def halve_outputs(request: Request) -> None:
    length = (request["output_len"] + 1) // 2
    if "max_tokens" in request:
        request["max_tokens"] += length - request["output_len"]
    request["output_len"], request["output_ids"] = length, request["output_ids"][:length]


def halve_prompt(request: Request) -> None:
    request["prompt"] = request["prompt"][: (len(request["prompt"]) + 1) // 2]


def halve_arrival(request: Request) -> None:
    if "grammar_ready_step" in request:
        request["grammar_ready_step"] -= request["arrival_step"] - request["arrival_step"] // 2
    request["arrival_step"] //= 2


EDITS: tuple[Callable[[Request], Any], ...] = (
    lambda request: request.pop("max_tokens", None),
    lambda request: request.pop("lora", None),
    lambda request: request.pop("grammar_ready_step", None),
    lambda request: request.update(priority=0),
    halve_outputs,
    halve_prompt,
    halve_arrival,
)


def changed(
    workload: Workload,
    requests: list[Request] | None = None,
    removed: Collection[str] = (),
    max_model_len: int | None = None,
    edit: Callable[[Request], Any] | None = None,
    only: int | None = None,
) -> Workload:
    """Returns a copy with other requests, without some engine arguments, or with all requests (or only one) edited."""
    smaller: Workload = deepcopy(workload | {"requests": workload["requests"] if requests is None else requests})
    for name in removed:
        smaller["engine_args"].pop(name, None)
    smaller["engine_args"]["max_model_len"] = max_model_len or smaller["engine_args"]["max_model_len"]
    for number, request in enumerate(smaller["requests"]):
        if edit and only in (None, number):
            edit(request)
        if "max_loras" not in smaller["engine_args"]:
            request.pop("lora", None)
    smaller["requests"].sort(key=lambda request: request["arrival_step"])
    add_accepted(smaller["engine_args"], smaller["requests"])
    return smaller
