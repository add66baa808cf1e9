"""Reading recorded steps: what counts, what is left out, and what is wrong in a line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replicas.calibration.steps import StepError, read_steps, write_steps


def a_line(start_s: float, requests: list[list[Any]], finished: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """Planning takes 1, the model 20 and the update 2 ms."""
    instants = {"t0": start_s, "t1": start_s + 0.001, "t2": start_s + 0.021, "t3": start_s + 0.023}
    return {**instants, "reqs": requests, "finished": [*finished], "waiting": 0, **more}


def written(folder: Path, lines: list[dict[str, Any]]) -> Path:
    path = folder / "run_steps.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


PREFILL, DECODE = ["a", 40, 0, 40, 40], ["a", 1, 40, 40, 41]


def test_sums_and_times_of_each_step(tmp_path: Path) -> None:
    table = read_steps(written(tmp_path, [a_line(0.0, [PREFILL]), a_line(0.024, [DECODE, ["b", 8, 32, 64, 64]])]))
    assert table["num_requests"].tolist() == [1, 2]
    assert table["num_prefills"].tolist() == [1, 1]
    assert table["num_tokens"].tolist() == [40, 9]
    assert table["attended_tokens"].tolist() == [800, 40.5 + 8 * 36]
    assert table["kv_tokens"].tolist() == [40, 41 + 40]
    np.testing.assert_allclose(table[["schedule_s", "device_s", "update_s"]].to_numpy(), [[0.001, 0.02, 0.002]] * 2)


def test_the_front_end_is_what_is_between_two_steps_unless_the_engine_had_nothing_to_do(tmp_path: Path) -> None:
    lines = [a_line(0.0, [PREFILL]), a_line(0.024, [DECODE], finished=("a",)), a_line(9.0, [PREFILL])]
    np.testing.assert_allclose(read_steps(written(tmp_path, lines))["front_end_s"], [np.nan, 0.001, np.nan])


def test_the_device_time_of_a_step_planned_ahead_begins_with_the_end_of_the_one_before(tmp_path: Path) -> None:
    """Async scheduling: the second is planned at 5 ms, while the first runs until 21; its output is there at 40 ms."""
    ahead = {**a_line(0.005, [DECODE]), "t2": 0.040, "t3": 0.042}
    table = read_steps(written(tmp_path, [a_line(0.0, [PREFILL]), ahead]))
    np.testing.assert_allclose(table["device_s"], [0.020, 0.019])
    np.testing.assert_allclose(table["front_end_s"], [np.nan, np.nan])


def test_warm_up_and_steps_that_never_ended_are_left_out(tmp_path: Path) -> None:
    open_end = {key: value for key, value in a_line(0.1, [DECODE]).items() if key not in ("t2", "t3")}
    lines = [a_line(0.0, [PREFILL], kind="warmup"), a_line(0.05, [DECODE], kind="decode"), open_end]
    assert read_steps(written(tmp_path, lines))["at_s"].tolist() == [0.05]


def test_parquet_gives_back_what_was_written(tmp_path: Path) -> None:
    table = read_steps(written(tmp_path, [a_line(0.0, [PREFILL]), a_line(0.024, [DECODE])]))
    write_steps(table, tmp_path / "steps.parquet")
    assert read_steps(tmp_path / "steps.parquet").equals(table)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no such file"),
        ("", "no step in it"),
        ("{", ":1: is not a step"),
        ("\x00", ":1: is not a step"),
        ("[]", ":1: is not a step"),
        ('{"t0": 1}', ":1: is not a step .KeyError: 'reqs'"),
        ('{"t0": 1, "reqs": [["a", 1, 2]]}', ":1: is not a step .ValueError: not enough values"),
        ('{"t0": 1, "reqs": [], "t3": 4}', ":1: is not a step .KeyError: 't1'"),
        ('{"t0": 1, "reqs": [], "t1": 2, "t2": "x", "t3": 4}', ":1: is not a step .TypeError"),
    ],
)
def test_a_bad_recording_is_refused_in_a_line(text: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "run_steps.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(StepError, match=said) as error:
        read_steps(path)
    assert "\n" not in str(error.value)


def test_a_table_without_a_column_is_refused(tmp_path: Path) -> None:
    table = read_steps(written(tmp_path, [a_line(0.0, [PREFILL])]))
    table.drop(columns="device_s").to_parquet(tmp_path / "steps.parquet")
    with pytest.raises(StepError, match="no column device_s"):
        read_steps(tmp_path / "steps.parquet")


@pytest.mark.parametrize(("content", "said"), [(b"junk", "is not a Parquet file"), (None, "no column device_s")])
def test_a_bad_table_is_refused_in_a_line(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "run_steps.parquet"
    if content is None:
        read_steps(written(tmp_path, [a_line(0.0, [PREFILL])])).drop(columns="device_s").to_parquet(path)
    else:
        path.write_bytes(content)
    with pytest.raises(StepError, match=said) as error:
        read_steps(path)
    assert "\n" not in str(error.value)
