"""What the KV cache takes and holds: bytes of a sequence, sequences in memory, and the way from one GPU to another.

Bytes of one token, with grouped-query or latent attention and either cache dtype: `replicas.memory.kv_bytes_per_token`.
"""

from replicas.catalog import Model
from replicas.memory import kv_bytes_per_token
from sim.checks import check_not_negative, check_positive, check_whole


def sequence_kv_bytes(
    model: Model,
    context_tokens: int,
    bytes_per_element: float = 2,
    *,
    window_tokens: int | None = None,
    num_windowed_layers: int = 0,
) -> float:
    """Returns the bytes that one sequence's cache takes in the whole replica.

    Args:
        model: with grouped-query or latent attention.
        context_tokens: prompt and output so far.
        bytes_per_element: 2 for bf16, 1 for fp8.
        window_tokens: tokens that a layer with a sliding window keeps; None = no such layers.
        num_windowed_layers: how many of the model's layers have one. The simulated engine knows no windows.

    Source: docs/sources.md [2], Replica and cluster sizing; Beltagy et al. (2020) for windows.

    >>> from replicas.catalog import model
    >>> full = sequence_kv_bytes(model("llama-3.1-8b"), 8192)
    >>> full == 8192 * 131_072
    True
    >>> sequence_kv_bytes(model("llama-3.1-8b"), 8192, window_tokens=1024, num_windowed_layers=16) / full
    0.5625

    Raises:
        ValueError: a number is out of range.
    """
    check_whole("context_tokens", context_tokens)
    check_positive("bytes_per_element", bytes_per_element)
    if not 0 <= num_windowed_layers <= model.layers:
        raise ValueError(f"num_windowed_layers must lie in 0..{model.layers}, got {num_windowed_layers!r}")
    if num_windowed_layers and window_tokens is None:
        raise ValueError("num_windowed_layers needs window_tokens")
    kept = context_tokens if window_tokens is None else min(context_tokens, window_tokens)
    per_layer = kv_bytes_per_token(model, 1, bytes_per_element) / model.layers
    full_layers = model.layers - num_windowed_layers
    return per_layer * (full_layers * context_tokens + num_windowed_layers * kept)


def max_concurrent_requests(free_bytes: float, context_tokens: float, bytes_per_token: float) -> int:
    """Returns how many whole sequences of `context_tokens` fit in `free_bytes` of cache: memory less weights less reserve.

    Source: `max_concurrent_requests` of docs/sources.md [2].

    >>> max_concurrent_requests(80e9 - 16e9 - 4e9, 2048, 131_072)
    223

    Raises:
        ValueError: nothing is free (the weights do not fit), or a number is not positive.
    """
    if not free_bytes > 0:
        raise ValueError(f"free_bytes must be above 0: the weights and the reserve do not fit, got {free_bytes!r}")
    check_positive("free_bytes", free_bytes)
    check_positive("context_tokens", context_tokens)
    check_positive("bytes_per_token", bytes_per_token)
    return int(free_bytes // (context_tokens * bytes_per_token))


def kv_transfer_s(num_tokens: float, bytes_per_token: float, bytes_per_s: float, latency_s: float = 0.0) -> float:
    """Returns the seconds in which the cache of `num_tokens` tokens goes from a prefill to a decode instance.

    Source: docs/sources.md [1], From traffic to GPUs.

    >>> round(kv_transfer_s(2000, 327_680, 50e9) * 1000, 1)
    13.1

    Raises:
        ValueError: a number is out of range.
    """
    check_positive("num_tokens", num_tokens)
    check_positive("bytes_per_token", bytes_per_token)
    check_positive("bytes_per_s", bytes_per_s)
    check_not_negative("latency_s", latency_s)
    return latency_s + num_tokens * bytes_per_token / bytes_per_s
