"""The GPUs and models we know, each number with its source, and how to spell one that we don't."""

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, model_validator

from sim.params import Params
from sim.texts import unknown_name


class Gpu(Params):
    """One GPU as the step-time and memory models see it. Rates are dense peaks: data sheets often print twice as much."""

    name: str = Field(default="inline", description="What errors and tables call it.")
    bf16_flops_per_s: float = Field(gt=0, description="Dense bf16 arithmetic, FLOP/s.")
    fp8_flops_per_s: float | None = Field(
        default=None, gt=0, description="Dense fp8 arithmetic, FLOP/s; null = has no fp8 units."
    )
    memory_bytes: float = Field(gt=0, description="Memory that CUDA reports as total: less than the box says.")
    bytes_per_s: float = Field(gt=0, description="Peak bandwidth of its memory.")
    link_bytes_per_s: float = Field(gt=0, description="Bandwidth to its neighbours, one direction.")
    link: Literal["NVLink", "PCIe"] | None = Field(default=None, description="What these links are; null = not stated.")
    gpus_per_node: int | None = Field(
        default=None, ge=1, description="GPUs that they join, itself included: a node; null = not stated."
    )
    source: str = Field(default="given inline", description="Where the rates come from.")
    node_source: str = Field(default="given inline", description="Where the links and the size of a node come from.")
    memory_source: str = Field(default="given inline", description="Where the memory size comes from.")


