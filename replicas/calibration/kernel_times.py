"""What kernels of a GPU take, as measured one by one, in few numbers; and a step of any dense model put together from them."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from replicas.catalog import Model
from replicas.memory import BF16_BYTES
from sim.params import Params
from sim.records import MAX_KNOTS

Floats = NDArray[np.float64]
Numbers = Annotated[list[float], Field(min_length=2)]

NUM_GEMMS = 4
"""In a layer: queries, keys and values; attention's output; gate and up; down."""

FEW_ROWS = 256
"""Rows up to which a GEMM is bound by reading its weights."""

MAX_ROWS, MAX_SIZES = 64, 32
"""Numbers of rows of GEMMs, and of sizes of all-reduces, in a table; a step's times are known at all of both."""

assert MAX_ROWS + MAX_SIZES <= MAX_KNOTS

HEAD_ROWS = 16
"""Rows of the output head: a step has few requests that get a token, and reading is all until there are hundreds."""


class GemmTimes(Params):
    """GEMMs by their rows, the tokens of a step: s + s_per_weight * rows and columns of the matrix."""

    rows: Numbers = Field(max_length=MAX_ROWS, description="Ascending.")
    s: Numbers = Field(description="Whatever the matrix.")
    s_per_weight: Numbers = Field(description="For each of its elements.")

    @model_validator(mode="after")
    def _are_as_long(self) -> "GemmTimes":
        if not len(self.rows) == len(self.s) == len(self.s_per_weight):
            raise ValueError(f"{len(self.rows)} rows, {len(self.s)} s and {len(self.s_per_weight)} s_per_weight: all or none")
        if any(later <= earlier for earlier, later in zip(self.rows, self.rows[1:], strict=False)):
            raise ValueError("rows must ascend")
        return self

    def seconds(self, num_gemms: float, num_weights: float) -> Floats:
        """Returns (rows,) what so many GEMMs take that have so many weights together."""
        return num_gemms * np.array(self.s) + num_weights * np.array(self.s_per_weight)


class AttentionTimes(Params):
    """Attention of one layer on one GPU: a kernel's fixed part and a rate, of decodes and of prompts."""

    decode_s: float = Field(ge=0, description="Of decodes, whatever they read.")
    kv_bytes_per_s: float = Field(gt=0, description="At which they read KV.")
    prompt_s: float = Field(ge=0, description="Of prompts, whatever their length.")
    flops_per_s: float = Field(gt=0, description="At which they compute.")


class AllReduceTimes(Params):
    """All-reduces by the bytes that each GPU contributes: a start and a rate, so between two sizes they lie on a line.

    Each size of 15 of aiconfigurator's tables, left out and predicted from its neighbours, is 4.6 % off on a line and 5.3 % on
    a power law, which is 2.1 % too long on average, as it bends upwards between a start and a rate.
    """

    message_bytes: Numbers = Field(max_length=MAX_SIZES, description="Ascending.")
    num_gpus: list[int] = Field(min_length=1, description="Between how many they were measured.")
    s: list[Numbers] = Field(description="A list for each number of GPUs, an element for each size of message.")

    @model_validator(mode="after")
    def _are_all_there(self) -> "AllReduceTimes":
        if len(self.s) != len(self.num_gpus) or any(len(one) != len(self.message_bytes) for one in self.s):
            raise ValueError("all_reduce.s needs a list for each of num_gpus, and in it a number for each of message_bytes")
        if any(later <= earlier for earlier, later in zip(self.message_bytes, self.message_bytes[1:], strict=False)):
            raise ValueError("all_reduce.message_bytes must ascend")
        return self

    def seconds(self, num_gpus: int, message_bytes: Floats) -> Floats:
        """Returns (n,) the seconds of one all-reduce: below the smallest its own, beyond the largest on the last line.

        Raises:
            ValueError: such a number of GPUs was not measured.
        """
        if num_gpus not in self.num_gpus:
            known = ", ".join(str(one) for one in self.num_gpus)
            raise ValueError(f"kernel times have no all-reduce between {num_gpus} GPUs; measured were {known}")
        known_bytes, known_s = np.array(self.message_bytes), np.array(self.s[self.num_gpus.index(num_gpus)])
        s_per_byte = (known_s[-1] - known_s[-2]) / (known_bytes[-1] - known_bytes[-2])
        beyond = np.maximum(0.0, message_bytes - known_bytes[-1])
        return np.asarray(np.interp(message_bytes, known_bytes, known_s) + beyond * s_per_byte)


