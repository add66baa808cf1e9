"""A calibration of a GPU: how much of its data sheet engines on it reach, whatever the model. One small YAML file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, field_serializer, model_validator

from replicas.calibration.file import Calibration, CpuPart, CpuTime, DeviceTime, FittedRange, KvCache, located, read, write
from replicas.calibration.fitted import NOT_STATED, Fitted
from replicas.calibration.kernel_times import KernelTimes
from replicas.catalog import Gpu, Model, gpu
from replicas.links import links_of
from replicas.memory import BF16_BYTES, kv_bytes_per_token, weight_bytes_read
from sim.params import Params


class Efficiencies(Params):
    """What is the same for all models on a GPU, as far as one may hope."""

    flops_efficiency: float = Field(default=1.0, gt=0, le=1, description="Share of the peak arithmetic that is reached.")
    bandwidth_efficiency: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of the peak bandwidth at which weights are read; with kernel_times, what is between their kernels.",
    )
    kv_bandwidth_efficiency: float = Field(
        default=1.0, gt=0, le=1, description="Share of the peak bandwidth at which KV is read."
    )
    link_efficiency: float = Field(default=1.0, gt=0, le=1, description="Share of the links' peak that all-reduces reach.")
    link_latency_s: float = Field(
        default=0.0, ge=0, description="One message between GPUs, where all-reduces are rings of 2 (n - 1) messages (NCCL)."
    )
    all_reduce_s: float = Field(
        default=0.0,
        ge=0,
        description="One all-reduce, however many GPUs, where it is one kernel (vLLM's own); two in each layer. With "
        "kernel_times, what GPUs wait for each other besides.",
    )
    fixed_s: float = Field(ge=0, description="What every step takes, whatever is in it.")
    mixed_s: float = Field(
        default=0.0, ge=0, description="More in a step with prompt tokens, which no CUDA graph holds as a whole."
    )
    mixed_kv_share: float = Field(
        default=0.0,
        ge=0,
        description="More in a step with prompt tokens, as a share of what reading KV takes: FlashAttention 2 is worse at it.",
    )
    eager_s: float = Field(default=0.0, ge=0, description="More in a step of more tokens than the largest CUDA graph.")
    launch_s: float = Field(
        default=0.0,
        ge=0,
        description="The least that a step with prompt tokens takes, whose kernels the CPU launches one by one.",
    )
    large_gemm_scale: float = Field(
        default=1.0,
        gt=0,
        description="With kernel_times: GEMMs of more than 256 rows take so many times what they took there.",
    )
    s_per_request: float = Field(default=0.0, ge=0, description="For each request in a step.")
    serial_share: float = Field(
        default=0.0, ge=0, le=1, description="Share of the shorter of arithmetic and memory that is not hidden."
    )
    client_s: float = Field(
        default=0.0, ge=0, description="Outside the engine, for each request: network, tokenizer, first answer. Not simulated."
    )


OF_PEAKS = ("flops_efficiency", "kv_bandwidth_efficiency", "link_efficiency", "link_latency_s", "serial_share")
"""Without a meaning where kernels were measured one by one."""


class GpuCalibration(Params):
    """What engines on one kind of GPU reach of its peaks, fitted to served results of several models."""

    format: Literal[1] = Field(default=1, description="Of this file.")
    engine: str = Field(default="vllm", description="The engine that served.")
    engine_version: str | None = Field(default=None, description="Its version; null = not recorded.")
    gpu: Gpu = Field(description="The device: a name of the catalogue, or a mapping.")
    source: str = Field(description="What was fitted to what.")
    fitted_to: list[str] = Field(default=[], description="The served results.")
    fitted: Fitted = Field(default=NOT_STATED, description="The engines that served them.")
    given: list[str] = Field(default=[], description="Efficiencies that these results cannot tell and that were set.")
    efficiencies: Efficiencies = Field(description="The coefficients.")
    kernel_times: KernelTimes | None = Field(
        default=None, description="GEMMs, attention and all-reduces as measured one by one, in place of shares of the peaks."
    )
    range: FittedRange = Field(description="Steps outside it are extrapolated by the form, and flagged.")

    @model_validator(mode="before")
    @classmethod
    def _look_up(cls, data: Mapping[str, object]) -> dict[str, object]:
        return {key: gpu(one) if key == "gpu" and isinstance(one, str) else one for key, one in data.items()}

    @model_validator(mode="after")
    def _has_no_idle_coefficient(self) -> "GpuCalibration":
        usual = Efficiencies(fixed_s=0.0)
        idle = [name for name in OF_PEAKS if getattr(self.efficiencies, name) != getattr(usual, name)]
        if self.kernel_times is not None and idle:
            raise ValueError(f"efficiencies.{idle[0]} has no effect with kernel_times, which has measured it; leave it out")
        return self

    @field_serializer("efficiencies")
    def _with_an_effect(self, efficiencies: Efficiencies) -> dict[str, Any]:
        return {name: value for name, value in efficiencies if self.kernel_times is None or name not in OF_PEAKS}

    @property
    def engines(self) -> Fitted:
        """The engines that it was fitted to."""
        return self.fitted

    @property
    def kv_cache(self) -> KvCache | None:
        """A GPU as such has no KV blocks: they depend on the model."""
        return None

    def of(self, model: Model, dtype: str, tensor_parallel_size: int, kv_element_bytes: float = BF16_BYTES) -> Calibration:
        """Returns the step time of `model` on `tensor_parallel_size` of these GPUs, in the dtype of its weights.

        Attention computes in fp8 where its cache is fp8, whatever the weights are.

        Source: docs/design.md, A step's time, peaks times efficiencies. There an all-reduce is a ring of messages; vLLM's own
        kernel, which it prefers between GPUs with NVLink, takes 4 to 6 us up to 16 KiB whether they are two or eight
        (aiconfigurator's custom_allreduce_perf). With kernel times a step is the sum of its kernels.

        Raises:
            ValueError: kernels that this model needs were not measured.
        """
        return Calibration(
            engine=self.engine,
            engine_version=self.engine_version,
            gpu=self.gpu,
            model=model,
            dtype=dtype,  # type: ignore[arg-type]
            tensor_parallel_size=tensor_parallel_size,
            source=self.source,
            device_time=(self._device_time if self.kernel_times is None else self._sum_of_kernels)(
                model, dtype, tensor_parallel_size, kv_element_bytes
            ),
            cpu_time=_HIDDEN,
            range=self.range,
        )

    def _device_time(self, model: Model, dtype: str, n: int, kv_element_bytes: float) -> DeviceTime:
        reached, bytes_per_weight = self.efficiencies, 1.0 if dtype == "fp8" else BF16_BYTES
        flops_per_s = n * self._peak(dtype == "fp8") * reached.flops_efficiency
        attended_per_s = n * self._peak(kv_element_bytes == 1) * reached.flops_efficiency
        weights_per_s = self.gpu.bytes_per_s * reached.bandwidth_efficiency
        kv_per_s = self.gpu.bytes_per_s * reached.kv_bandwidth_efficiency
        ring = links_of(model, self.gpu, n, 1, reached.link_latency_s, reached.link_efficiency)
        kernels_s = 2 * model.layers * reached.all_reduce_s if n > 1 else 0.0  # of all-reduces that are no ring
        s_per_kv_token = kv_bytes_per_token(model, n, kv_element_bytes) / kv_per_s
        return DeviceTime(
            s_per_token=2.0 * model.num_active_params / flops_per_s + ring.s_per_token,
            s_per_attended_token=4.0 * model.layers * model.heads * model.head_dim / attended_per_s,
            weights_s=sum(weight_bytes_read(model, bytes_per_weight)) / (n * weights_per_s),
            s_per_kv_token=s_per_kv_token,
            serial_share=reached.serial_share,
            fixed_s=reached.fixed_s + kernels_s + ring.fixed_s,
            mixed_s=reached.mixed_s,
            **self._besides(s_per_kv_token),
        )

    def _sum_of_kernels(self, model: Model, dtype: str, n: int, kv_element_bytes: float) -> DeviceTime:
        assert self.kernel_times is not None
        besides = self.efficiencies
        activations_per_s = self.gpu.bytes_per_s * besides.bandwidth_efficiency
        step = self.kernel_times.step(model, dtype, n, besides.large_gemm_scale, activations_per_s)
        attention = self.kernel_times.attention_with(kv_element_bytes)
        waits_s = 2 * model.layers * besides.all_reduce_s if n > 1 else 0.0
        s_per_kv_token = kv_bytes_per_token(model, n, kv_element_bytes) / attention.kv_bytes_per_s
        return DeviceTime(
            s_per_token=0.0,
            s_per_attended_token=4.0 * model.layers * model.heads * model.head_dim / (n * attention.flops_per_s),
            weights_s=step.weights_s,
            s_per_kv_token=s_per_kv_token,
            serial_share=1.0,
            fixed_s=besides.fixed_s + model.layers * attention.decode_s + waits_s,
            mixed_s=besides.mixed_s + model.layers * max(0.0, attention.prompt_s - attention.decode_s),
            **self._besides(s_per_kv_token),
            measured_tokens=step.tokens,
            measured_s=step.s,
        )

    def _besides(self, s_per_kv_token: float) -> dict[str, Any]:
        """The fields of DeviceTime that do not depend on how kernels are counted."""
        reached = self.efficiencies
        return {
            "s_per_request": reached.s_per_request,
            "s_per_mixed_kv_token": reached.mixed_kv_share * s_per_kv_token,
            "eager_s": reached.eager_s,
            "launch_s": reached.launch_s,
        }

    def _peak(self, is_fp8: bool) -> float:
        return self.gpu.fp8_flops_per_s if is_fp8 and self.gpu.fp8_flops_per_s else self.gpu.bf16_flops_per_s


_HIDDEN = CpuTime(**dict.fromkeys(("schedule", "update", "front_end"), CpuPart(s=0.0, s_per_request=0.0)))
"""Served results cannot tell the CPU's time from the device's: it is all in `fixed_s`."""


def read_any(path: str | Path) -> Calibration | GpuCalibration:
    """Reads the calibration of one engine, or of a GPU: a file with `efficiencies`.

    Raises:
        ValueError: in one line: no such file, or what is wrong in it.
    """
    place = located(path)
    try:
        data = yaml.safe_load(place.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return read(path)  # says what is wrong
    if not isinstance(data, Mapping) or "efficiencies" not in data:
        return read(path)
    try:
        return GpuCalibration.model_validate(data)
    except ValidationError as error:
        lines = [f"{'.'.join(str(one) for one in line['loc'])}: {line['msg']}" for line in error.errors()]
        raise ValueError(f"calibration {path}: {'; '.join(lines)}") from error
    except ValueError as error:
        raise ValueError(f"calibration {path}: {error}") from error


def read_for(
    path: str | Path, model: Model, dtype: str, tensor_parallel_size: int, kv_element_bytes: float = BF16_BYTES
) -> Calibration:
    """Reads a calibration, and where it is a GPU's, returns what it says of this engine.

    Raises:
        ValueError: in one line: no such file, what is wrong in it, or what of this engine was not measured.
    """
    found = read_any(path)
    if isinstance(found, Calibration):
        return found
    try:
        return found.of(model, dtype, tensor_parallel_size, kv_element_bytes)
    except ValueError as error:
        raise ValueError(f"calibration {path}: {error}") from error


def write_gpu(calibration: GpuCalibration, path: Path) -> None:
    """Writes the calibration of a GPU, with a first line for whoever opens it."""
    write(calibration, path, "What engines reach of this GPU's peaks, by served results; docs/accuracy.md says how well.")
