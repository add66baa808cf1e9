"""What `kind: validate` asks for: the keys of its config."""

from typing import Annotated, Literal

from pydantic import Field

from accuracy.reader import READER, Reader
from experiments.settings.experiment import Study
from experiments.settings.fields import Percentile


class Validate(Study):
    """Simulates runs that were recorded on a real engine, and says how far off every metric is."""

    kind: Literal["validate"] = Field(description="What is done with the rest")
    recordings: str = Field(
        min_length=1,
        description="Folder of recorded runs: NAME_meta.json, NAME_requests.csv, NAME_steps.jsonl of each, and where prompts "
        "share tokens NAME_prompts.json; or LLMServingSim's HARDWARE/MODEL/vllm/; or served results: a load generator's "
        "report, or an index of such reports",
    )
    include: list[str] = Field(
        default=["*"], min_length=1, description="Names of the recordings to simulate; * stands for anything"
    )
    exclude: list[str] = Field(default=[], description="Of these, the served results to leave out")
    reader: Reader | None = Field(default=None, description=READER)
    calibration: str = Field(
        min_length=1,
        description="The step times to simulate with: a file that `kind: calibrate` made; one that is not there is looked for "
        "in the project's own folder",
    )
    drift: Literal["none", "one", "each"] = Field(
        default="none",
        description="Allowance for a machine that has become slower or faster since: one scalar for all step times of all "
        "recordings, or of each, from the recorded steps; it is reported",
    )
    follow_drift_s: float | None = Field(
        default=None,
        gt=0,
        description="Simulate each recording once more with the machine's speed as its steps show it, window by window of this "
        "length: no prediction, but it tells how much of the error is drift; null = do not",
    )
    draws: int = Field(
        default=5,
        ge=1,
        description="Of served results, how often to draw arrivals that are random: errors are of all draws together, and what "
        "one of them differs by is stated",
    )
    step_time_change: float | None = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="Simulate served results twice more, with all step times longer and shorter by this share, and say what "
        "1 % of step time changes in each figure; null = do not",
    )
    tolerance: float = Field(default=0.05, gt=0, description="Error that is allowed, or repeat_spread where that is larger")
    repeat_spread: dict[str, dict[Percentile, Annotated[float, Field(gt=0)]]] = Field(
        default={},
        description="Known difference between two runs of the same workload, by metric and percentile: {ttft_s: {p90: 0.11}}; "
        "recordings of equal workloads are compared as well",
    )
