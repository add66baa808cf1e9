"""A calibration: how long the steps of one engine take, as fitted to steps that were measured on it. One small YAML file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from replicas.calibration.fitted import NOT_STATED, Dtype, Fitted
from replicas.calibration.mixture import Mixture, mixture_of
from replicas.catalog import Gpu, Model, gpu, gpus, model, models
from sim.params import Params
from sim.records import MAX_KNOTS
from sim.shipped import all_shipped, shipped_file
from sim.step_terms import set_by

Floats = NDArray[np.float64]
SHORTEST_S = 1e-9
"""A time to read the weights that counts as none: as a bandwidth, zero could not be written."""


class DeviceTime(Params):
    """The device's part of a step, as docs/design.md has it (A step's time).

    A = s_per_token * tokens + s_per_attended_token * sum of n (c + n/2), the arithmetic of n new tokens on c cached ones;
    M = weights_s + s_per_kv_token * sum of (c + n), the memory; the step takes max(A, M) + serial_share * min(A, M), and the
    terms of `sim.step_terms`.
    With `measured_s`, what was measured at the step's number of tokens, padding included, is added. Engines that share experts
    each do an even part of the experts' arithmetic for the tokens of all, so for engines that all do the same, s_per_token is
    what each token of their own takes.
    """

    s_per_token: float = Field(ge=0, description="Arithmetic for each new token, padding included.")
    s_per_attended_token: float = Field(ge=0, description="Arithmetic for each pair of a new token and one it attends to.")
    weights_s: float = Field(ge=SHORTEST_S, description="Reading all weights once.")
    s_per_kv_token: float = Field(ge=0, description="Reading or writing the KV of one token.")
    serial_share: float = Field(ge=0, le=1, description="Share of the shorter of A and M that the longer does not hide.")
    fixed_s: float = Field(ge=0, description="What every step takes, whatever is in it.")
    s_per_request: float = Field(ge=0, description="For each request in the step.")
    mixed_s: float = Field(
        default=0.0,
        ge=0,
        description="More for a step with prompt tokens, which no CUDA graph holds as a whole. Fitted to served results only.",
    )
    eager_s: float = Field(
        default=0.0,
        ge=0,
        description="More for a step of more tokens than the largest CUDA graph. Fitted to served results only.",
    )
    s_per_mixed_kv_token: float = Field(
        default=0.0,
        ge=0,
        description="More for each token of KV in a step with prompt tokens: attention is then one kernel for all, which reads "
        "what decodes have cached less well than the kernel for decodes alone. Fitted to kernel profiles only.",
    )
    launch_s: float = Field(
        default=0.0,
        ge=0,
        description="The least that a step with prompt tokens takes: the CPU launches its kernels one by one.",
    )
    measured_tokens: list[float] | None = Field(
        default=None, max_length=MAX_KNOTS, description="Numbers of new tokens at which the kernels of a step were measured."
    )
    measured_s: list[float] | None = Field(
        default=None,
        max_length=MAX_KNOTS,
        description="What they took, besides the terms above; between and beyond them on lines.",
    )
    link_s: float = Field(
        default=0.0, ge=0, description="Messages between GPUs in every step, where they were not measured with the rest."
    )
    link_s_per_token: float = Field(
        default=0.0,
        ge=0,
        description="The same, for each new token, padding included; of engines that share experts, in the longest step.",
    )

    @model_validator(mode="after")
    def _was_measured_often_enough(self) -> "DeviceTime":
        tokens, seconds = len(self.measured_tokens or []), len(self.measured_s or [])
        if tokens != seconds or tokens == 1:
            raise ValueError(
                f"measured_tokens has {tokens} numbers, measured_s {seconds}; both must have none, or as many and two"
            )
        return self

    def measured_at(self, tokens: Floats) -> Floats:
        """Returns (n,) what was measured, with so many tokens: between two numbers, and beyond the last, on a line.

        Source: `replicas.step_time.measured_s`.
        """
        if not self.measured_tokens:
            return np.zeros(len(tokens))
        known, took = np.array(self.measured_tokens), np.array(self.measured_s)
        low = np.clip(np.searchsorted(known, tokens, side="right") - 1, 0, len(known) - 2)
        share = (tokens - known[low]) / (known[low + 1] - known[low])
        return np.asarray(took[low] + share * (took[low + 1] - took[low]))


class CpuPart(Params):
    """One part of the CPU's work around a step."""

    s: float = Field(ge=0, description="In every step.")
    s_per_request: float = Field(ge=0, description="For each request in the step.")


