"""`replicas: {kind: vllm}`: the options of a surrogate, given to a real vLLM under the same names."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from replicas.catalog import Gpu, Model
from replicas.engine import Engine
from replicas.live.interface import LiveEngine
from replicas.live.model_shape import vllm_model_config
from replicas.memory import kv_bytes_per_token


class Vllm(Engine):
    """A real vLLM in this process, stepped in virtual time. Takes a surrogate's options, so the same file runs on either.

    What vLLM knows by the same name it is given. What describes step times (efficiencies, overheads, CPU) describes the
    surrogate that plans its capacity, and its shadow. docs/live.md says what it needs and how it is measured.
    """

    is_live: ClassVar[bool] = True

    model: str | None = Field(
        default=None,
        description="vLLM's model: a folder, or a name that is in the local Hugging Face cache; null = random weights in the "
        "shape of the pool's `model`, which cost the same time.",
    )
    engine_args: dict[str, Any] = Field(
        default={}, description="Further arguments of vLLM's EngineArgs, by their names there, such as {dtype: float32}."
    )
    required_version: str = Field(
        default="0.32", description="What the installed vLLM's version must begin with; any = whatever is there, at your risk."
    )
    clock: Literal["wall", "cpu"] = Field(
        default="wall",
        description="What moves virtual time by a step: the wall clock, or the CPU time of the engine's thread, which others "
        "on the machine do not lengthen. cpu is for a CPU engine with one OpenMP thread.",
    )
    measured_start: bool = Field(
        default=True,
        description="Loading weights, starting and capturing last as long as they do here; false: as `lifecycle` says.",
    )
    record_steps: bool = Field(
        default=False, description="Write what each step held and how long it took to steps/MACHINE_steps.jsonl in the results."
    )
    shadow: bool = Field(
        default=False,
        description="A surrogate of the same options serves the same requests beside each live replica; how far it is off is "
        "shown as the run goes, and kept in the results.",
    )

    recalibrate: bool = Field(
        default=False,
        description="With a `calibration`: follow how much longer this engine's steps take, say when that changes for good, "
        "and let all surrogates with the same calibration run at that speed.",
    )

    @model_validator(mode="after")
    def _has_what_is_followed(self) -> "Vllm":
        if self.recalibrate and self.calibration is None:
            raise ValueError("recalibrate needs a calibration to follow")
        return self

    @model_validator(mode="after")
    def _is_clock_of_one_thread(self) -> "Vllm":
        if self.clock == "cpu" and self.tensor_parallel_size > 1:
            raise ValueError(
                f"clock cpu counts one thread of this process, and with tensor_parallel_size {self.tensor_parallel_size} the "
                "model runs in others; use clock: wall"
            )
        return self

    @model_validator(mode="after")
    def _is_something_that_vllm_does(self) -> "Vllm":
        elsewhere = {
            "batching": self.batching != "continuous",
            "jump_forward": self.jump_forward,
            "scheduling_policy": self.scheduling_policy == "lpm",
            "num_speculative_tokens": self.num_speculative_tokens > 0,
            "data_parallel_size": self.data_parallel_size > 1,
            "pipeline_parallel_size": self.pipeline_parallel_size > 1,
            "prefill_schedule_interval": self.prefill_schedule_interval > 1,
        }
        for name, is_asked in elsewhere.items():
            if is_asked:
                allowed = type(self).model_fields[name].default
                raise ValueError(
                    f"{name} {getattr(self, name)}: a live replica does not do that; allowed: {allowed}, or kind: surrogate"
                )
        return self

    def arguments(self, model: Model, gpu: Gpu, enable_prefix_caching: bool) -> dict[str, Any]:
        """Returns what vLLM's `EngineArgs` are made from; `engine_args` has the last word."""
        max_model_len, max_num_seqs, max_num_batched_tokens = self.limits(model, gpu)
        given: dict[str, Any] = {
            "max_model_len": max_model_len,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "enable_prefix_caching": enable_prefix_caching,
            "block_size": self.block_size,
            "enforce_eager": self.enforce_eager,
            "tensor_parallel_size": self.tensor_parallel_size,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "enable_chunked_prefill": self.enable_chunked_prefill,
            "scheduling_policy": self.scheduling_policy,
            "async_scheduling": self.async_scheduling,
        }
        names = ("quantization", "kv_cache_dtype", "watermark", "long_prefill_token_threshold", "scheduler_reserve_full_isl")
        for name in (*names, "long_prefill_token_threshold_adaptive"):
            if getattr(self, name) != type(self).model_fields[name].default:
                given[name] = getattr(self, name)
        if self.dtype != "auto":
            given["dtype"] = self.dtype
        if self.num_gpu_blocks is not None:
            given["num_gpu_blocks_override"] = self.num_gpu_blocks
            given["kv_cache_memory_bytes"] = self._kv_cache_bytes(model, self.num_gpu_blocks)
        if self.model is not None:
            given["model"] = self.model
        return given | self.engine_args

    @property
    def engine_dtype(self) -> str:
        """What the engine computes in: `engine_args` have the last word; auto is taken as bfloat16."""
        dtype = str(self.engine_args.get("dtype", self.dtype))
        return "bfloat16" if dtype == "auto" else dtype

    def _kv_cache_bytes(self, model: Model, num_gpu_blocks: int) -> int:
        element_bytes = 1 if self.kv_cache_dtype == "fp8" else 4 if self.engine_dtype == "float32" else 2
        return int(num_gpu_blocks * self.block_size * kv_bytes_per_token(model, self.tensor_parallel_size, element_bytes))

    def start(self, model: Model, gpu: Gpu, enable_prefix_caching: bool) -> LiveEngine:
        """Starts an engine.

        Raises:
            EngineError: it did not start.
        """
        from replicas.live.engine import VllmEngine  # here: nobody else should wait for it

        return VllmEngine(
            self.arguments(model, gpu, enable_prefix_caching),
            vllm_model_config(model) if self.model is None else None,
            self.required_version,
            self.clock == "cpu",
        )
