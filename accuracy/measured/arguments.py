"""vLLM's arguments, from a mapping or a command line, and as options of a surrogate."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from replicas.surrogate import Surrogate

ASYNC_SINCE = (0, 14)
"""vLLM's version from which async scheduling is on unless told otherwise. Source: vLLM 0.14.0's release notes."""

CHUNKS_ALWAYS_BEFORE = (0, 12)
"""vLLM's V1 engines before it split prompts over steps whatever `enable_chunked_prefill` says.

Source: `EngineArgs._set_default_args` of 0.11.0."""

BEFORE_021 = {"gpu_memory_utilization": 0.9, "cuda_graph_bytes": 0.0}
"""What vLLM before 0.21 took of the GPU, where our defaults are those of 0.32."""

NOT_SIMULATED = ("model", "load_format", "tokenizer", "skip_tokenizer_init", "seed", "scheduler_cls", "disable_log_stats",
                 "enable_expert_parallel")  # fmt: skip
"""Arguments that change nothing that is simulated."""

OFF_UNLESS_SET = ("cpu_offload_gb", "swap_space")
"""Arguments that are not simulated, and need not be where they are 0 or false."""

BLOCKS = "num_gpu_blocks_override"
"""What vLLM calls the surrogate's `num_gpu_blocks`."""


def options_of(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns the surrogate's options for an engine with these arguments, and those that it does not know, in words.

    >>> options_of({"max_num_seqs": 8, "max_model_len": None, "num_gpu_blocks_override": 100, "seed": 1, "swap_space": 4})
    ({'max_num_seqs': 8, 'num_gpu_blocks': 100}, ['swap_space=4'])
    """
    known = Surrogate.model_fields
    options = {name: arguments[name] for name in known if arguments.get(name) is not None}
    if arguments.get(BLOCKS) is not None:
        options["num_gpu_blocks"] = arguments[BLOCKS]
    others = [(name, value) for name, value in arguments.items() if name not in {*known, *NOT_SIMULATED, BLOCKS}]
    return options, [f"{name}={value}" for name, value in others if value or name not in OFF_UNLESS_SET]


def with_defaults_of(version: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options with what an old vLLM did where it was not told; it is old where its version is not known."""
    numbers = version_of(version)
    found = {**BEFORE_021, "async_scheduling": numbers >= ASYNC_SINCE, **options}
    if () < numbers < CHUNKS_ALWAYS_BEFORE:
        found.pop("enable_chunked_prefill", None)
    return found


def version_of(text: str | None) -> tuple[int, ...]:
    """Returns the numbers of an engine's version; () where it is not known.

    >>> version_of("v0.11.0"), version_of("inference-sim/vllm fork (v0.15-era, V1)"), version_of(None)
    ((0, 11, 0), (0, 15), ())
    """
    found = re.search(r"\d+(?:\.\d+)+", text or "")
    return tuple(int(number) for number in found[0].split(".")) if found else ()


def arguments_of(given: Any) -> dict[str, Any]:
    """Returns vLLM's arguments by name, from a mapping or a command line.

    >>> arguments_of(["--max-num-seqs=128", "--no-enable-prefix-caching", "--model=$(ID)"])
    {'max_num_seqs': 128, 'enable_prefix_caching': False, 'model': '$(ID)'}
    >>> arguments_of("vllm serve Qwen/Qwen3-32B --max-model-len 32768 -tp 2")
    {'max_model_len': 32768, 'tensor_parallel_size': 2}
    """
    if isinstance(given, str):
        given = re.sub(r"(?<=\S) (?=[^-\s])", "=", given.replace(" -tp ", " --tensor-parallel-size ")).split()[1:]
    pairs = dict(given) if isinstance(given, Mapping) else dict(_options(given if isinstance(given, list) else ()))
    return {name.replace("-", "_"): _value(value) for name, value in pairs.items() if value not in ("", None)}


def _options(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if name.startswith("no-") and not equals:
            yield name.removeprefix("no-"), False
        else:
            yield name, value if equals else True


def _value(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
