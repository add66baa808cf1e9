"""Makes recordings, in the form that real ones have, of an engine that serves one request after the other."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.engines import true_s, truth

BLOCK_SIZE, BUDGET = 16, 512
GAP_S = 1e-6
"""Between two steps: next to nothing, so that a token is out when its step ends, as in a simulation."""

Request = tuple[float, list[int], int]
"""Arrival, prompt, output tokens; the next arrival comes when it is over."""


def some_requests(num: int, seed: int = 3, shared: Sequence[int] = ()) -> list[Request]:
    rng = np.random.default_rng(seed)
    prompts = [[*shared, *rng.integers(1000, 10**9, rng.integers(20, 1200)).tolist()] for _ in range(num)]
    return [(20.0 * i, prompt, int(rng.integers(2, 40))) for i, prompt in enumerate(prompts)]


def record(
    folder: Path, name: str, requests: Sequence[Request], slowness: Any = lambda at_s: 1.0, *, caching: bool = False
) -> None:
    """Writes NAME_meta.json, NAME_requests.csv, NAME_steps.jsonl, and with `caching` NAME_prompts.json.

    Args:
        folder: where to.
        name: of the recording.
        requests: far enough apart.
        slowness: how much longer a step takes, by the instant at which it begins.
        caching: whether blocks of earlier prompts are found again.
    """
    steps: list[dict[str, Any]] = []
    rows = ["id,arrival_s,added_s,first_sched_s,first_token_s,last_token_s,prompt_len,output_len,cached_tokens,num_preemptions"]
    seen: set[tuple[int, ...]] = set()
    for number, (arrival_s, prompt, num_output) in enumerate(requests):
        cached = _cached(prompt, seen) if caching else 0
        mine = _serve(f"r{number}", arrival_s, len(prompt), cached, num_output, slowness)
        first = next(step for step in mine if step["reqs"][0][1] + step["reqs"][0][2] == step["reqs"][0][4])
        row = [arrival_s, arrival_s, arrival_s, first["t3"], mine[-1]["t3"], len(prompt), num_output, cached, 0]
        rows.append(",".join([f"r{number}", *map(repr, row)]))
        steps += mine
    arguments = {
        "model": "made-up",
        "dtype": "bfloat16",
        "enforce_eager": True,
        "block_size": BLOCK_SIZE,
        "enable_prefix_caching": caching,
        "max_num_batched_tokens": BUDGET,
        "max_num_seqs": 8,
        "max_model_len": 4096,
    }
    meta = {"engine_args": arguments, "num_gpu_blocks": 10_000, "scheduler_config": {"async_scheduling": False}}
    (folder / f"{name}_meta.json").write_text(json.dumps(meta))
    (folder / f"{name}_requests.csv").write_text("\n".join(rows) + "\n")
    (folder / f"{name}_steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    if caching:
        (folder / f"{name}_prompts.json").write_text(json.dumps([prompt for _, prompt, _ in requests]))


def _cached(prompt: list[int], seen: set[tuple[int, ...]]) -> int:
    """Tokens of whole blocks that an earlier prompt began with, all but the last token at most; notes this one's."""
    blocks = [tuple(prompt[: BLOCK_SIZE * (i + 1)]) for i in range(len(prompt) // BLOCK_SIZE)]
    num_found = sum(block in seen for block in blocks)
    seen.update(blocks)
    return min(num_found, (len(prompt) - 1) // BLOCK_SIZE) * BLOCK_SIZE


def _serve(name: str, at_s: float, prompt: int, computed: int, num_output: int, slowness: Any) -> list[dict[str, Any]]:
    """One request's steps: its prompt in chunks of the budget, then one token each."""
    from replicas.calibration.shapes import Shape

    steps: list[dict[str, Any]] = []
    known = prompt
    while known < prompt + num_output:
        new = min(BUDGET, known - computed)
        shape = Shape(chunk=new, cached=computed)
        factor = slowness(at_s)
        planned_s = at_s + 1e-4 * factor
        done_s = planned_s + float(true_s([shape], truth())[0]) * factor
        row = [name, new, computed, prompt, known]
        computed += new
        known += computed == known
        step = {"t0": at_s, "t1": planned_s, "t2": done_s, "t3": done_s + 1e-4 * factor, "reqs": [row], "waiting": 0}
        steps.append({**step, "finished": [name] if known == prompt + num_output else []})
        at_s = steps[-1]["t3"] + GAP_S
    return steps