class CpuTime(Params):
    """The CPU's work around a step, in the order in which it is done."""

    schedule: CpuPart = Field(description="Planning the step.")
    update: CpuPart = Field(description="Taking the tokens in.")
    front_end: CpuPart = Field(description="Between two steps: handing tokens out, letting requests in.")

    @property
    def s(self) -> float:
        """The fixed seconds of all parts."""
        return self.schedule.s + self.update.s + self.front_end.s

    @property
    def s_per_request(self) -> float:
        """The seconds per request of all parts."""
        return self.schedule.s_per_request + self.update.s_per_request + self.front_end.s_per_request


class FittedRange(Params):
    """The smallest and the largest step among those that were fitted, in each respect."""

    num_requests: list[float] = Field(min_length=2, max_length=2, description="Requests in a step.")
    num_tokens: list[float] = Field(min_length=2, max_length=2, description="New tokens in a step.")
    attended_tokens: list[float] = Field(min_length=2, max_length=2, description="Sum of n (c + n/2).")
    kv_tokens: list[float] = Field(min_length=2, max_length=2, description="Sum of c + n.")


class Residuals(Params):
    """How far the fit is from the steps it was fitted to: |fitted / measured - 1| of the device's time, drift included."""

    num_steps: int = Field(ge=1, description="Steps that were fitted.")
    p50: float = Field(ge=0, description="Half of the steps are closer.")
    p90: float = Field(ge=0, description="Nine in ten are closer.")
    p99: float = Field(ge=0, description="99 in 100 are closer.")
    mean: float = Field(description="Mean of fitted / measured - 1: the sign of what is left.")


class Spread(Params):
    """How much steps of the same shape differ when measured again: |measured / median of its shape - 1|."""

    num_shapes: int = Field(ge=0, description="Shapes that were measured at least three times.")
    p50: float | None = Field(default=None, ge=0, description="Half of the repeats are closer.")
    p90: float | None = Field(default=None, ge=0, description="Nine in ten are closer.")


class Drift(Params):
    """How the machine's speed strayed while it was measured, as factors on step times; the coefficients are for 1."""

    window_s: float = Field(gt=0, description="Seconds between two instants at which it was fitted.")
    fastest: float = Field(gt=0, description="Smallest factor.")
    slowest: float = Field(gt=0, description="Largest factor.")
    spread: float = Field(ge=0, description="Standard deviation of the factors.")


class KvCache(Params):
    """The KV blocks that the engine made for itself."""

    num_gpu_blocks: int = Field(ge=2, description="vLLM's num_gpu_blocks, its null block included.")
    block_size: int = Field(ge=1, description="Tokens in one.")


class Memory(Params):
    """What one device held once the engine had started, in bytes; absent = the engine does not say."""

    weights: float | None = Field(default=None, ge=0, description="All parameters.")
    kv_cache: float | None = Field(default=None, ge=0, description="All KV blocks.")
    activations: float | None = Field(
        default=None, ge=0, description="The most that a step takes, as vLLM found when it started."
    )
    graphs: float | None = Field(default=None, ge=0, description="CUDA graphs, as vLLM estimates them.")


