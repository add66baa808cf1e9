"""What `kind: calibrate_gpu` asks for: the keys of its config."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from accuracy.reader import READER, Reader
from experiments.settings.experiment import Study
from experiments.settings.fields import Catalogued
from replicas import catalog
from replicas.calibration.gpu import Efficiencies
from replicas.catalog import Gpu
from sim.params import Params

if TYPE_CHECKING:
    Coefficient = str
else:
    Coefficient = Literal[tuple(Efficiencies.model_fields)]


class KernelTables(Params):
    """Where tables of kernels lie, in aiconfigurator's form."""

    folder: str = Field(
        min_length=1, description="One system's, such as data/h100_sxm: gemm/vllm/ and attention/vllm/ are read"
    )
    all_reduces: str | None = Field(
        default=None, min_length=1, description="Of all-reduces, such as data/h100_sxm/comm/vllm/0.14.0; null = of one GPU only"
    )


class CalibrateGpu(Study):
    """Fits what engines reach of a GPU's peaks to served results of several models, by simulating them."""

    kind: Literal["calibrate_gpu"] = Field(description="What is done with the rest")
    gpu: Annotated[Gpu, Catalogued(catalog.gpu, catalog.gpus)] = Field(
        description="The device: a name of replicas/gpus.csv, or a mapping"
    )
    served: str = Field(
        min_length=1,
        description="Served results: a load generator's report, or an index of such reports",
    )
    reader: Reader | None = Field(default=None, description=READER)
    include: list[str] = Field(
        default=["*"], min_length=1, description="Results to fit, as group/gpu/model/tp/workload/rate; * stands for anything"
    )
    exclude: list[str] = Field(default=[], description="Of these, the ones to leave out")
    engine_version: str | None = Field(default=None, description="The engine's version; null = not known")
    start: Efficiencies = Field(description="Where the fit starts; what is not free stays as it is")
    kernels: str | None = Field(
        default=None,
        min_length=1,
        description="Folder of one system's kernel tables in aiconfigurator's form, gemm/ and attention/: medians over them "
        "take the place of the three efficiencies of `start`",
    )
    draws: int = Field(
        default=1, ge=1, description="How often to draw arrivals that are random; a mean of all draws is fitted to a served one"
    )
    kernel_times: KernelTables | None = Field(
        default=None, description="Tables of which the times of single kernels take the place of shares of the peaks"
    )
    max_rounds: int = Field(
        default=25, ge=1, description="Most rounds of the fit; each simulates every result once, and again for each coefficient"
    )
    free: list[Coefficient] = Field(min_length=1, description="The coefficients to fit")

    @classmethod
    def shrink(cls, draft: dict[str, Any]) -> None:
        """Fits for one round alone."""
        draft["max_rounds"] = 1
