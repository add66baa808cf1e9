"""Options of an engine: vLLM's, under its names, and what its step time and memory are reckoned with."""

from typing import Literal, Self

from pydantic import Field, model_validator

from replicas.catalog import Model
from replicas.memory import BF16_BYTES, CUDA_GRAPH_BYTES, FP32_BYTES, weight_bytes_read
from sim.params import Params


class EngineOptions(Params):
    """What an engine is started with; those of vLLM keep its names and its API server's defaults (0.32.0)."""

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
    def _budget_holds_a_token_each(self) -> Self:
        tokens, seqs = self.max_num_batched_tokens, self.max_num_seqs
        if tokens is not None and seqs is not None and tokens < seqs:
            raise ValueError(f"max_num_batched_tokens {tokens} must be at least max_num_seqs {seqs}")
        return self

    @model_validator(mode="after")
    def _baselines_are_plain(self) -> Self:
        asked = {
            "enable_prefix_caching": self.enable_prefix_caching,
            "num_speculative_tokens": self.num_speculative_tokens,
            "jump_forward": self.jump_forward,
            "scheduling_policy lpm": self.scheduling_policy == "lpm",
            "long_prefill_token_threshold": self.long_prefill_token_threshold > 0,
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
    def _pipelines_are_vllms(self) -> Self:
        asked = {
            f"batching {self.batching}": self.batching != "continuous",
            "jump_forward": self.jump_forward,
            "num_speculative_tokens and async_scheduling false": self.num_speculative_tokens > 0 and not self.async_scheduling,
        }
        for what, is_asked in asked.items():
            if is_asked and self.pipeline_parallel_size > 1:
                raise ValueError(f"pipeline_parallel_size {self.pipeline_parallel_size} does not go with {what}")
        return self

    @property
    def weight_dtype(self) -> str:
        """What the weights are kept in: fp8, bfloat16, float16 or float32."""
        return self.quantization or ("bfloat16" if self.dtype == "auto" else self.dtype)

    @property
    def kv_dtype(self) -> str:
        """What the KV cache is kept in: fp8, bfloat16, float16 or float32."""
        unquantized = "bfloat16" if self.dtype == "auto" else self.dtype
        return "fp8" if self.kv_cache_dtype == "fp8" else unquantized

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

    @property
    def splits_prompts(self) -> bool:
        """Whether a prompt may take several steps."""
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
