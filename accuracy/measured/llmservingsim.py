"""Served runs as LLMServingSim's bench leaves them: a folder of meta.json and requests.jsonl, and the workload's token ids."""

import fnmatch
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from accuracy.measured.arguments import BEFORE_021
from accuracy.measured.names import model_of
from accuracy.measured.recordings import Recording
from sim.errors import TraceError

REQUESTS = "requests.jsonl"


@dataclass(frozen=True)
class BenchRun(Recording):
    """One served run; `name` is HARDWARE_MODEL, its files are in `folder`."""

    @property
    def requests_path(self) -> Path:
        """Where the requests are."""
        return self.folder / REQUESTS

    @property
    def steps_path(self) -> Path:
        """Steps were not recorded."""
        return self.folder / "steps.jsonl"

    @cached_property
    def meta(self) -> dict[str, Any]:
        """The engine's arguments, and if they were recorded its KV blocks and its scheduler's config."""
        found = self._written()
        cache = found.get("kv_cache", {})
        # defaults of vLLM 0.19, which made these runs
        arguments: dict[str, Any] = BEFORE_021 | {"block_size": 16, "enable_prefix_caching": True}
        arguments |= {name: value for name, value in found["engine_kwargs"].items() if value is not None}
        arguments |= {name: cache[name] for name in ("block_size", "enable_prefix_caching") if name in cache}
        scheduler = found.get("resolved_config", {}).get("scheduler_config", {})
        blocks = {"num_gpu_blocks": cache["num_gpu_blocks"]} if "num_gpu_blocks" in cache else {}
        return {"engine_args": arguments, "scheduler_config": scheduler, **blocks}

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, arriving when the front end got it.

        An engine takes in what has come only between two steps, which is when it stamps `queued_ts`; `arrival_time` is stamped
        before, by another clock. What that clock is ahead is taken to be the least that it is in any request.

        Raises:
            TraceError: a stamp is missing.
        """
        names = {"queued_ts": "queued_s", "scheduled_ts": "first_sched_s", "first_token_ts": "first_token_s",
                 "last_token_ts": "last_token_s", "input_toks": "prompt_len", "output_toks": "output_len"}  # fmt: skip
        with self.requests_path.open(encoding="utf-8") as lines:
            table = pd.DataFrame([json.loads(line) for line in lines])
        for name in (*names, "arrival_time"):
            if name not in table or table[name].isna().any():
                raise TraceError(f"{self.requests_path}: {name} is missing; needed are {', '.join(names)}, arrival_time")
        table = table.rename(columns=names)
        table["arrival_s"] = table["arrival_time"] + (table["queued_s"] - table["arrival_time"]).min()
        start_s = table["arrival_s"].min()
        stamps = ["arrival_s", "first_sched_s", "first_token_s", "last_token_s"]
        table[stamps] -= start_s
        return table

    @cached_property
    def prompts(self) -> list[list[int]] | None:
        """The token ids of each prompt; None where the workload's file is not among the folder's parents.

        Raises:
            TraceError: they are not as many and as long as the requests.
        """
        for parent in self.folder.resolve().parents:
            path = parent / self._written()["dataset_path"]
            if path.is_file():
                with path.open(encoding="utf-8") as lines:
                    prompts = [json.loads(line)["input_tok_ids"] for line in lines][: len(self.requests)]
                if [len(prompt) for prompt in prompts] != self.requests["prompt_len"].tolist():
                    raise TraceError(f"{path}: its prompts are not as many and as long as those of {self.requests_path}")
                return prompts
        return None

    def _written(self) -> dict[str, Any]:
        path = self.folder / "meta.json"
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            found["engine_kwargs"], found["dataset_path"]
        except (OSError, ValueError, KeyError) as error:
            raise TraceError(f"{path}: is not a bench run's ({type(error).__name__}: {error})") from error
        return found


def find_runs(folder: str | Path, include: Sequence[str], model: str) -> list[BenchRun]:
    """Returns the served runs below a folder whose names match; none if there are none at all.

    A run in HARDWARE/MODEL/vllm/ is named HARDWARE_MODEL.

    Raises:
        TraceError: there are runs, and nothing matches one of `include`, or one served another model than `model`.
    """
    paths = sorted(Path(folder).rglob(REQUESTS)) if Path(folder).is_dir() else []
    runs = {f"{path.parents[2].name}_{path.parents[1].name}": path.parent for path in paths}
    found: dict[str, BenchRun] = {}
    for pattern in include if runs else ():
        matching = fnmatch.filter(runs, pattern)
        if not matching:
            raise TraceError(f"recordings {folder}: nothing is named '{pattern}'; there: {', '.join(runs)}")
        found.update({name: BenchRun(runs[name], name) for name in matching})
    for name, run in found.items():
        served = str(run.meta["engine_args"]["model"])
        if model_of(served) != model:
            raise TraceError(f"recordings {folder}: {name} served {served}, and the calibration is of {model}")
    return [*found.values()]
