"""Makes vLLM's scheduler and requests for it, with no engine and no model; only a live interpreter can run it."""

import json
import logging
import os
import tempfile
from copy import copy
from pathlib import Path
from typing import Any

KNOWN_VERSIONS = ("0.30.0", "0.32.0")
STOP_TOKEN = 99_999  # occurs in no prompt, and in an output only where the request stops early
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 100_000,
    "max_position_embeddings": 1 << 20,
    "torch_dtype": "float32",
}


def load_vllm() -> Any:
    """Imports vLLM and returns a model configuration for `Recorder`; takes about half a minute."""
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    logging.disable(logging.WARNING)
    from vllm.config import ModelConfig  # type: ignore[import-not-found]

    if installed_version() not in KNOWN_VERSIONS:
        raise SystemExit(f"this is vLLM {installed_version()}; our scheduler follows {' and '.join(KNOWN_VERSIONS)}")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        return ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="float32", seed=0)


def installed_version() -> str:
    """Returns the version of the vLLM of this interpreter."""
    from vllm.version import __version__  # type: ignore[import-not-found]

    version: str = __version__.partition("+")[0]
    return version


def vllm_config(workload: dict[str, Any], model_config: Any) -> Any:
    """Returns vLLM's configuration for a workload's engine arguments.

    Async scheduling and the draft method are set after validation: on a CPU vLLM refuses the first, and the second would need
    a draft model's weights. The scheduler reads no more of the two than what is set here.
    """
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        LoRAConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )

    arguments = workload["engine_args"]
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # validation would ask for Triton
    model_config = copy(model_config)
    model_config.max_model_len = arguments["max_model_len"]
    num_drafts, max_loras = arguments.get("num_speculative_tokens", 0), arguments.get("max_loras", 0)
    since_0_32 = {name: arguments[name] for name in ("long_prefill_token_threshold_adaptive",) if name in arguments}
    config = VllmConfig(
        model_config=model_config,
        device_config=DeviceConfig("cpu"),
        cache_config=CacheConfig(
            block_size=arguments["block_size"], enable_prefix_caching=arguments.get("enable_prefix_caching", False)
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=arguments["max_num_seqs"],
            max_num_batched_tokens=arguments["max_num_batched_tokens"],
            max_model_len=arguments["max_model_len"],
            is_encoder_decoder=False,
            enable_chunked_prefill=arguments.get("enable_chunked_prefill", True),
            long_prefill_token_threshold=arguments.get("long_prefill_token_threshold", 0),
            watermark=arguments.get("watermark", 0.0),
            scheduler_reserve_full_isl=arguments.get("scheduler_reserve_full_isl", True),
            policy=arguments.get("scheduling_policy", "fcfs"),
            async_scheduling=False,
            **since_0_32,
        ),
        lora_config=LoRAConfig(max_loras=max_loras) if max_loras else None,
        speculative_config=SpeculativeConfig(method="ngram", num_speculative_tokens=num_drafts) if num_drafts else None,
    )
    config.cache_config.num_gpu_blocks = workload["num_gpu_blocks"]
    config.scheduler_config.async_scheduling = arguments.get("async_scheduling", False)
    config.parallel_config.pipeline_parallel_size = arguments.get("pipeline_parallel_size", 1)
    if config.scheduler_config.async_scheduling and config.parallel_config.pipeline_parallel_size > 1:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"  # the other runner has no async pipelines
    if num_drafts and arguments["speculative_method"] != "ngram":
        config.speculative_config.method = arguments["speculative_method"]
    return config


def new_scheduler(workload: dict[str, Any], model_config: Any) -> Any:
    """Returns vLLM's scheduler with one group of full-attention layers."""
    import torch  # type: ignore[import-not-found]
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # type: ignore[import-not-found]
    from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found]
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # type: ignore[import-not-found]
    from vllm.v1.structured_output import StructuredOutputManager  # type: ignore[import-not-found]

    config = vllm_config(workload, model_config)
    block_size = config.cache_config.block_size
    layers = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv_cache_config = KVCacheConfig(
        num_blocks=workload["num_gpu_blocks"], kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layers)]
    )
    kind = AsyncScheduler if config.scheduler_config.async_scheduling else Scheduler
    return kind(
        vllm_config=config,
        kv_cache_config=kv_cache_config,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
    )


def new_request(wanted: dict[str, Any], position: int, block_hasher: Any) -> Any:
    """Returns vLLM's request; its arrival time is its place in the list, so that equal priorities go in list order."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest  # type: ignore[import-not-found]
    from vllm.sampling_params import StructuredOutputsParams  # type: ignore[import-not-found]
    from vllm.v1.request import Request  # type: ignore[import-not-found]

    lora = wanted.get("lora", 0)
    sampling = SamplingParams(
        max_tokens=wanted.get("max_tokens", wanted["output_len"]),
        stop_token_ids=[STOP_TOKEN],
        structured_outputs=StructuredOutputsParams(regex=".*") if "grammar_ready_step" in wanted else None,
    )
    return Request(
        request_id=wanted["id"],
        prompt_token_ids=wanted["prompt"],
        sampling_params=sampling,
        pooling_params=None,
        arrival_time=float(position),
        priority=wanted.get("priority", 0),
        lora_request=LoRARequest(f"lora{lora}", lora, f"lora{lora}") if lora else None,
        block_hasher=block_hasher,
    )


class AnyGrammar:
    """A compiled grammar that allows every token."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens
