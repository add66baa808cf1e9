"""Recorded runs of a real engine: a folder with NAME_meta.json, NAME_requests.csv and NAME_steps.jsonl of each."""

import fnmatch
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from replicas.calibration.steps import StepError, read_steps
from replicas.catalog import Gpu
from replicas.vllm.defaults import largest_graph_tokens
from sim.errors import TraceError

REQUEST_COLUMNS = ("arrival_s", "first_token_s", "last_token_s", "prompt_len", "output_len")
"""What NAME_requests.csv must have; `first_sched_s`, `cached_tokens`, `prefix_id` may be there too. Instants in seconds."""


OF_THE_RUN = ("summary", "workload", "name", "date", "notes")
"""What a meta file may say of the one run, and not of its engine."""


@dataclass(frozen=True)
class Recording:
    """One recorded run; its files are read when first asked for."""

    folder: Path
    name: str

    @cached_property
    def meta(self) -> dict[str, Any]:
        """`engine_args`, `num_gpu_blocks`, and if they were recorded `scheduler_config` and `workload`."""
        meta = _json(self.meta_path)
        if not isinstance(meta, dict) or not isinstance(meta.get("engine_args", {}), dict):
            raise TraceError(f"{self.meta_path}: is not a mapping with engine_args, a mapping")
        return {"engine_args": {}, **meta}

    @property
    def engine(self) -> dict[str, Any]:
        """All that its meta file says, less what is about the one run: which engine it was."""
        return {name: value for name, value in self.meta.items() if name not in OF_THE_RUN}

    @cached_property
    def shared_blocks(self) -> list[list[int]] | None:
        """A number for each block of each prompt, the same where prompts begin alike; None where they were not recorded."""
        block_size = int(self.meta["engine_args"].get("block_size", 16))
        return None if self.prompts is None else block_ids(self.prompts, block_size)

    @property
    def meta_path(self) -> Path:
        """Where the engine's arguments are."""
        return self.folder / f"{self.name}_meta.json"

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The steps, as `replicas.calibration.steps.COLUMNS`.

        Raises:
            TraceError: there are none, or they are wrong.
        """
        try:
            return read_steps(self.steps_path)
        except StepError as error:
            raise TraceError(str(error)) from error

    @property
    def steps_path(self) -> Path:
        """Where the steps are: Parquet, or else JSON lines."""
        parquet = self.folder / f"{self.name}_steps.parquet"
        return parquet if parquet.exists() else self.folder / f"{self.name}_steps.jsonl"

    @property
    def requests_path(self) -> Path:
        """Where the requests are."""
        return self.folder / f"{self.name}_requests.csv"

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, as the file has them.

        Raises:
            TraceError: no table, a column is missing or a value in it, or a token comes before its request.
        """
        path = self.requests_path
        try:
            table = pd.read_csv(path)
        except OSError as error:
            raise TraceError(f"{path}: {error.strerror}") from error
        except ValueError as error:  # pandas' own are such
            raise TraceError(f"{path}: is not a table of requests ({' '.join(str(error).split())})") from error
        for column in REQUEST_COLUMNS:
            if column not in table:
                raise TraceError(f"{path}: no column {column}; needed are {', '.join(REQUEST_COLUMNS)}")
            numbers = pd.to_numeric(table[column], errors="coerce")
            if numbers.isna().any():
                row = int(numbers.isna().argmax())
                given = table[column].iloc[row]
                what = "empty" if pd.isna(given) else f"{given!r}, no number,"
                raise TraceError(f"{path}: {column} is {what} in row {row + 2}")
        if table.empty:
            raise TraceError(f"{path}: no request in it")
        for before, after in (("arrival_s", "first_token_s"), ("first_token_s", "last_token_s")):
            is_early = table[after] < table[before]
            if is_early.any():
                raise TraceError(f"{path}: {after} is before {before} in row {int(is_early.argmax()) + 2}")
        return table

    @cached_property
    def prompts(self) -> list[list[int]] | None:
        """The token ids of each prompt, in the order of NAME_requests.csv; None where they were not recorded."""
        path = self.folder / f"{self.name}_prompts.json"
        if not path.exists():
            return None
        prompts = _json(path)
        lengths = self.requests["prompt_len"].tolist()
        if not isinstance(prompts, list) or [len(one) if isinstance(one, list) else -1 for one in prompts] != lengths:
            raise TraceError(f"{path}: its prompts are not as many and as long as prompt_len in {self.requests_path.name} says")
        return prompts

    @cached_property
    def gaps_s(self) -> Any:
        """Gaps between the tokens of one request, pooled; empty where the steps do not say which request got one."""
        path = self.folder / f"{self.name}_steps.jsonl"
        return _gaps_s(path) if path.exists() else np.empty(0)

    def max_graph_tokens(self, gpu: Gpu) -> int:
        """Returns the tokens of the engine's largest CUDA graph, by its arguments; 0 = it used none."""
        arguments = self.meta["engine_args"]
        if arguments.get("enforce_eager") or "max_num_seqs" not in arguments:
            return 0
        if not isinstance(arguments["max_num_seqs"], int):
            raise TraceError(f"{self.meta_path}: engine_args.max_num_seqs is {arguments['max_num_seqs']!r}, no whole number")
        return largest_graph_tokens(gpu, arguments["max_num_seqs"])

    @property
    def busy_share(self) -> float:
        """Share of the time from the first arrival to the last token in which the model ran; NaN without steps."""
        if not self.steps_path.exists():
            return float("nan")
        return float(self.steps["device_s"].sum()) / self.duration_s

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last token."""
        return float(self.requests["last_token_s"].max() - self.requests["arrival_s"].min())


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise TraceError(f"{path}: is not JSON ({error})") from error


def _gaps_s(path: Path) -> Any:
    last_s: dict[str, float] = {}
    gaps = []
    with path.open(encoding="utf-8") as lines:
        for step in map(json.loads, lines):
            for name, new, computed, _, known in step["reqs"] if "t3" in step else ():
                if new + computed == known:  # this step gave it a token
                    if name in last_s:
                        gaps.append(step["t3"] - last_s[name])
                    last_s[name] = step["t3"]
    return np.asarray(gaps)


def check_folder(folder: Path) -> None:
    """Raises TraceError unless there is such a folder of recordings."""
    if not folder.is_dir():
        raise TraceError(f"recordings {folder}: no such folder; docs/calibration.md says what it should hold")


def find(folder: str | Path, include: Sequence[str], ending: str) -> list[Recording]:
    """Returns the recordings in a folder whose names match, in the order of `include` and then by name.

    Args:
        folder: where they are.
        include: names, with `*` for anything.
        ending: the file that makes it one, `_requests.csv` or `_steps`.

    Raises:
        TraceError: no such folder, or nothing in it matches one of `include`.
    """
    folder = Path(folder)
    check_folder(folder)
    names = sorted({path.name.split(ending)[0] for path in folder.glob(f"*{ending}*")})
    found: dict[str, None] = {}
    for pattern in include:
        matching = fnmatch.filter(names, pattern)
        if not matching:
            raise TraceError(f"recordings {folder}: nothing is named '{pattern}'; there: {', '.join(names) or 'none'}")
        found.update(dict.fromkeys(matching))
    return [Recording(folder, name) for name in found]


def block_ids(prompts: Sequence[Sequence[int]], block_size: int) -> list[list[int]]:
    """Returns a number for each block of each prompt: the same where the block and all before it are the same.

    >>> block_ids([[1, 2, 3, 4, 5], [1, 2, 9, 4], [1, 2]], block_size=2)
    [[0, 1, 2], [0, 3], [0]]
    """
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    numbered = []
    for prompt in prompts:
        ids: list[int] = []
        for start in range(0, len(prompt), block_size):
            block = (ids[-1] if ids else -1, tuple(prompt[start : start + block_size]))
            ids.append(known.setdefault(block, len(known)))
        numbered.append(ids)
    return numbered
