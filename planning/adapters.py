"""What a LoRA adapter costs a step: next to no arithmetic, and bytes for each distinct one. Bytes: `replicas.memory`."""

from replicas.catalog import Model
from replicas.memory import BF16_BYTES, lora_bytes


def lora_flops_share(model: Model, rank: int) -> float:
    """Returns a token's added arithmetic as a share of the base model's: 2 FLOPs for each of the adapter's parameters.

    Source: docs/sources.md [1], Serving many fine-tuned models (2 r (d_in + d_out) a layer, over 2 N_act).

    >>> from replicas.catalog import model
    >>> round(lora_flops_share(model("llama-3.1-8b"), 16), 4)
    0.0052

    Raises:
        ValueError: the rank is below 1.
    """
    if rank < 1:
        raise ValueError(f"rank must be a whole number from 1 up, got {rank!r}")
    return lora_bytes(model, rank) / BF16_BYTES / model.num_active_params


def merged_bytes(model: Model, num_models: int, bytes_per_weight: float = BF16_BYTES) -> float:
    """Returns the weights of `num_models` merged copies: the alternative to adapters over one base.

    >>> from replicas.catalog import model
    >>> round(merged_bytes(model("llama-3.1-70b"), 1000) / 1e12)
    141
    """
    return model.num_params * bytes_per_weight * num_models
