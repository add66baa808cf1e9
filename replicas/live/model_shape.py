"""A model folder's `config.json` for a shape of the catalogue, so that vLLM can run it with random weights."""

from typing import Any

from replicas.catalog import Model
from sim.errors import ConfigError


def vllm_model_config(model: Model) -> dict[str, Any]:
    """Returns the `config.json` of a Llama, or of a Mixtral where there are experts, of this shape.

    Random weights cost the same time as trained ones; what is computed with them means nothing.

    Raises:
        ConfigError: neither has this shape.

    >>> from replicas.catalog import model
    >>> vllm_model_config(model("llama-3.1-8b"))["num_key_value_heads"]
    8
    """
    if model.kv_lora_rank or (model.num_experts and model.moe_layers != model.layers):
        what = "latent attention" if model.kv_lora_rank else "layers with and without experts"
        raise ConfigError(
            f"{model.name} has {what}, which cannot be made up; give replicas.model, a folder with its config.json"
        )
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.max_model_len,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": _ties_embeddings(model),
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if model.num_experts:
        config |= {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "intermediate_size": model.moe_intermediate,
            "num_local_experts": model.num_experts,
            "num_experts_per_tok": model.experts_per_token,
        }
    return config


def _ties_embeddings(model: Model) -> bool:
    """Tells whether the output layer is the embedding again: `num_params` is then nearer to the count with one of them."""
    attention = 2 * model.hidden * model.heads * model.head_dim + 2 * model.hidden * model.kv_heads * model.head_dim
    mlp = 3 * model.hidden * model.intermediate
    experts = 3 * model.hidden * model.moe_intermediate * model.num_experts
    body = model.layers * (attention + (experts if model.num_experts else mlp))
    embedding = model.vocab * model.hidden
    return abs(model.num_params - body - embedding) < abs(model.num_params - body - 2 * embedding)
