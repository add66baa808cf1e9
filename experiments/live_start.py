"""Starts the first engine of every live pool of an experiment."""

from typing import Any

from experiments.settings.experiment import Experiment
from replicas.live.config import Vllm
from replicas.live.plane import EngineSource
from sim.errors import ConfigError


def start_engines(experiment: Experiment, engines: Any) -> dict[int, EngineSource]:
    """Starts the first engine of every live pool and enters what it says of itself into the pool's record.

    Args:
        experiment: the experiment.
        engines: (num_pools,) ENGINE records, as surrogates of these pools would have them.

    Returns:
        Where the live pools' engines come from, by the pools' numbers.

    Raises:
        ConfigError: requests ask for what live replicas do not serve.
        EngineError: an engine did not start.
    """
    sources = {}
    for index, pool in enumerate(experiment.pools):
        if not pool.replicas.is_live:
            continue
        _check_classes(experiment, pool.name)
        record = engines[index]
        options: Any = pool.replicas
        has_cache = bool(record.enable_prefix_caching)

        def start(pool: Any = pool, options: Any = options, has_cache: bool = has_cache) -> Any:
            return options.start(pool.model, pool.gpu, has_cache)

        is_measured = isinstance(options, Vllm) and options.measured_start
        sources[index] = source = EngineSource(start, is_measured, options.scheduling_policy == "priority")
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "async_scheduling"):
            record[name] = getattr(source.limits, name)
        record.num_usable_blocks = source.limits.num_gpu_blocks - 1  # without vLLM's null block
        record.schedules_by_priority = 0  # the engine does; our list of those waiting is in order of arrival
    return sources


def _check_classes(experiment: Experiment, pool: str) -> None:
    for name, kind in experiment.classes.items():
        for key, is_asked in (("lora", kind.lora is not None), ("grammar_s", kind.grammar_s > 0)):
            if is_asked:
                raise ConfigError(
                    f"classes.{name}.{key}: {getattr(kind, key)!r}, and pools.{pool} is live (kind: vllm), which serves plain "
                    "text from the base model only; leave it out, or use kind: surrogate"
                )
        if kind.timeout_s is not None:
            raise ConfigError(
                f"classes.{name}.timeout_s: {kind.timeout_s:g}, and pools.{pool} is live, whose requests nobody aborts; "
                "leave it out, or use kind: surrogate"
            )