class Calibration(Params):
    """One engine's step time: for which engine, the coefficients, and how good they are."""

    format: Literal[1] = Field(default=1, description="Of this file.")
    engine: str = Field(default="vllm", description="The engine that was measured.")
    engine_version: str | None = Field(default=None, description="Its version; null = not recorded.")
    gpu: Gpu = Field(description="The device: a name of the catalogue, or a mapping.")
    model: Model = Field(description="The model: a name of the catalogue, or a mapping.")
    dtype: Dtype = Field(description="Of weights and activations.")
    tensor_parallel_size: int = Field(default=1, ge=1, description="GPUs of the engine.")
    data_parallel_size: int = Field(default=1, ge=1, description="Engines that share the model's experts and step together.")
    source: str = Field(description="What was measured, and how the file was made from it.")
    fitted: Fitted = Field(default=NOT_STATED, description="What else is known of the engine, besides the keys above.")
    device_time: DeviceTime = Field(description="Coefficients of the device's time.")
    cpu_time: CpuTime = Field(description="Coefficients of the CPU's time.")
    relative_errors: dict[str, float] = Field(
        default={}, description="Standard error of a coefficient of device_time over its value; absent = not identified."
    )
    not_identified: list[str] = Field(default=[], description="What these steps cannot tell, and where it is counted.")
    range: FittedRange = Field(description="Steps outside it are extrapolated by the form, and flagged.")
    residuals: Residuals | None = Field(default=None, description="Of the fit.")
    repeat_spread: Spread | None = Field(default=None, description="Of the measurement.")
    drift: Drift | None = Field(default=None, description="Of the machine under measurement; null = taken as constant.")
    kv_cache: KvCache | None = Field(default=None, description="Used where a config gives no num_gpu_blocks.")
    memory_bytes: Memory | None = Field(default=None, description="Of one device, as the engine said; null = it was not asked.")
    steps: str | None = Field(default=None, description="The fitted steps, a Parquet file beside this one.")

    @model_validator(mode="before")
    @classmethod
    def _look_up(cls, data: Any) -> Any:
        found = {"gpu": gpu, "model": model}
        return {key: found[key](one) if key in found and isinstance(one, str) else one for key, one in data.items()}

    def mismatches(self, model: Model, gpu: Gpu, dtype: str, tensor_parallel_size: int) -> list[str]:
        """Returns what of an engine is not what was measured, in words; empty when the calibration is good for it."""
        pairs = {
            "model": (self.model.name, model.name),
            "gpu": (self.gpu.name, gpu.name),
            "dtype": (self.dtype, dtype),
            "tensor_parallel_size": (self.tensor_parallel_size, tensor_parallel_size),
        }
        return [f"{what} is {here}, measured was {there}" for what, (there, here) in pairs.items() if there != here]

    @property
    def engines(self) -> Fitted:
        """The engines that it was fitted to: this one."""
        stated = {
            "models": [self.model.name],
            "architectures": [self.model.architecture],
            "tensor_parallel_sizes": [self.tensor_parallel_size],
            "dtypes": [self.dtype],
        }
        return self.fitted.model_copy(update=stated)

    @property
    def mixture(self) -> Mixture:
        """The model's experts, as these engines share them."""
        return mixture_of(self.model, self.data_parallel_size)

    def engine_fields(self, weight_bytes: float, scale: float = 1.0) -> dict[str, Any]:
        """Returns the ENGINE fields that this calibration decides.

        Seconds become rates: an arithmetic unit is a second, and the weights are read at the bandwidth that takes
        `weights_s` for `weight_bytes`, so that experts and adapters that a step does not touch take no time.

        Args:
            weight_bytes: those on the engine's GPUs.
            scale: multiplies all times.
        """
        device, cpu, experts = self.device_time, self.cpu_time, self.mixture
        bytes_per_s = weight_bytes / device.weights_s
        return {
            "flops_per_token": device.s_per_token * (1 - experts.shared_flops),
            "expert_flops_per_token": device.s_per_token * experts.shared_flops / experts.num_ranks,
            "flops_per_attended_token": device.s_per_attended_token,
            "flops_per_s": 1.0 / scale,
            "kv_bytes_per_token": device.s_per_kv_token * bytes_per_s,
            "bytes_per_s": bytes_per_s / scale,
            "serial_share": device.serial_share,
            **set_by(device, cpu, scale),
            **_knots(device.measured_tokens or [], device.measured_s or [], scale),
            "fitted_requests": self.range.num_requests[1],
            "fitted_tokens": self.range.num_tokens[1],
            "fitted_attended_tokens": self.range.attended_tokens[1],
            "fitted_kv_tokens": self.range.kv_tokens[1],
        }

    @property
    def document(self) -> dict[str, Any]:
        """The file's content: catalogued names where there are some, fractions to five digits."""
        return document_of(self)


