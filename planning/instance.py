"""One copy of a model on the GPUs it takes: what it holds, how fast it answers, and how much of its peak a prefill reaches."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from planning.steps import decode_step_s, equal_requests, prefill_s
from replicas.catalog import Gpu, Model
from replicas.surrogate import Surrogate
from sim.checks import check_positive, check_share

STAGE_BYTES_PER_S = 50e9
"""Between the stages of a pipeline, which are on different machines. Assumption: one 400 Gbit/s network card a GPU."""


@dataclass(frozen=True)
class Instance:
    """A model on tensor_parallel_size x num_stages GPUs; a stage is a part of the layers, itself split over its GPUs."""

    replicas: Surrogate  # its tensor_parallel_size is that of each stage
    model: Model
    gpu: Gpu
    num_stages: int = 1  # pipeline parallelism; the simulated engine has none

    @property
    def num_gpus(self) -> int:
        """GPUs of the instance."""
        return self.replicas.tensor_parallel_size * self.num_stages

    @cached_property
    def stage_model(self) -> Model:
        """One stage as a model of its own: its share of layers and weights. The embeddings are shared out evenly too."""
        n, model = self.num_stages, self.model
        if n == 1:
            return model
        parts = {
            "layers": -(-model.layers // n),
            "num_params": -(-model.num_params // n),
            "moe_layers": -(-model.moe_layers // n),
        }
        return model.model_copy(update={**parts, "name": f"{model.name} (1/{n})"})

    @cached_property
    def engine(self) -> Any:
        """The ENGINE record of one stage.

        Raises:
            ValueError: the weights do not fit, or not even one sequence of max_model_len does.
        """
        return self.replicas.engine(self.stage_model, self.gpu)[0]

    @cached_property
    def cache_tokens(self) -> int:
        """Tokens whose KV fits in the instance: every stage holds its layers' part of each."""
        return self.replicas.memory(self.stage_model, self.gpu).num_tokens

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of one token's KV in all GPUs together."""
        return float(self.engine.kv_bytes_per_token) * self.num_stages

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights in all GPUs together."""
        return float(self.engine.dense_weight_bytes + self.engine.expert_weight_bytes) * self.num_stages

    def step_s(self, num_requests: int, context_tokens: float) -> float:
        """Returns the seconds from one token of each request to the next.

        The stages take turns on as many equal parts of the batch, so that all of them are busy: a token's way through all
        stages is the time of a step, and splitting the layers makes no token faster.
        """
        part = -(-num_requests // self.num_stages)
        return self.num_stages * decode_step_s(self.engine, part, context_tokens) + self._hops_s(part)

    def prefill_s(self, prompt_tokens: float, cached_tokens: float = 0) -> float:
        """Returns the seconds from the start of a prompt to its first token."""
        return self.num_stages * prefill_s(self.engine, prompt_tokens, cached_tokens) + self._hops_s(
            prompt_tokens - cached_tokens
        )

    def prefill_tokens_per_s(self, prompt_tokens: float, cached_tokens: float = 0) -> float:
        """Returns the prompt tokens/s that it computes; a pipeline reads as many prompts at a time as it has stages."""
        return (prompt_tokens - cached_tokens) / prefill_s(self.engine, prompt_tokens, cached_tokens)

    def decode_tokens_per_s(self, num_requests: int, context_tokens: float) -> float:
        """Returns the output tokens/s of a full batch."""
        return num_requests / self.step_s(num_requests, context_tokens)

    def mfu(self, prompt_tokens: float) -> float:
        """Returns the share of the GPUs' peak arithmetic that a prefill of this length reaches, the links' time included."""
        peak_per_s = self.engine.flops_per_s / self.replicas.flops_efficiency
        return self._arithmetic(prompt_tokens) / peak_per_s / prefill_s(self.engine, prompt_tokens)

    def with_mfu(self, mfu: float, prompt_tokens: float) -> "Instance":
        """Returns the instance whose prefills of this length reach `mfu`, or as near as the links let them.

        MFU counts all time, so what the links take, the arithmetic must make up for: `flops_efficiency` is set to that.
        Where even the peak is not fast enough it becomes 1, and `mfu` of the result says what is left.

        Args:
            mfu: share of the peak, above 0 and at most 1.
            prompt_tokens: a typical prompt; others reach a little more or less.

        Source: the first text's plan, "prefill runs at 50 % MFU".

        Raises:
            ValueError: a number is out of range.
        """
        check_share("mfu", mfu)
        check_positive("prompt_tokens", prompt_tokens)
        engine = self.engine.copy()
        peak_per_s = engine.flops_per_s / self.replicas.flops_efficiency
        arithmetic_s = self._arithmetic(prompt_tokens) / peak_per_s
        engine.flops_per_s = engine.bytes_per_s = np.inf
        other_s = prefill_s(engine, prompt_tokens)
        left_s = arithmetic_s / mfu - other_s
        efficiency = min(1.0, arithmetic_s / left_s) if left_s > 0 else 1.0
        return replace(self, replicas=self.replicas.model_copy(update={"flops_efficiency": efficiency}))

    def _arithmetic(self, prompt_tokens: float) -> float:
        """FLOPs of one stage's prefill."""
        batch, engine = equal_requests(1, round(prompt_tokens), 0), self.engine
        return float(batch.num_tokens * engine.flops_per_token + batch.attended_tokens * engine.flops_per_attended_token)

    def _hops_s(self, num_tokens: float) -> float:
        """Seconds that the hidden states of some tokens spend between the stages."""
        per_hop = self.replicas.link_latency_s + num_tokens * self.model.hidden * 2 / STAGE_BYTES_PER_S
        return (self.num_stages - 1) * per_hop