class Model(Params):
    """One decoder-only model: full attention (grouped-query or latent), gated MLPs, some of them experts.

    Sliding windows, linear attention and speculative layers are not modelled, so such models are not in the catalogue.
    """

    name: str = Field(default="inline", description="What errors and tables call it.")
    layers: int = Field(gt=0, description="Transformer layers.")
    hidden: int = Field(gt=0, description="Width of the residual stream.")
    heads: int = Field(gt=0, description="Query heads.")
    kv_heads: int = Field(gt=0, description="Key-value heads; ignored when kv_lora_rank is set.")
    head_dim: int = Field(gt=0, description="Width of a head; with latent attention the mean of query and value width.")
    intermediate: int = Field(gt=0, description="Width of a dense MLP.")
    vocab: int = Field(gt=0, description="Vocabulary.")
    num_params: int = Field(gt=0, description="All parameters, stored.")
    num_embedding_params: int | None = Field(
        default=None,
        ge=0,
        description="Of these, the embedding table, which stays in 16 bit where the rest is quantized; null = vocab x hidden, "
        "0 = it is the output head.",
    )
    num_head_params: int | None = Field(
        default=None, ge=0, description="Of these, the output head, which stays in 16 bit too; null = vocab x hidden."
    )
    num_experts: int = Field(default=0, ge=0, description="Routed experts a layer; 0 = dense model.")
    experts_per_token: int = Field(default=0, ge=0, description="Routed experts that a token visits.")
    moe_layers: int = Field(default=0, ge=0, description="Layers with routed experts.")
    moe_intermediate: int = Field(default=0, ge=0, description="Width of one expert.")
    kv_lora_rank: int = Field(default=0, ge=0, description="Width of the cached latent of MLA; 0 = keys and values are cached.")
    qk_rope_head_dim: int = Field(default=0, ge=0, description="Rotary key that MLA caches beside the latent.")
    max_model_len: int = Field(gt=0, description="Longest sequence, prompt and output.")
    source: str = Field(default="given inline", description="Where the numbers come from.")

    @model_validator(mode="after")
    def _experts_are_whole(self) -> "Model":
        moe = (self.num_experts, self.experts_per_token, self.moe_layers, self.moe_intermediate)
        if any(moe) and not all(moe):
            raise ValueError(
                "num_experts, experts_per_token, moe_layers and moe_intermediate go together: give all four or none"
            )
        if self.experts_per_token > self.num_experts:
            raise ValueError(f"experts_per_token {self.experts_per_token} is above num_experts {self.num_experts}")
        if self.moe_layers > self.layers:
            raise ValueError(f"moe_layers {self.moe_layers} is above layers {self.layers}")
        if self.num_expert_params > self.num_params:
            raise ValueError(f"the experts alone have {self.num_expert_params} of {self.num_params} num_params")
        return self

    @property
    def embedding_params(self) -> int:
        """Parameters of the embedding table, if it is not the output head as well.

        >>> model("llama-3.1-70b").embedding_params == 128256 * 8192, model("qwen3-0.6b").embedding_params
        (True, 0)
        """
        return self.vocab * self.hidden if self.num_embedding_params is None else self.num_embedding_params

    @property
    def head_params(self) -> int:
        """Parameters of the output head."""
        return self.vocab * self.hidden if self.num_head_params is None else self.num_head_params

    @property
    def num_expert_params(self) -> int:
        """Parameters of all routed experts: three matrices each."""
        return self.moe_layers * self.num_experts * 3 * self.hidden * self.moe_intermediate

    @property
    def expert_hit_share(self) -> float:
        """Share of the routed experts that one token visits; 0 for a dense model.

        >>> model("mixtral-8x7b").expert_hit_share
        0.25
        """
        return self.experts_per_token / self.num_experts if self.num_experts else 0.0

    @property
    def num_active_params(self) -> int:
        """Parameters that multiply one token.

        >>> f"{model('deepseek-v3').num_active_params / 1e9:.1f} of {model('deepseek-v3').num_params / 1e9:.1f} billion"
        '37.6 of 671.0 billion'
        """
        return self.num_params - round(self.num_expert_params * (1 - self.expert_hit_share))

    @property
    def architecture(self) -> str:
        """Which kernels it runs, for those who compare: its MLPs and its attention.

        >>> model("llama-3.1-8b").architecture, model("deepseek-v3").architecture
        ('dense', 'experts and latent attention')
        """
        mlps = "experts" if self.num_experts else "dense"
        return f"{mlps} and latent attention" if self.kv_lora_rank else mlps

    def stage(self, num_stages: int) -> "Model":
        """Returns what the largest stage of a pipeline holds, as a model of its own; embeddings are shared out evenly too.

        >>> model("llama-3.1-70b").stage(4).layers
        20
        """
        if num_stages == 1:
            return self
        parts = {name: -(-getattr(self, name) // num_stages) for name in ("layers", "num_params", "moe_layers")}
        parts["num_embedding_params"] = -(-self.embedding_params // num_stages)
        parts["num_head_params"] = -(-self.head_params // num_stages)
        return self.model_copy(update={**parts, "name": f"{self.name} (1/{num_stages})"})


T = TypeVar("T", Gpu, Model)


def gpu(name: str | Mapping[str, Any]) -> Gpu:
    """Returns a GPU of the catalogue, or one spelled out as a mapping of `Gpu`'s fields.

    Raises:
        ValueError: no such GPU, with the nearest name; or a field is missing, unknown or out of range.

    >>> gpu("h100-sxm").bytes_per_s
    3350000000000.0
    >>> gpu("h100-smx")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: no GPU named 'h100-smx'; did you mean 'h100-sxm'? known: a100-pcie, a100-sxm, ...
    """
    return _find(name, gpus(), Gpu, "GPU")


def model(name: str | Mapping[str, Any]) -> Model:
    """Returns a model of the catalogue, or one spelled out as a mapping of `Model`'s fields.

    Raises:
        ValueError: no such model, with the nearest name; or a field is missing, unknown or out of range.

    >>> model("llama-3.1-8b").kv_heads
    8
    """
    return _find(name, models(), Model, "model")


@cache
def gpus() -> dict[str, Gpu]:
    """Returns the catalogue of GPUs by name, from gpus.csv."""
    return _read("gpus.csv", Gpu)


@cache
def models() -> dict[str, Model]:
    """Returns the catalogue of models by name, from models.csv."""
    return _read("models.csv", Model)


def _read(file: str, kind: type[T]) -> dict[str, T]:
    with (Path(__file__).parent / file).open(newline="", encoding="utf-8") as lines:
        rows = [{key: cell for key, cell in row.items() if cell} for row in csv.DictReader(lines)]
    return {row["name"]: kind.model_validate(row, strict=False) for row in rows}


def _find(name: str | Mapping[str, Any], known: dict[str, T], kind: type[T], word: str) -> T:
    if not isinstance(name, str):
        return kind.model_validate(dict(name))
    if name not in known:
        raise ValueError(unknown_name(word, name, known))
    return known[name]
