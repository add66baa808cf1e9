"""The roofline's landmarks: where arithmetic meets memory, what the links cost, and how many GPUs one token can use."""

import math
from typing import Any

from sim.checks import check_positive, check_whole


def ridge_point(flops_per_s: float, bytes_per_s: float) -> float:
    """Returns FLOPs per byte at which arithmetic and memory take equally long; below it a kernel waits for memory.

    Source: Williams et al. (2009), Roofline; docs/sources.md [1], background.

    >>> from replicas.catalog import gpu
    >>> round(ridge_point(gpu("h100-sxm").bf16_flops_per_s, gpu("h100-sxm").bytes_per_s))
    295

    Raises:
        ValueError: an argument is not a positive number.
    """
    check_positive("flops_per_s", flops_per_s)
    check_positive("bytes_per_s", bytes_per_s)
    return flops_per_s / bytes_per_s


def fastest_tensor_parallel_size(weight_bytes: float, layers: int, link_latency_s: float, bytes_per_s: float) -> float:
    """Returns the number of GPUs, not rounded, at which one token of one request comes soonest.

    Reading the weights takes weight_bytes / (n bytes_per_s) and two ring all-reduces a layer 4 layers (n - 1)
    link_latency_s; the sum is least at n = sqrt(weight_bytes / (4 layers link_latency_s bytes_per_s)). Batch 1, short
    contexts: KV and the messages' bytes are left out.

    Args:
        weight_bytes: of the whole model, read once a token.
        layers: of the model.
        link_latency_s: of one message between neighbours.
        bytes_per_s: memory bandwidth of one GPU.

    Source: docs/sources.md [1], Choosing a parallel layout.

    >>> round(fastest_tensor_parallel_size(141.1e9, 80, 2e-6, 3.35e12), 1)  # 70B in bf16 on H100s
    8.1

    Raises:
        ValueError: an argument is not a positive number.
    """
    check_whole("layers", layers)
    for name, value in (("weight_bytes", weight_bytes), ("link_latency_s", link_latency_s), ("bytes_per_s", bytes_per_s)):
        check_positive(name, value)
    return math.sqrt(weight_bytes / (4 * layers * link_latency_s * bytes_per_s))


def all_reduce_s(engine: Any, layers: int, num_tokens: int) -> float:
    """Returns the seconds of one ring all-reduce over the hidden states of `num_tokens` tokens; 0 on one GPU.

    2 (n - 1) messages of latency alpha, and 2 (n - 1) / n of the bytes over each link: the engine's own coefficients,
    which hold two of them for each of the `layers`.

    Args:
        engine: one ENGINE record.
        layers: of its model.
        num_tokens: in the step.

    Source: docs/design.md, A step's time; docs/sources.md [1], Choosing a parallel layout.

    Raises:
        ValueError: a number is out of range.
    """
    check_whole("layers", layers)
    check_whole("num_tokens", num_tokens)
    return float(engine.comm_s + num_tokens * engine.comm_s_per_token) / (2 * layers)
