"""What is written beside the project is chosen, checked and run as what is in it: a kind of trace."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import run
from experiments.contracts import TrafficContract

TRACE = '''
from typing import Literal

from pydantic import Field

from traces.recorded import Columns, Recorded


class Gateway(Recorded):
    """Replays what our gateway logs: `received_ms;team;tokens_in;tokens_out` as comma-separated values."""

    group_by: Literal["team", "none"] = Field(default="team", description="Which column is the class of a request.")

    @property
    def layout(self) -> Columns:
        group = None if self.group_by == "none" else self.group_by
        return Columns("received_ms", "tokens_in", "tokens_out", group, "ms")
'''
"""A tabular trace of one's own, under 25 lines."""


def log(folder: Path, num_rows: int = 1000) -> Path:
    """Two requests a second of two teams, in turn."""
    rows = [f"{1_000_000 + 500 * i},{'ab'[i % 2]},{100 + i % 7},{5 + i % 3}" for i in range(num_rows)]
    path = folder / "gateway.csv"
    path.write_text("\n".join(["received_ms,team,tokens_in,tokens_out", *rows]))
    return path


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "my_traces.py").write_text(TRACE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield __import__("my_traces").Gateway(path=str(log(folder)))
    del sys.modules["my_traces"]


class TestATraceOfOnesOwn(TrafficContract):
    @pytest.fixture(autouse=True)
    def _each(self, gateway: Any) -> None:
        self.traffic = gateway


def test_a_trace_of_ones_own_is_read_as_it_is_written(gateway: Any) -> None:
    rows = np.concatenate(list(gateway.stream(1).chunks()))
    assert gateway.class_names == ("a", "b")
    np.testing.assert_allclose(rows["arrived_at_s"], 0.5 * np.arange(1000))
    assert rows["num_prompt_tokens"].tolist() == [100 + i % 7 for i in range(1000)]
    assert rows["class_id"].tolist() == [i % 2 for i in range(1000)]
    assert len([line for line in TRACE.splitlines() if line.strip()]) <= 25


def test_a_trace_of_ones_own_runs_by_module_and_class(gateway: Any, tmp_path: Path) -> None:
    config = Path(__file__).parents[2] / "configs/cpu_overlap.yaml"
    traffic = f"traffic={{kind: 'my_traces:Gateway', path: {log(tmp_path, 40)}, group_by: none}}"
    result = run(config, sets=[traffic, "sweep=null"], out=tmp_path / "out", progress=False)
    assert len(result.requests) == 40
