"""A replica as numbers: vLLM's options in, the engine's limits and step-time coefficients out."""

from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator

from replicas.calibration.file import Calibration
from replicas.calibration.gpu import GpuCalibration, read_any, read_for
from replicas.catalog import Gpu, Model
from replicas.memory import (
    BF16_BYTES,
    CONTEXT_BYTES,
    CUDA_GRAPH_BYTES,
    FP32_BYTES,
    GIB,
    MemoryBreakdown,
    activation_bytes,
    kv_bytes_per_token,
    weight_bytes,
    weight_bytes_read,
)
from replicas.record_limits import check_fields, check_held_tokens
from replicas.roofline import roofline
from replicas.vllm_defaults import defaults
from sim.params import Params
from sim.records import ENGINE, records

NUM_NULL_BLOCKS = 1
"""vLLM's `BlockPool` keeps block 0 to itself."""


class Surrogate(Params):
    """An engine whose steps are timed by a roofline. Options of vLLM keep its names and its API server's defaults (0.32.0).

    With efficiencies of 1.0 and no overheads, as by default, times are the textbook's lower bound; real engines reach 50 to
    80 % of it. With a `calibration` they are those of a measured engine. Models are taken as bf16 unless `dtype` or
    `quantization` says otherwise.
    """

    tensor_parallel_size: int = Field(default=1, ge=1, description="GPUs that share every layer of one replica.")
    pipeline_parallel_size: int = Field(
        default=1,
        ge=1,
        description="Stages of one replica, each with an even part of the layers on tensor_parallel_size GPUs; steps follow "
        "one another through them. With async_scheduling as vLLM's model runner V2 does it.",
    )
    data_parallel_size: int = Field(
        default=1,
        ge=1,
        description="Engines of one replica, each with tensor_parallel_size GPUs, a scheduler and a cache of its own; the "
        "router chooses among them. Those of a model with experts share them, and step together.",
    )
    calibration: str | None = Field(
        default=None,
        min_length=1,
        description="File with the step time measured on such an engine (`kind: calibrate` makes it, docs/calibration.md "
        "explains it), or what engines reach of such a GPU (`kind: calibrate_gpu`); one that is not there is looked for in the "
        "project's own folder. null = the roofline of its data sheet.",
    )
    step_time_scale: float = Field(
        default=1.0,
        gt=0,
        description="With a calibration: multiplies its times, for a machine that has become slower or faster.",
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto",
        description="Of weights and KV cache that are not quantized; auto = bfloat16. float32 needs a calibration.",
    )
    quantization: Literal["fp8"] | None = Field(
        default=None, description="fp8: weights take one byte, and arithmetic runs at the GPU's fp8 rate if it has one."
    )
    kv_cache_dtype: Literal["auto", "fp8"] = Field(default="auto", description="auto = as `dtype`, fp8 = 1 byte.")
    max_model_len: int | None = Field(default=None, ge=1, description="Longest sequence in tokens; null = the model's.")
    max_num_seqs: int | None = Field(
        default=None, ge=1, description="Most requests in a step; null = 1024, or 256 on GPUs below 70 GiB and A100s."
    )
    max_num_batched_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens in a step; null = 16384 from 160 GiB, 8192 from 70 GiB, 2048 below and on A100s.",
    )
    max_num_queued_reqs: int | None = Field(
        default=None,
        ge=1,
        description="Most requests of a replica, waiting and running, of all its data-parallel engines together; one more is "
        "refused (HTTP 503), and not sent to another replica. null = no limit.",
    )
    max_num_queued_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Prompt tokens of requests without a first token from which on a replica refuses more (HTTP 503); null = "
        "no limit.",
    )
    enable_chunked_prefill: bool = Field(default=True, description="Split a prompt over steps when the budget is short.")
    scheduler_reserve_full_isl: bool = Field(
        default=True, description="Admit a request only if its whole prompt fits in free blocks, not just its first chunk."
    )
    long_prefill_token_threshold: int = Field(
        default=0, ge=0, description="Most tokens of one prompt in a step while others wait or run; 0 = no limit."
    )
    long_prefill_token_threshold_adaptive: bool = Field(
        default=False, description="Do not cut a prompt below an even share of max_num_batched_tokens among all requests."
    )
    scheduling_policy: Literal["fcfs", "priority", "lpm"] = Field(
        default="fcfs",
        description="Who is admitted first: by arrival, by the priority of `classes` (who is then also preempted last), or as "
        "SGLang does by the longest prefix in the cache (lpm).",
    )
    enable_prefix_caching: bool | None = Field(
        default=None,
        description="Begin with the KV blocks of an earlier request that had the same first tokens; null = if the traffic "
        "says what requests share. vLLM's default is true; without shared tokens that serves only preempted requests.",
    )
    max_loras: int = Field(default=1, ge=1, description="Most distinct adapters in one step, where `classes` use adapters.")
    max_lora_rank: int = Field(default=16, ge=1, description="Rank of the adapters: what a step reads for each one.")
    num_speculative_tokens: int = Field(default=0, ge=0, description="Tokens drafted for each decode; 0 = no speculation.")
    speculative_method: Literal["ngram", "eagle"] = Field(
        default="eagle",
        description="Who drafts: eagle keeps KV slots for its drafts and recomputes the last block of a prefix hit.",
    )
    acceptance_rate: float = Field(
        default=0.7, ge=0, le=1, description="Chance that a draft is accepted if those before it were."
    )
    jump_forward: bool = Field(
        default=False,
        description="Append text that a grammar forces at once and compute it like a short prefill, as SGLang does (vLLM does "
        "not); needs async_scheduling false. How much is forced: `classes`.",
    )
    draft_s: float = Field(default=0.0, ge=0, description="GPU time of drafting in a step, in seconds.")
    batching: Literal["continuous", "orca", "static"] = Field(
        default="continuous",
        description="continuous: vLLM's. Baselines from before paged caches, which set KV aside for the whole answer and do "
        "not split prompts: orca admits whenever a request leaves, static only when all have.",
    )
    vllm_version: Literal["0.30", "0.32"] = Field(
        default="0.32",
        description="Whose scheduler it follows: 0.30 also cuts a long prompt that is alone, and puts requests that it passed "
        "by, as their grammar or adapter was missing, ahead of all others. docs/fidelity.md has more.",
    )
    prefill_schedule_interval: int = Field(
        default=1,
        ge=1,
        description="Of data-parallel engines that share experts: prefills only in every so many steps, in the same of all "
        "engines, unless more wait than one such step takes in.",
    )
    watermark: float = Field(default=0.0, ge=0, lt=1, description="Share of the KV blocks kept free at admission.")
    async_scheduling: bool = Field(default=True, description="Plan the next step while the GPU runs this one.")
    block_size: int = Field(default=16, ge=1, description="Tokens in a KV block.")
    gpu_memory_utilization: float = Field(default=0.92, gt=0, le=1, description="Share of a GPU's memory that the engine uses.")
    num_gpu_blocks: int | None = Field(
        default=None,
        ge=2,
        description="KV blocks, as a real engine's log states them; null = the calibration's, or computed from memory.",
    )
    activation_bytes: float | None = Field(default=None, ge=0, description="Peak of temporaries per GPU; null = estimated.")
    context_bytes: float | None = Field(
        default=None, ge=0, description="CUDA, NCCL and kernels per GPU; null = 0.27 GiB alone, 2.1 GiB in tensor parallel."
    )
    cuda_graph_bytes: float = Field(
        default=CUDA_GRAPH_BYTES, ge=0, description="Set aside for CUDA graphs per GPU; 0 = vLLM before 0.21."
    )
    flops_efficiency: float = Field(default=1.0, gt=0, le=1, description="Share of the GPU's peak arithmetic that is reached.")
    bandwidth_efficiency: float = Field(default=1.0, gt=0, le=1, description="Share of the peak memory bandwidth reached.")
    link_efficiency: float = Field(default=1.0, gt=0, le=1, description="Share of the peak link bandwidth reached.")
    link_latency_s: float = Field(
        default=2e-6, ge=0, description="One message between GPUs, in seconds; 2 us illustrates docs/sources.md [1]."
    )
    overhead_s: float = Field(default=0.0, ge=0, description="Fixed GPU time of a step, in seconds.")
    enforce_eager: bool = Field(
        default=False, description="Do without CUDA graphs; with them, a step's tokens are padded to the next graph's size."
    )
    grammar_cpu_s_per_request: float = Field(
        default=0.0, ge=0, description="CPU time of a step for the mask of each request with structured output, in seconds."
    )
    cpu_s: float = Field(default=0.0, ge=0, description="Fixed CPU time of a step, in seconds.")
    cpu_s_per_request: float = Field(
        default=0.0, ge=0, description="CPU time of a step for each scheduled request, in seconds."
    )

    @model_validator(mode="after")
    def _budget_holds_a_token_each(self) -> "Surrogate":
        tokens, seqs = self.max_num_batched_tokens, self.max_num_seqs
        if tokens is not None and seqs is not None and tokens < seqs:
            raise ValueError(f"max_num_batched_tokens {tokens} must be at least max_num_seqs {seqs}")
        return self

    @model_validator(mode="after")
    def _baselines_are_plain(self) -> "Surrogate":
        asked = {
            "enable_prefix_caching": self.enable_prefix_caching,
            "num_speculative_tokens": self.num_speculative_tokens,
            "jump_forward": self.jump_forward,
            "scheduling_policy lpm": self.scheduling_policy == "lpm",
        }
        for what, is_asked in asked.items():
            if is_asked and self.batching != "continuous":
                raise ValueError(f"batching {self.batching} has no {what}; that needs batching continuous")
        if self.jump_forward and self.async_scheduling:
            raise ValueError("jump_forward needs async_scheduling false: the next step depends on what this one forces")
        if self.scheduling_policy == "lpm" and self.enable_prefix_caching is False:
            raise ValueError(
                "scheduling_policy lpm sorts by what is in the prefix cache; enable_prefix_caching must not be false"
            )
        return self

    @model_validator(mode="after")
    def _pipelines_are_vllms(self) -> "Surrogate":
        asked = {
            f"batching {self.batching}": self.batching != "continuous",
            "jump_forward": self.jump_forward,
            "num_speculative_tokens and async_scheduling false": self.num_speculative_tokens > 0 and not self.async_scheduling,
        }
        for what, is_asked in asked.items():
            if is_asked and self.pipeline_parallel_size > 1:
                raise ValueError(f"pipeline_parallel_size {self.pipeline_parallel_size} does not go with {what}")
        return self

    @model_validator(mode="after")
    def _calibration_decides_alone(self) -> "Surrogate":
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
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "block_size": self.block_size,
            "num_usable_blocks": memory.num_gpu_blocks - NUM_NULL_BLOCKS,
            "watermark_blocks": int(self.watermark * memory.num_gpu_blocks),
            "max_model_len": max_model_len,
            "enable_chunked_prefill": self._splits_prompts,
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
            "admits_when_empty": self.batching == "static",
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
            default_tokens = default_tokens if self._splits_prompts else max(default_tokens, length)
            tokens = min((default_seqs if seqs is None else seqs) * length, default_tokens)
        if seqs is None:
            seqs = min(default_seqs, tokens)
        if tokens < seqs:
            raise ValueError(f"max_num_batched_tokens {tokens}, {gpu.name}'s default, is below max_num_seqs {seqs}")
        if tokens < length and not self._splits_prompts:
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

    @property
    def weight_dtype(self) -> str:
        """What the weights are kept in: fp8, bfloat16, float16 or float32."""
        return self.quantization or ("bfloat16" if self.dtype == "auto" else self.dtype)

    @property
    def kv_dtype(self) -> str:
        """What the KV cache is kept in: fp8, bfloat16, float16 or float32."""
        unquantized = "bfloat16" if self.dtype == "auto" else self.dtype
        return "fp8" if self.kv_cache_dtype == "fp8" else unquantized

    def _given_blocks(self) -> int | None:
        """Returns the KV blocks that the config states, or else the engine that was measured, in blocks of this size."""
        measured = self.measured
        if self.num_gpu_blocks is not None or measured is None or measured.kv_cache is None:
            return self.num_gpu_blocks
        return measured.kv_cache.num_gpu_blocks * measured.kv_cache.block_size // self.block_size

    @property
    def gpus_per_engine(self) -> int:
        """GPUs that one engine takes."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def num_sharing(self, model: Model) -> int:
        """Returns how many of a replica's engines share the model's experts, and so step together."""
        return self.data_parallel_size if model.num_experts else 1

    def own_weight_bytes(self, model: Model) -> float:
        """Returns the bytes of the weights that one engine reads in a step: of shared experts, its part."""
        dense, experts = weight_bytes_read(model, self.weight_element_bytes)
        return dense + experts / self.num_sharing(model)

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

    @property
    def _splits_prompts(self) -> bool:
        return self.enable_chunked_prefill and self.batching == "continuous"

    @property
    def weight_element_bytes(self) -> float:
        """Bytes of a weight."""
        return 1.0 if self.quantization == "fp8" else self._unquantized_bytes

    @property
    def kv_element_bytes(self) -> float:
        """Bytes of an element of the KV cache."""
        return 1.0 if self.kv_cache_dtype == "fp8" else self._unquantized_bytes

    @property
    def _unquantized_bytes(self) -> float:
        return FP32_BYTES if self.dtype == "float32" else BF16_BYTES


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
