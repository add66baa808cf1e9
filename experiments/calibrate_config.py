"""What `kind: calibrate` asks for: the keys of its config."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from experiments.config import Study
from experiments.fields import Catalogued
from experiments.kinds import KindOf
from replicas import catalog
from replicas.calibration.engines import MeasuredEngine
from replicas.calibration.file import Dtype
from replicas.catalog import Gpu, Model
from replicas.live.measured import ENGINES

MEASURED_ENGINE = KindOf("engine to measure", ENGINES, MeasuredEngine)


class Calibrate(Study):
    """Fits the step time of one engine, to steps that were recorded, or that are measured now."""

    kind: Literal["calibrate"] = Field(description="What is done with the rest")
    model: Annotated[Model, Catalogued(catalog.model, catalog.models)] = Field(
        description="The model that ran: a name of replicas/models.csv, or a mapping"
    )
    gpu: Annotated[Gpu, Catalogued(catalog.gpu, catalog.gpus)] = Field(
        description="The device it ran on: a name of replicas/gpus.csv, or a mapping"
    )
    dtype: Dtype = Field(default="bfloat16", description="Of the weights")
    tensor_parallel_size: int = Field(default=1, ge=1, description="GPUs of the engine")
    engine_version: str | None = Field(default=None, description="The engine's version; null = not known")
    recordings: str | None = Field(
        default=None,
        min_length=1,
        description="Folder of recorded runs: NAME_meta.json and NAME_steps.jsonl or .parquet of each",
    )
    include: list[str] = Field(default=["*"], min_length=1, description="Names of the recordings to fit; * stands for anything")
    measure: Annotated[MeasuredEngine, MEASURED_ENGINE] | None = Field(
        default=None, description="An engine to measure now, instead of recordings"
    )
    max_measure_s: float | None = Field(
        default=None, gt=0, description="Stop measuring after so many seconds, whatever is not tight by then; null = no limit"
    )

    drift_window_s: float | None = Field(
        default=10.0,
        gt=0,
        description="The machine's speed while it was measured is fitted too, every so many seconds; null = it was constant",
    )

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.recordings is None) == (self.measure is None):
            raise ValueError("give either recordings, a folder of recorded steps, or measure, an engine to measure now")
        return self
