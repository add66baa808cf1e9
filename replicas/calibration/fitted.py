"""What engines a calibration was fitted to, and in which respects another engine is none of them."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field

from sim.params import Params

Dtype = Literal["bfloat16", "float16", "float32", "fp8"]


class Traits(NamedTuple):
    """What of an engine changes how long its steps take, besides how large they are."""

    model: str
    architecture: str  # as `Model.architecture` has it
    tensor_parallel_size: int
    dtype: str  # of the weights
    kv_cache_dtype: str
    speculation: bool = False  # tokens are drafted
    enforce_eager: bool = False  # it does without CUDA graphs
    adapters: bool = False  # requests use LoRA adapters


class Fitted(Params):
    """The engines that a calibration was fitted to: on others its times are extrapolated, and every result says so."""

    models: list[str] | None = Field(default=None, description="Their models; null = not stated, here and below.")
    architectures: list[str] | None = Field(default=None, description="dense or experts, and latent attention.")
    tensor_parallel_sizes: list[int] | None = Field(default=None, description="GPUs of an engine.")
    dtypes: list[Dtype] | None = Field(default=None, description="Of their weights.")
    kv_cache_dtypes: list[Dtype] | None = Field(default=None, description="Of their KV caches.")
    speculation: list[bool] | None = Field(default=None, description="Whether tokens were drafted.")
    enforce_eager: list[bool] | None = Field(default=None, description="Whether they did without CUDA graphs.")
    adapters: list[bool] | None = Field(default=None, description="Whether requests used LoRA adapters.")

    def outside(self, used: Traits) -> list[str]:
        """Returns in which respects an engine is none of these, each with the value used and those fitted.

        Between the smallest and the largest tensor_parallel_size nothing is said. What the file does not state counts where the
        engine is not the plainest: dense, on one GPU, in 16 bit, with CUDA graphs, without drafts or adapters.
        """
        sizes, size = self.tensor_parallel_sizes, used.tensor_parallel_size
        if sizes and min(sizes) <= size <= max(sizes):
            sizes = [size]
        respects = [
            _unlike(f"{used.model} ({used.architecture})", used.architecture, self.architectures, "dense"),
            _unlike(f"tensor_parallel_size {size}", size, sizes, 1),
            _unlike(f"weights in {used.dtype}", used.dtype, self.dtypes, "bfloat16"),
            _unlike(f"KV in {used.kv_cache_dtype}", used.kv_cache_dtype, self.kv_cache_dtypes, "bfloat16"),
            _unlike("speculative decoding", used.speculation, self.speculation, False),
            _unlike("enforce_eager", used.enforce_eager, self.enforce_eager, False),
            _unlike("LoRA adapters", used.adapters, self.adapters, False),
        ]
        return [said for said in respects if said]


NOT_STATED = Fitted()


def fitted_to(engines: Iterable[Traits]) -> Fitted:
    """Returns what a calibration states that was fitted to these engines.

    >>> one = Traits("a", "dense", 1, "fp8", "bfloat16")
    >>> fitted_to([one._replace(tensor_parallel_size=4), one]).tensor_parallel_sizes
    [1, 4]
    """
    columns = zip(Fitted.model_fields, zip(*engines, strict=True), strict=False)
    return Fitted.model_validate({name: sorted(set(values)) for name, values in columns})


def _unlike(said: str, used: Any, fitted: Sequence[Any] | None, plainest: Any) -> str:
    """Says that a value is none of those that were fitted; "" where it is one."""
    if fitted is None:
        return "" if _timed_as(used) == plainest else f"{said}, fitted: not stated"
    if _timed_as(used) in [_timed_as(one) for one in fitted]:
        return ""
    if isinstance(used, bool):
        return f"{said}, fitted without" if used else f"no {said}, fitted with"
    return f"{said}, fitted: {', '.join(str(one) for one in fitted)}"


def _timed_as(value: Any) -> Any:
    """Both 16-bit types take the same time."""
    return "bfloat16" if value == "float16" else value