class StepTimes(NamedTuple):
    """What all but attention takes in a step."""

    tokens: list[float]  # ascending
    s: list[float]  # besides `weights_s`
    weights_s: float  # reading the weights once


class KernelTimes(Params):
    """The kernels of one GPU and engine."""

    source: str = Field(description="Whose measurement.")
    gemm: dict[str, GemmTimes] = Field(description="By the dtype of the weights: bfloat16, and where it was measured fp8.")
    attention: dict[str, AttentionTimes] = Field(description="By the dtype of the KV cache.")
    all_reduce: AllReduceTimes | None = Field(default=None, description="null = of one GPU only.")

    def attention_with(self, kv_element_bytes: float) -> AttentionTimes:
        """Returns the attention for a KV cache in 8 or 16 bit.

        Raises:
            ValueError: it was not measured.
        """
        return _of(self.attention, "fp8" if kv_element_bytes == 1 else "bfloat16", "attention with KV")

    def step(self, model: Model, dtype: str, num_gpus: int, large_gemm_scale: float, activations_per_s: float) -> StepTimes:
        """Returns what all but attention takes in a step, at the numbers of tokens at which GEMMs or all-reduces were measured.

        A layer's GEMMs and its two all-reduces, the output head, which stays in 16 bit, and what the kernels between them read
        and write: norms the hidden state and the residual, twice; the activation three times an MLP's width; rotary embeddings
        and the cache queries, keys and values.

        Args:
            model: a dense one.
            dtype: of its weights.
            num_gpus: over which it is split.
            large_gemm_scale: multiplies GEMMs of more than `FEW_ROWS`.
            activations_per_s: bytes a second at which kernels between GEMMs read and write.

        Raises:
            ValueError: the model has experts or latent attention, or such kernels were not measured.
        """
        if model.num_experts or model.kv_lora_rank:
            raise ValueError(f"kernel times are for dense models with grouped-query attention, which {model.name} is not")
        gemm = _of(self.gemm, "fp8" if dtype == "fp8" else "bfloat16", "GEMMs with weights")
        head = _of(self.gemm, "bfloat16", "GEMMs with weights")
        rows = np.array(gemm.rows)
        weights = (model.num_params - model.embedding_params - model.head_params) / num_gpus
        scale = np.where(rows > FEW_ROWS, large_gemm_scale, 1.0)
        head_s = float(np.interp(HEAD_ROWS, head.rows, head.seconds(1, model.head_params / num_gpus)))
        tokens = np.union1d(rows, self._reduced_tokens(model, num_gpus, rows[[0, -1]]))
        s = np.interp(tokens, rows, scale * gemm.seconds(NUM_GEMMS * model.layers, weights)) + head_s
        s += tokens * model.layers * _activation_bytes(model, num_gpus) / activations_per_s
        if self.all_reduce is not None and num_gpus > 1:
            s += 2 * model.layers * self.all_reduce.seconds(num_gpus, tokens * model.hidden * BF16_BYTES)
        weights_s = weights * min(gemm.s_per_weight) + head_s
        return StepTimes(tokens.tolist(), (s - weights_s).tolist(), weights_s)

    def _reduced_tokens(self, model: Model, num_gpus: int, ends: Floats) -> Floats:
        """The numbers of tokens, between two `ends`, whose all-reduces are as large as those that were measured."""
        if num_gpus == 1:
            return np.zeros(0)
        if self.all_reduce is None:
            raise ValueError(f"kernel times have no all-reduce, which tensor_parallel_size {num_gpus} needs")
        tokens = np.array(self.all_reduce.message_bytes) / (model.hidden * BF16_BYTES)
        return tokens[(tokens > ends[0]) & (tokens < ends[1])]


def _activation_bytes(model: Model, num_gpus: int) -> float:
    """Bytes that each GPU reads and writes of one token in a layer, between GEMMs."""
    hidden, heads = 2 * 4 * model.hidden, 2 * (model.heads + 2 * model.kv_heads) * model.head_dim
    return BF16_BYTES * (hidden + (heads + 3 * model.intermediate) / num_gpus)


T = TypeVar("T", GemmTimes, AttentionTimes)


def _of(known: Mapping[str, T], dtype: str, what: str) -> T:
    if dtype not in known:
        raise ValueError(f"kernel times have no {what} in {dtype}; measured were {', '.join(known)}")
    return known[dtype]
