"""One copy of a model on the GPUs it takes: what it holds, how fast it answers, and how much of its peak a prefill reaches."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from planning.steps import decode_step_s, equal_requests, prefill_s
from replicas.catalog import Gpu, Model
from replicas.engine import Engine
from replicas.memory import kv_bytes_per_token
from replicas.roofline import NETWORK_BYTES_PER_S
from replicas.step_time import is_outside_range
from sim.checks import check_positive, check_share


@dataclass(frozen=True)
class Instance:
    """A model on the GPUs of one engine, of a pipeline of them, or of a group that shares its experts.

    A stage of a pipeline is a part of the layers. In a group of expert_parallel_size GPUs each has the whole of attention and
    requests of its own, and its share of every layer's experts, which serve the tokens of all: wide expert parallelism, as
    DeepSeek's. A plan simulates neither.
    """

    replicas: Engine  # its tensor_parallel_size is that of each stage
    model: Model
    gpu: Gpu
    num_stages: int = 1
    expert_parallel_size: int = 1

    def __post_init__(self) -> None:
        if self.expert_parallel_size > 1:
            if not self.model.num_experts:
                raise ValueError(f"expert_parallel_size {self.expert_parallel_size}: {self.model.name} has no experts")
            if self.num_stages > 1 or self.replicas.tensor_parallel_size > 1:
                raise ValueError("a group that shares experts has no pipeline and no tensor parallelism")

    @property
    def num_gpus(self) -> int:
        """GPUs of the instance."""
        return self.replicas.tensor_parallel_size * self.num_stages * self.expert_parallel_size

    @property
    def is_simulated(self) -> bool:
        """Whether a plan simulates such instances."""
        return self.num_stages == self.expert_parallel_size == 1

    @cached_property
    def stage_model(self) -> Model:
        """What one engine holds, as a model of its own: its share of layers and weights, or of the experts' weights alone."""
        model = self.model
        if self.expert_parallel_size > 1:
            others = model.num_expert_params * (self.expert_parallel_size - 1) // self.expert_parallel_size
            return model.model_copy(update={"num_params": model.num_params - others})
        return model.stage(self.num_stages)

    @cached_property
    def engine(self) -> Any:
        """The ENGINE record of one stage, or of one GPU of a group.

        Raises:
            ValueError: the weights do not fit, or not even one sequence of max_model_len does.
        """
        engine = self.replicas.engine(self.stage_model, self.gpu)[0]
        size = self.expert_parallel_size
        if size > 1:  # arithmetic, attention and what a token hits are the whole model's
            experts = engine.expert_weight_bytes
            engine.dense_weight_bytes += experts * (size - 1) / size
            engine.expert_weight_bytes = experts / size
            engine.expert_hit_share = 1 - (1 - engine.expert_hit_share) ** size
            engine.flops_per_token = 2.0 * self.model.num_active_params
        return engine

    @cached_property
    def cache_tokens(self) -> int:
        """Tokens whose KV fits in the instance: every stage holds its layers' part of each, a GPU of a group its requests'."""
        return self.replicas.memory(self.stage_model, self.gpu).num_tokens * self.expert_parallel_size

    @property
    def peak_flops_per_s(self) -> float:
        """Peak arithmetic of the GPUs of one stage, or of one GPU of a group, at the weights' width."""
        gpu = self.gpu
        is_fp8 = self.replicas.quantization == "fp8" and gpu.fp8_flops_per_s is not None
        per_gpu = gpu.fp8_flops_per_s if is_fp8 else gpu.bf16_flops_per_s
        return self.replicas.tensor_parallel_size * float(per_gpu or 0.0)

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of one token's KV in all GPUs together; a calibrated engine's own count holds time, not bytes."""
        size = self.replicas.tensor_parallel_size
        return size * self.num_stages * kv_bytes_per_token(self.stage_model, size, self.replicas.kv_element_bytes)

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights in all GPUs together."""
        engines = self.num_stages * self.expert_parallel_size
        return float(self.engine.dense_weight_bytes + self.engine.expert_weight_bytes) * engines

    def step_s(self, num_requests: int, context_tokens: float) -> float:
        """Returns the seconds from one token of each request to the next.

        The stages take turns on as many equal parts of the batch, so that all of them are busy: a token's way through all
        stages is the time of a step, and splitting the layers makes no token faster. A group exchanges tokens behind its step.
        """
        part = -(-num_requests // (self.num_stages * self.expert_parallel_size))
        step_s = self.num_stages * decode_step_s(self.engine, part, context_tokens) + self._hops_s(part)
        return max(step_s, self.exchange_s(part))

    def is_extrapolated(self, num_requests: int, new_tokens: float, cached_tokens: float) -> bool:
        """Tells whether a step of equal requests is larger than all that the engine was calibrated on."""
        part = -(-num_requests // (self.num_stages * self.expert_parallel_size))
        return bool(is_outside_range(equal_requests(part, round(new_tokens), round(cached_tokens)), self.engine))

    def prefill_s(self, prompt_tokens: float, cached_tokens: float = 0) -> float:
        """Returns the seconds from the start of a prompt to its first token."""
        new_tokens = prompt_tokens - cached_tokens
        seconds = self.num_stages * prefill_s(self.engine, prompt_tokens, cached_tokens) + self._hops_s(new_tokens)
        return max(seconds, self.exchange_s(new_tokens))

    def prefill_tokens_per_s(self, prompt_tokens: float, cached_tokens: float = 0) -> float:
        """Returns the prompt tokens/s that it computes.

        A pipeline reads as many prompts at a time as it has stages, a group as many as it has GPUs.
        """
        new_tokens = prompt_tokens - cached_tokens
        seconds = max(prefill_s(self.engine, prompt_tokens, cached_tokens), self.exchange_s(new_tokens))
        return self.expert_parallel_size * new_tokens / seconds

    def exchange_s(self, num_tokens: float) -> float:
        """Returns the seconds in which one GPU of a group sends its tokens to their experts and gets the answers back.

        Each token goes to each of its experts in every layer that has them, in fp8, and comes back in bf16, over the network;
        hidden behind the step, as two halves of the batch take turns. 0 without a group.

        Source: DeepSeek-AI (2024), DeepSeek-V3 technical report, section 3.2; that it is hidden, section 3.4.
        """
        if self.expert_parallel_size == 1:
            return 0.0
        model = self.model
        num_bytes = num_tokens * model.moe_layers * model.experts_per_token * model.hidden * (1 + 2)
        remote = 1 - 1 / self.expert_parallel_size
        return num_bytes * remote / NETWORK_BYTES_PER_S

    def mfu(self, prompt_tokens: float) -> float:
        """Returns the share of the GPUs' peak arithmetic that a prefill of this length reaches, the links' time included."""
        seconds = max(prefill_s(self.engine, prompt_tokens), self.exchange_s(prompt_tokens))
        return self._arithmetic(prompt_tokens) / self.peak_flops_per_s / seconds

    def with_mfu(self, mfu: float, prompt_tokens: float) -> "Instance":
        """Returns the instance whose prefills of this length reach `mfu`, or as near as the links let them.

        MFU counts all time, so what the links take, the arithmetic must make up for: `flops_efficiency` is set to that.
        Where even the peak is not fast enough it becomes 1, and `mfu` of the result says what is left.

        Args:
            mfu: share of the peak, above 0 and at most 1.
            prompt_tokens: a typical prompt; others reach a little more or less.

        Source: the plan of docs/sources.md [1], "prefill runs at 50 % MFU".

        Raises:
            ValueError: a number is out of range.
        """
        check_share("mfu", mfu)
        check_positive("prompt_tokens", prompt_tokens)
        engine = self.engine.copy()
        arithmetic_s = self._arithmetic(prompt_tokens) / self.peak_flops_per_s
        engine.flops_per_s = engine.bytes_per_s = np.inf
        other_s = prefill_s(engine, prompt_tokens)
        left_s = arithmetic_s / mfu - other_s
        efficiency = min(1.0, arithmetic_s / left_s) if left_s > 0 else 1.0
        return replace(self, replicas=self.replicas.model_copy(update={"flops_efficiency": efficiency}))

    def prefill_flops(self, prompt_tokens: float, cached_tokens: float = 0) -> float:
        """Returns the arithmetic of a prompt, all stages together."""
        return self.num_stages * self._arithmetic(prompt_tokens, cached_tokens)

    def _arithmetic(self, prompt_tokens: float, cached_tokens: float = 0) -> float:
        """FLOPs of one stage's prefill, or of a whole one on a GPU of a group; by the model, as a calibration has none."""
        cached = round(cached_tokens)
        batch = equal_requests(1, round(prompt_tokens) - cached, cached)
        model = self.model if self.expert_parallel_size > 1 else self.stage_model
        per_attended_token = 4.0 * model.layers * model.heads * model.head_dim
        return float(batch.num_tokens * 2.0 * model.num_active_params + batch.attended_tokens * per_attended_token)

    def _hops_s(self, num_tokens: float) -> float:
        """Seconds that the hidden states of some tokens spend between the stages."""
        per_hop = self.replicas.link_latency_s + num_tokens * self.model.hidden * 2 / NETWORK_BYTES_PER_S
        return (self.num_stages - 1) * per_hop
