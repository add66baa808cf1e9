"""What `kind: calibrate` asks for: the keys of its config."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from experiments.settings.experiment import Study
from experiments.settings.fields import Catalogued
from replicas import catalog
from replicas.calibration.engines import MeasuredEngine
from replicas.calibration.fitted import Dtype
from replicas.catalog import Gpu, Model
from replicas.live.measured import ENGINES
from sim.kinds import KindOf
from sim.params import Params

MEASURED_ENGINE = KindOf("engine to measure", ENGINES, MeasuredEngine)


class Kernels(Params):
    """A kernel profile, and what is served with it: the steps that such requests make are put together from kernels."""

    path: str = Field(min_length=1, description="Folder in LLMServingSim's form: dense.csv, per_sequence.csv, attention.csv")
    prompt_tokens: int = Field(ge=1, description="Mean prompt length")
    output_tokens: int = Field(ge=1, description="Mean answer")
    longest_context_tokens: int = Field(
        default=0, ge=0, description="About the longest context among the decodes of a step; 0 = all are alike"
    )
    max_num_seqs: int = Field(ge=1, description="The engine's, the most requests in a step")
    max_num_batched_tokens: int = Field(ge=1, description="The engine's, the most tokens in a step")
    max_kv_tokens: int = Field(ge=1, description="Tokens that its KV cache holds")
    between_s: float = Field(
        default=0.0, ge=0, description="Seconds that each step takes besides its kernels, which a profile does not tell"
    )
    link_latency_s: float = Field(default=2e-6, ge=0, description="One message between GPUs, which a profile does not tell")
    link_efficiency: float = Field(default=1.0, gt=0, le=1, description="Share of the links' peak bandwidth that is reached")


class Calibrate(Study):
    """Fits the step time of one engine, to steps that were recorded, that are measured now, or put together from kernels."""

    kind: Literal["calibrate"] = Field(description="What is done with the rest")
    model: Annotated[Model, Catalogued(catalog.model, catalog.models)] = Field(
        description="The model that ran: a name of replicas/models.csv, or a mapping"
    )
    gpu: Annotated[Gpu, Catalogued(catalog.gpu, catalog.gpus)] = Field(
        description="The device it ran on: a name of replicas/gpus.csv, or a mapping"
    )
    dtype: Dtype = Field(default="bfloat16", description="Of the weights")
    tensor_parallel_size: int = Field(default=1, ge=1, description="GPUs of the engine")
    data_parallel_size: int = Field(
        default=1, ge=1, description="Engines that share the model's experts and step together; kernels only"
    )
    engine_version: str | None = Field(default=None, description="The engine's version; null = not known")
    recordings: str | None = Field(
        default=None,
        min_length=1,
        description="Folder of recorded runs: NAME_meta.json and NAME_steps.jsonl or .parquet of each",
    )
    include: list[str] = Field(default=["*"], min_length=1, description="Names of the recordings to fit; * stands for anything")
    kernels: Kernels | None = Field(default=None, description="A profile of the model's kernels, instead of recordings")
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
        if sum(one is not None for one in (self.recordings, self.measure, self.kernels)) != 1:
            raise ValueError(
                "give one of recordings, a folder of recorded steps, measure, an engine to measure now, and kernels, a profile"
            )
        if self.data_parallel_size > 1 and not (self.kernels and self.model.num_experts):
            raise ValueError("data_parallel_size is for kernels of a model with experts: other engines step each on its own")
        return self
