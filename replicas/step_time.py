"""How long one engine step lasts: the slower of arithmetic and memory, then the links, then the CPU."""

from typing import Any

from sim.compiled import verb


@verb
def step_time(batch: Any, engine: Any) -> float:
    """Returns the seconds that `batch` (a BATCH record) takes on `engine` (an ENGINE record).

    It steps alone, or together with others that do the same.
    """
    return step_time_among(batch, engine, batch.num_tokens, batch.num_tokens * max(engine.num_together, 1))


@verb
def step_time_among(batch: Any, engine: Any, longest: int, num_tokens_together: int) -> float:
    """Returns the seconds of `batch` on one of several engines that share their experts. Called once per step.

    Args:
        batch: its BATCH record.
        engine: of all of them.
        longest: tokens of the longest of their steps.
        num_tokens_together: tokens of all their steps.

    t_gpu = max(FLOPs / flops_per_s, bytes / bytes_per_s) + the device's terms of `sim.step_terms`. The CPU's are added, or
    hidden behind the device when the engine plans one step ahead (async_scheduling). Padding costs arithmetic and messages, but
    reads nothing: padded tokens have no KV. A calibrated engine also has a share of the shorter of arithmetic and memory that
    the longer does not hide, and what kernels were measured to take at the step's number of tokens.

    Engines that share experts each do their own attention; the experts' arithmetic and reading is spread evenly over all of
    them and serves the tokens of all, which every one gathers and scatters back in each layer with experts. That takes as long
    as the longest step's tokens need, as each sends its own at the same time. Where all steps fit CUDA graphs, all are padded
    to the longest.

    Source: docs/design.md, A step's time; docs/sources.md [1], with n new tokens on c cached ones attending to c + n/2; vLLM
    0.32.0, `coordinate_batch_across_dp`.
    """
    gpu_s, cpu_s = gpu_time(batch, engine, longest, num_tokens_together), cpu_time(batch, engine)
    if engine.async_scheduling:
        return max(gpu_s, cpu_s)
    return gpu_s + cpu_s


@verb
def gpu_time(batch: Any, engine: Any, longest: int, num_tokens_together: int) -> float:
    """Returns the device's seconds of a step."""
    padded = padded_tokens(longest, engine.max_graph_tokens)
    num_tokens, num_expert_tokens = batch.num_tokens, num_tokens_together
    if padded <= engine.max_graph_tokens:
        num_tokens, num_expert_tokens = padded, padded * engine.num_together
    flops = num_tokens * engine.flops_per_token + batch.attended_tokens * engine.flops_per_attended_token
    flops += num_expert_tokens * engine.expert_flops_per_token
    read = weight_bytes_read(num_tokens_together, engine) + batch.kv_tokens * engine.kv_bytes_per_token
    read += batch.num_adapters * engine.adapter_bytes
    links_s = engine.comm_s + padded * engine.comm_s_per_token
    arithmetic_s, memory_s = flops / engine.flops_per_s, read / engine.bytes_per_s
    gpu_s: float = max(arithmetic_s, memory_s) + links_s + engine.overhead_s
    gpu_s += engine.serial_share * min(arithmetic_s, memory_s) + batch.num_requests * engine.gpu_s_per_request
    if engine.num_knots:
        gpu_s += measured_s(num_tokens, engine)
    if batch.num_tokens > batch.num_requests:
        gpu_s += engine.mixed_s + batch.kv_tokens * engine.mixed_kv_s_per_token
        gpu_s = max(gpu_s, engine.launch_s)
    if longest > engine.max_graph_tokens:
        gpu_s += engine.eager_s
    return gpu_s


@verb
def measured_s(num_tokens: int, engine: Any) -> float:
    """Returns what kernels of so many tokens were measured to take: between two knots, and beyond the last, on a line."""
    low, high = 0, engine.num_knots - 1
    while high - low > 1:
        middle = (low + high) // 2
        if engine.knot_tokens[middle] <= num_tokens:
            low = middle
        else:
            high = middle
    share = (num_tokens - engine.knot_tokens[low]) / (engine.knot_tokens[high] - engine.knot_tokens[low])
    seconds: float = engine.knot_s[low] + share * (engine.knot_s[high] - engine.knot_s[low])
    return seconds


@verb
def cpu_time(batch: Any, engine: Any) -> float:
    """Returns the CPU's seconds of a step: planning it, and taking in what comes of it."""
    cpu_s: float = engine.cpu_s + batch.num_requests * engine.cpu_s_per_request
    cpu_s += batch.num_masks * engine.grammar_cpu_s_per_request
    return cpu_s


@verb
def is_outside_range(batch: Any, engine: Any) -> bool:
    """Tells whether a step is larger, in any respect, than all that the engine's coefficients were fitted on."""
    is_larger: bool = batch.num_requests > engine.fitted_requests or batch.num_tokens > engine.fitted_tokens
    return is_larger or batch.attended_tokens > engine.fitted_attended_tokens or batch.kv_tokens > engine.fitted_kv_tokens


@verb
def padded_tokens(num_tokens: int, max_graph_tokens: int) -> int:
    """Returns the tokens that a step computes: padded to the next CUDA graph, if there is one that large.

    vLLM captures 1, 2, 4, every 8th size up to 248, and every 16th from 256 on (0.32.0).

    >>> [padded_tokens(n, 512) for n in (1, 3, 9, 248, 249, 257, 512, 513)]
    [1, 4, 16, 248, 256, 272, 512, 513]
    """
    if num_tokens > max_graph_tokens:
        return num_tokens
    if num_tokens <= 2:
        padded = num_tokens
    elif num_tokens <= 4:
        padded = 4
    elif num_tokens <= 248:
        padded = (num_tokens + 7) // 8 * 8
    else:
        padded = (num_tokens + 15) // 16 * 16
    return min(padded, max_graph_tokens)


@verb
def weight_bytes_read(num_tokens: int, engine: Any) -> float:
    """Returns the weights that a step of `num_tokens` reads: the dense ones, and the experts that its tokens hit.

    Assumption: tokens choose experts independently and evenly, so a share 1 - (1 - k/E)^tokens is touched.
    """
    if engine.expert_weight_bytes == 0.0:
        dense: float = engine.dense_weight_bytes
        return dense
    touched = 1.0 - (1.0 - engine.expert_hit_share) ** num_tokens
    both: float = engine.dense_weight_bytes + touched * engine.expert_weight_bytes
    return both