def _knots(tokens: list[float], seconds: list[float], scale: float) -> dict[str, Any]:
    """The ENGINE fields of what was measured at some numbers of tokens."""
    padding = [0.0] * (MAX_KNOTS - len(tokens))
    return {"num_knots": len(tokens), "knot_tokens": [*tokens, *padding], "knot_s": [*(scale * s for s in seconds), *padding]}


def document_of(calibration: Params) -> dict[str, Any]:
    """Returns what a file of `calibration` holds: catalogued names where there are some, fractions to five digits."""
    data = calibration.model_dump(mode="json", exclude_none=True)
    if isinstance(calibration, Calibration):  # terms that only other kinds of fits have say nothing here
        data["device_time"] = calibration.device_time.model_dump(mode="json", exclude_defaults=True)
    known: dict[str, Any] = {"gpu": gpus(), "model": models()}
    for key in [key for key in known if key in data]:
        value = getattr(calibration, key)
        is_known = known[key].get(value.name) == value
        data[key] = value.name if is_known else value.model_dump(mode="json", exclude_defaults=True)
    rounded: dict[str, Any] = _rounded(data)
    return rounded


def located(path: str | Path) -> Path:
    """Returns where a calibration file is: at `path` as given, or else among those that come with the project, by its name.

    Raises:
        ValueError: in one line: it is at neither place.
    """
    given = Path(path).expanduser()
    if given.exists():
        return given
    ours = shipped_file(given, "calibrations")
    if ours is not None:
        return ours
    known = ", ".join(sorted(file.stem for file in all_shipped("calibrations")))
    place = "" if given.is_absolute() else f" at {given.absolute()}"
    raise ValueError(f"calibration {path}: no such file{place}; `kind: calibrate` makes one; shipped: {known}")


def read(path: str | Path) -> Calibration:
    """Reads a calibration file.

    Raises:
        ValueError: in one line: no such file, or what is wrong in it.
    """
    place = located(path)
    try:
        data = yaml.safe_load(place.read_text(encoding="utf-8"))
        if not isinstance(data, Mapping):
            raise ValueError("is not a mapping of keys to values")
        return Calibration.model_validate(data)
    except ValidationError as error:
        lines = [f"{'.'.join(str(one) for one in line['loc'])}: {line['msg']}" for line in error.errors()]
        raise ValueError(f"calibration {path}: {'; '.join(lines)}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
        raise ValueError(f"calibration {path}: {' '.join(str(error).split())}") from error


_HEAD = "How long a step of this engine takes, as measured. Times in seconds; docs/calibration.md explains each key."


def write(calibration: Params, path: Path, head: str = _HEAD) -> None:
    """Writes a calibration file, with a first line for whoever opens it."""
    text = yaml.dump(document_of(calibration), Dumper=_Dumper, sort_keys=False, width=120)
    path.write_text(f"# {head}\n{text}", encoding="utf-8")


class _Dumper(yaml.SafeDumper):
    """PyYAML's, with pairs and small mappings on one line, and numbers that YAML 1.1 and 1.2 both read as numbers."""


def _float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    text = repr(float(value))
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


def _list(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.SequenceNode:
    is_short = all(isinstance(value, (int, float)) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=is_short)


def _mapping(dumper: yaml.SafeDumper, values: dict[str, Any]) -> yaml.MappingNode:
    is_short = len(values) <= 5 and all(isinstance(value, (int, float)) for value in values.values())
    return dumper.represent_mapping("tag:yaml.org,2002:map", list(values.items()), flow_style=is_short)


_Dumper.add_representer(float, _float)
_Dumper.add_representer(list, _list)
_Dumper.add_representer(dict, _mapping)


def _rounded(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_rounded(value) for value in data]
    is_fraction = isinstance(data, float) and abs(data) < 100 and not data.is_integer()
    return float(f"{data:.5g}") if is_fraction else data
