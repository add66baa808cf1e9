"""An engine as numbers: vLLM's options in, its limits and step-time coefficients out."""

from functools import cached_property
from typing import Any, ClassVar

from pydantic import model_validator

from replicas.calibration.file import Calibration
from replicas.calibration.gpu import GpuCalibration, read_any, read_for
from replicas.catalog import Gpu, Model
from replicas.memory import (
    CONTEXT_BYTES,
    GIB,
    MemoryBreakdown,
    activation_bytes,
    kv_bytes_per_token,
    weight_bytes,
)
from replicas.options import EngineOptions
from replicas.record_limits import check_fields, check_held_tokens
from replicas.roofline import roofline
from replicas.schedulers import STATIC, VLLM
from replicas.vllm.defaults import defaults
from sim.records import ENGINE, records

NUM_NULL_BLOCKS = 1
"""vLLM's `BlockPool` keeps block 0 to itself."""


class Engine(EngineOptions):
    """The engine of a pool's replicas, simulated or real: what it can hold, and how long its steps are taken to last."""

    is_live: ClassVar[bool] = False
    """Whether a real engine is behind it."""

    @model_validator(mode="after")
    def _calibration_decides_alone(self) -> "Engine":
        if self.measured is None:  # reading it raises ValueError
            if self.step_time_scale != 1.0:
                raise ValueError(f"step_time_scale {self.step_time_scale:g} needs a calibration, whose times it multiplies")
            if self.dtype == "float32":
                raise ValueError("dtype float32 needs a calibration: the catalogue has no GPU's float32 rate")
            return self
        given = [name for name in _OF_THE_ROOFLINE if getattr(self, name) != type(self).model_fields[name].default]
        if given:
            what = ", ".join(f"{name} {getattr(self, name):g}" for name in given)
            has, it = ("has", "it") if len(given) == 1 else ("have", "them")
            raise ValueError(f"{what} {has} no effect with a calibration, which has measured {it}; leave {it} out")
        return self

    def engine(self, model: Model, gpu: Gpu) -> Any:
        """Returns the pool's ENGINE record, shape (1,).

        Raises:
            ValueError: the model does not fit, or the options contradict the model or each other.
        """
        self._check_parallelism(model)
        memory = self.memory(model, gpu)
        max_model_len, max_num_seqs, max_num_batched_tokens = self.limits(model, gpu)
        engine = records(ENGINE, 1)
        fields = {
            "scheduler": STATIC if self.batching == "static" else VLLM,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "block_size": self.block_size,
            "num_usable_blocks": memory.num_gpu_blocks - NUM_NULL_BLOCKS,
            "watermark_blocks": int(self.watermark * memory.num_gpu_blocks),
            "max_model_len": max_model_len,
            "enable_chunked_prefill": self.splits_prompts,
            "scheduler_reserve_full_isl": self.scheduler_reserve_full_isl,
            "async_scheduling": self.async_scheduling,
            "num_stages": self.pipeline_parallel_size,
            "prefill_schedule_interval": self.prefill_schedule_interval,
            "long_prefill_token_threshold": self.long_prefill_token_threshold,
            "long_prefill_token_threshold_adaptive": self.long_prefill_token_threshold_adaptive,
            "threshold_binds_alone": self.vllm_version == "0.30",
            "passed_by_go_first": self.vllm_version == "0.30",
            "schedules_by_priority": self.scheduling_policy == "priority",
            "schedules_by_prefix": self.scheduling_policy == "lpm",
            "enable_prefix_caching": bool(self.enable_prefix_caching) or self.scheduling_policy == "lpm",
            "data_parallel_size": self.data_parallel_size,
            "num_together": self.num_sharing(model),
            "max_num_queued_reqs": self.max_num_queued_reqs or 0,
            "max_num_queued_tokens": self.max_num_queued_tokens or 0,
            "reserves_output": self.batching != "continuous",
            "max_loras": self.max_loras,
            "jump_forward": self.jump_forward,
            "num_speculative_tokens": self.num_speculative_tokens,
            "num_lookahead_tokens": self.num_speculative_tokens if self.speculative_method == "eagle" else 0,
            "drops_last_hit": self.num_speculative_tokens > 0 and self.speculative_method == "eagle",
            "acceptance_rate": self.acceptance_rate,
            **roofline(self, model, gpu, max_num_seqs),
            **self._calibrated(model, gpu),
        }
        check_fields(fields)
        for name, value in fields.items():
            engine[name] = value
        check_held_tokens(engine[0])
        return engine

    def memory(self, model: Model, gpu: Gpu) -> MemoryBreakdown:
        """Returns where one GPU's memory goes; print it for a table.

        Raises:
            ValueError: the model does not fit, or not even one sequence of max_model_len does, as vLLM refuses to start.
        """
        memory = self._memory(model, gpu)
        where = f"{model.stage(self.pipeline_parallel_size).name} on {self.tensor_parallel_size} x {gpu.name}"
        if not memory.is_enough:
            raise ValueError(
                f"{where} does not fit: each GPU may use {memory.utilised_bytes / GIB:.1f} GiB "
                f"({memory.total_bytes / GIB:.1f} x gpu_memory_utilization {self.gpu_memory_utilization:g}) and needs "
                f"{memory.weight_bytes / GIB:.1f} for weights, {memory.activation_bytes / GIB:.1f} for activations, "
                f"{memory.context_bytes / GIB:.1f} for context, {memory.cuda_graph_bytes / GIB:.1f} for CUDA graphs, "
                f"{2 * memory.block_bytes / GIB:,.3g} for two KV blocks of {self.block_size:,} tokens; "
                "use a larger tensor_parallel_size or pipeline_parallel_size, quantization: fp8, or a larger GPU"
            )
        usable = (memory.num_gpu_blocks - NUM_NULL_BLOCKS) * self.block_size
        max_model_len = self.limits(model, gpu)[0]
        if usable < max_model_len and not memory.is_given:
            raise ValueError(
                f"{where} has KV cache for {usable} tokens, less than one sequence of max_model_len {max_model_len}: "
                f"set max_model_len to at most {usable}, or use more memory"
            )
        return memory

    def limits(self, model: Model, gpu: Gpu) -> tuple[int, int, int]:
        """Returns (max_model_len, max_num_seqs, max_num_batched_tokens) with the engine's defaults filled in.

        Source: `EngineArgs.get_batch_defaults` and `SchedulerConfig.verify_max_model_len` of vLLM 0.32.0.

        Raises:
            ValueError: max_model_len is above the model's, or the token budget is too small for the other limits.
        """
        length = model.max_model_len if self.max_model_len is None else self.max_model_len
        if length > model.max_model_len:
            raise ValueError(f"max_model_len {length} is above the {model.max_model_len} of {model.name}")
        default_tokens, default_seqs = defaults(gpu)
        tokens, seqs = self.max_num_batched_tokens, self.max_num_seqs
        if tokens is None:
            default_tokens = default_tokens if self.splits_prompts else max(default_tokens, length)
            tokens = min((default_seqs if seqs is None else seqs) * length, default_tokens)
        if seqs is None:
            seqs = min(default_seqs, tokens)
        if tokens < seqs:
            raise ValueError(f"max_num_batched_tokens {tokens}, {gpu.name}'s default, is below max_num_seqs {seqs}")
        if tokens < length and not self.splits_prompts:
            why = "without enable_chunked_prefill" if self.batching == "continuous" else f"with batching {self.batching}"
            raise ValueError(f"max_num_batched_tokens {tokens} must be at least max_model_len {length} {why}")
        return length, seqs, tokens

    def _memory(self, model: Model, gpu: Gpu) -> MemoryBreakdown:
        n = self.tensor_parallel_size
        model = model.stage(self.pipeline_parallel_size)
        _check_split(model, n)
        _, seqs, tokens = self.limits(model, gpu)
        context = CONTEXT_BYTES["single" if n == 1 else "parallel"]
        estimated = activation_bytes(model, n, tokens, seqs)
        block_bytes = kv_bytes_per_token(model, n, self.kv_element_bytes) * self.block_size
        dense, experts = weight_bytes(model, self.weight_element_bytes)
        given = self._given_blocks()
        breakdown = MemoryBreakdown(
            gpu=gpu.name,
            model=model.name,
            tensor_parallel_size=n,
            gpu_memory_utilization=self.gpu_memory_utilization,
            total_bytes=gpu.memory_bytes,
            weight_bytes=(dense + experts / self.num_sharing(model)) / n,
            activation_bytes=estimated if self.activation_bytes is None else self.activation_bytes,
            context_bytes=context if self.context_bytes is None else self.context_bytes,
            cuda_graph_bytes=self.cuda_graph_bytes,
            block_size=self.block_size,
            block_bytes=block_bytes,
            num_gpu_blocks=given or 0,
            is_given=given is not None,
        )
        return breakdown if breakdown.is_given else breakdown.with_blocks()

    def _calibrated(self, model: Model, gpu: Gpu) -> dict[str, Any]:
        """Returns the fields that a calibration decides, none without one."""
        if self.calibration is None:
            return {}
        if self.pipeline_parallel_size > 1:
            raise ValueError(f"calibration {self.calibration} is of an engine with one stage; pipeline_parallel_size must be 1")
        engine = (model, self.weight_dtype, self.tensor_parallel_size, self.kv_element_bytes)
        measured = read_for(self.calibration, *engine)
        wrong = measured.mismatches(model, gpu, self.weight_dtype, self.tensor_parallel_size)
        if wrong:
            raise ValueError(f"calibration {self.calibration} is of another engine: {'; '.join(wrong)}")
        if self.num_sharing(model) != measured.data_parallel_size:
            raise ValueError(
                f"calibration {self.calibration}: data_parallel_size must be {measured.data_parallel_size} for {model.name}, "
                f"as was measured; it is {self.data_parallel_size}"
            )
        fields = measured.engine_fields(self.own_weight_bytes(model), self.step_time_scale)
        fields["overhead_s"] += self.draft_s
        return fields

    @cached_property
    def measured(self) -> Calibration | GpuCalibration | None:
        """The calibration, read once; None for a roofline."""
        return None if self.calibration is None else read_any(self.calibration)

    def _given_blocks(self) -> int | None:
        """Returns the KV blocks that the config states, or else the engine that was measured, in blocks of this size."""
        measured = self.measured
        if self.num_gpu_blocks is not None or measured is None or measured.kv_cache is None:
            return self.num_gpu_blocks
        return measured.kv_cache.num_gpu_blocks * measured.kv_cache.block_size // self.block_size

    def _check_parallelism(self, model: Model) -> None:
        stages, interval = self.pipeline_parallel_size, self.prefill_schedule_interval
        if stages > model.layers:
            raise ValueError(f"pipeline_parallel_size {stages} is above the {model.layers} layers of {model.name}")
        if stages > 1 and self.num_sharing(model) > 1:
            raise ValueError(
                f"pipeline_parallel_size {stages} with data_parallel_size {self.data_parallel_size}: engines of {model.name} "
                "share its experts and step together, and pipelines that do are not simulated"
            )
        if interval > 1 and self.num_sharing(model) == 1:
            raise ValueError(
                f"prefill_schedule_interval {interval} is for data-parallel engines that share experts; {model.name} with "
                f"data_parallel_size {self.data_parallel_size} has none"
            )


_OF_THE_ROOFLINE = (
    "flops_efficiency",
    "bandwidth_efficiency",
    "link_efficiency",
    "link_latency_s",
    "overhead_s",
    "cpu_s",
    "cpu_s_per_request",
)
"""Options that say what a calibration has measured."""


def _check_split(model: Model, n: int) -> None:
    """Refuses a tensor_parallel_size that the model's heads cannot be split or repeated over, as vLLM does."""
    if model.heads % n:
        raise ValueError(f"tensor_parallel_size {n} does not divide the {model.heads} heads of {model.name}")
    if not model.kv_lora_rank and model.kv_heads % n and n % model.kv_heads:
        raise ValueError(f"tensor_parallel_size {n} and {model.name}'s {model.kv_heads} kv_heads: one must divide the other")
