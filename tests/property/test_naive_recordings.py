"""The naive engine against vLLM's recordings: an oracle has to be right itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.workloads import text_of
from tests.property.naive_engine import by_step
from tests.property.naive_workload import arriving_of, settings_of
from tests.shared import shared

SHARED = (
    "async_mixed",
    "async_preempt",
    "burst_chunked",
    "long_prefill_thr",
    "no_chunk",
    "preempt",
    "preempt_apc",
    "prefix_evict",
    "priority",
    "steps_mixed",
    "watermark",
)
OURS = sorted((Path(__file__).parents[1] / "conformance" / "recorded").glob("*_workload.json*"))
COMPARED = ("loop_step", "reqs", "new", "resumed", "preempted", "finished", "running", "waiting", "free_blocks")
MORE_COMPARED = ("cached", "drafts")  # where the recording tells them


@pytest.mark.parametrize("name", SHARED)
def test_every_step_equals_vllms(name: str) -> None:
    assert_equals(shared(f"data/conformance/{name}_workload.json"))


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name.split("_workload")[0])
def test_every_step_of_what_we_recorded_equals_vllms(path: Path) -> None:
    assert_equals(path)


def assert_equals(path: Path) -> None:
    workload = json.loads(text_of(path))
    lines = text_of(path.with_name(path.name.replace("_workload.json", "_steps.jsonl"))).splitlines()
    theirs = [json.loads(line) for line in lines]
    names = [*COMPARED, *(name for name in MORE_COMPARED if name in theirs[0])]
    ours = by_step(settings_of(workload), arriving_of(workload))
    assert len(theirs) > 20
    assert [compared(step, names) for step in ours] == [compared(step, names) for step in theirs]


def compared(step: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """What both tell of a step; three lists have no order, and a row's fifth number is not ours to tell."""
    lists = {name: sorted(step[name]) for name in ("resumed", "preempted", "finished")}
    return {name: step[name] for name in names} | lists | {"reqs": [row[:4] for row in step["reqs"]]}
