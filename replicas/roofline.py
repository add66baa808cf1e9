"""A replica's step time from data sheets: each peak times the efficiency that the options state."""

from math import inf

from replicas.catalog import Gpu, Model
from replicas.links import links_of
from replicas.memory import BF16_BYTES, kv_bytes_per_token, lora_bytes, weight_bytes_read
from replicas.options import EngineOptions
from replicas.vllm.defaults import largest_graph_tokens
from sim.step_terms import TERMS

NETWORK_BYTES_PER_S = 50e9
"""Of each GPU, to other machines: between stages and between experts. Assumption: one 400 Gbit/s network card a GPU."""


def roofline(options: EngineOptions, model: Model, gpu: Gpu, max_num_seqs: int) -> dict[str, float]:
    """Returns the fields of ENGINE that say how long a step takes, by the GPU's data sheet and the options' efficiencies.

    Source: docs/design.md, A step's time. Engines that share experts each hold and work an even part of them, and gather and
    scatter all tokens in every layer with experts, as vLLM's default `all2all_backend` does (0.32.0).
    """
    n = options.tensor_parallel_size
    dense, experts = weight_bytes_read(model, options.weight_element_bytes)
    flops_per_s = gpu.bf16_flops_per_s
    if options.quantization == "fp8" and gpu.fp8_flops_per_s is not None:
        flops_per_s = gpu.fp8_flops_per_s
    m = options.num_sharing(model)
    links = links_of(model, gpu, n, m, options.link_latency_s, options.link_efficiency)
    expert_flops = 2.0 * model.num_expert_params * model.expert_hit_share if m > 1 else 0.0
    return {
        **{term.field: 0.0 for term in TERMS},  # but for what follows
        "flops_per_token": 2.0 * model.num_active_params - expert_flops,
        "expert_flops_per_token": expert_flops / m,
        "flops_per_attended_token": 4.0 * model.layers * model.heads * model.head_dim,
        "flops_per_s": n * flops_per_s * options.flops_efficiency,
        "dense_weight_bytes": dense,
        "expert_weight_bytes": experts / m,
        "expert_hit_share": model.expert_hit_share,
        "kv_bytes_per_token": n * kv_bytes_per_token(model, n, options.kv_element_bytes),
        "bytes_per_s": n * gpu.bytes_per_s * options.bandwidth_efficiency,
        "comm_s": links.fixed_s,
        "comm_s_per_token": links.s_per_token,
        "handover_s": options.link_latency_s,
        "handover_s_per_token": 2 * model.hidden * BF16_BYTES / NETWORK_BYTES_PER_S,  # hidden states and residuals
        "adapter_bytes": lora_bytes(model, options.max_lora_rank),
        "max_graph_tokens": 0
        if options.enforce_eager
        else largest_graph_tokens(gpu, max_num_seqs, options.num_speculative_tokens),
        "overhead_s": options.overhead_s + options.draft_s,
        "cpu_s": options.cpu_s,
        "cpu_s_per_request": options.cpu_s_per_request,
        "grammar_cpu_s_per_request": options.grammar_cpu_s_per_request,
        "serial_share": 0.0,
        "num_knots": 0,
        "fitted_requests": inf,
        "fitted_tokens": inf,
        "fitted_attended_tokens": inf,
        "fitted_kv_tokens": inf,
    }
