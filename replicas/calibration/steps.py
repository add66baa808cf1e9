"""Recorded engine steps as a table: what was in each step, and how long each part of it took."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

COLUMNS = {
    "at_s": "when the step began, on the recorder's clock",
    "num_requests": "requests in the step",
    "num_prefills": "of these, requests with prompt tokens to compute",
    "num_tokens": "new tokens, sum of n",
    "attended_tokens": "sum of n (c + n/2), with c tokens computed or cached before",
    "kv_tokens": "sum of c + n",
    "device_s": "model run, from the end of planning, or of the model run before, to the arrival of its output",
    "schedule_s": "planning",
    "update_s": "taking the tokens in",
    "front_end_s": "from the last step's end to this one's start; missing when the engine was idle in between, or ahead",
}
"""The columns of a table of steps, which is also what the Parquet file beside a calibration holds."""


class StepError(ValueError):
    """A recording is wrong; the message names file and line."""


def read_steps(path: Path) -> pd.DataFrame:
    """Reads a recording: JSON lines as our recorder and `vllm_step_trace` write them, or a Parquet file with `COLUMNS`.

    A line has `reqs`, a list of [id, new tokens, computed before, prompt tokens, known tokens], and instants in seconds:
    `t0` start of planning, `t1` its end, `t2` the model's output is there, `t3` it is taken in. `warmup` steps, by their
    `kind`, are left out, and so are steps that never ended.

    Raises:
        StepError: no such file, no steps in it, or what is wrong with a line.
    """
    if not path.is_file():
        raise StepError(f"{path}: no such file")
    if path.suffix == ".parquet":
        return _from_parquet(path)
    rows = [*_rows(path)]
    if not rows:
        raise StepError(f"{path}: no step in it")
    return pd.DataFrame(rows, columns=[*COLUMNS])


def _from_parquet(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError) as error:  # pyarrow's own are such
        raise StepError(f"{path}: is not a Parquet file ({' '.join(str(error).split())})") from error
    missing = [name for name in COLUMNS if name not in table]
    if missing:
        raise StepError(f"{path}: no column {missing[0]}; a table of steps has {', '.join(COLUMNS)}")
    if table.empty:
        raise StepError(f"{path}: no step in it")
    return table[[*COLUMNS]]


def _rows(path: Path) -> Iterator[dict[str, float]]:
    """One row a step, in the order in which they were done; with async scheduling the next is planned before one is done."""
    last_output_s, last_end_s, is_busy = -np.inf, np.nan, False
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                step = json.loads(line)
                begins_s, batch = step["t0"], batch_of(step["reqs"])
                if "t3" not in step or step.get("kind") == "warmup":
                    continue
                planned_s, output_s, ends_s = (step[name] for name in ("t1", "t2", "t3"))
                row = {
                    "at_s": begins_s,
                    **batch,
                    "device_s": output_s - max(planned_s, last_output_s),
                    "schedule_s": planned_s - begins_s,
                    "update_s": ends_s - output_s,
                    "front_end_s": begins_s - last_end_s if is_busy and begins_s > last_end_s else np.nan,
                }
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise StepError(f"{path}:{number}: is not a step ({type(error).__name__}: {error})") from error
            yield row
            last_output_s, last_end_s = output_s, ends_s
            is_busy = len(step.get("finished", ())) < len(step["reqs"]) or step.get("waiting", 0) > 0


def batch_of(requests: Iterable[tuple[Any, int, int, int, int]]) -> dict[str, float]:
    """Returns the sums that a step's time depends on.

    Args:
        requests: for each one its id, new tokens, tokens computed before, prompt tokens, known tokens.

    >>> batch_of([("a", 1, 100, 60, 101), ("b", 50, 0, 50, 50)])
    {'num_requests': 2, 'num_prefills': 1, 'num_tokens': 51, 'attended_tokens': 1350.5, 'kv_tokens': 151}
    """
    rows = [(n, c, prompt) for _, n, c, prompt, _ in requests]
    return {
        "num_requests": len(rows),
        "num_prefills": sum(c < prompt for _, c, prompt in rows),
        "num_tokens": sum(n for n, _, _ in rows),
        "attended_tokens": sum(n * (c + n / 2) for n, c, _ in rows),
        "kv_tokens": sum(n + c for n, c, _ in rows),
    }


def write_steps(table: pd.DataFrame, path: Path) -> None:
    """Writes a table of steps as Parquet."""
    table[[*COLUMNS]].to_parquet(path, index=False)
