"""How reports name models, GPUs and engine arguments, and what we call them."""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from replicas.catalog import gpus, models

MODELS = {
    "llama-2-7b-hf": "llama-2-7b",
    "llama-2-70b-hf": "llama-2-70b",
    "meta-llama-3-8b-instruct": "llama-3.1-8b",
    "llama-3.1-8b-instruct": "llama-3.1-8b",
    "qwen3-30b-a3b-instruct-2507": "qwen3-30b-a3b",
    "llama-3.1-70b-instruct": "llama-3.1-70b",
    "llama-3.3-70b-instruct": "llama-3.1-70b",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "codellama-34b-instruct-hf": "codellama-34b",
    "mistral-nemo-instruct-2407": "mistral-nemo-12b",
    "qwen2.5-7b-instruct": "qwen2.5-7b",
    "llama-3.1-8b-instruct-fp8": "llama-3.1-8b",
}
"""Names of models on Hugging Face, without the owner and in lower case, and of the same shapes in our catalogue."""

DTYPES = {"bf16": None, "fp16": None, "fp16/bf16": None, "bfloat16": None, "fp8": "fp8"}
"""How a result names the dtype of its weights, and the surrogate's `quantization`."""


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


OFF_UNLESS_SET = ("cpu_offload_gb", "swap_space")
"""Arguments that are not simulated, and need not be where they are 0 or false."""


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


def model_of(name: str) -> str:
    """Returns the catalogue's name of a model by its name on Hugging Face, with or without the owner; "" where it has none.

    >>> model_of("meta-llama/Llama-2-7b-hf")
    'llama-2-7b'
    """
    short = name.split("/")[-1].lower()
    return short if short in models() else MODELS.get(short, "")


def gpu_of(name: str) -> str:
    """Returns the catalogue's name of a GPU by its name in prose, whose first words count; "" where it has none.

    >>> [gpu_of(name) for name in ("H100 SXM 80GB", "NVIDIA A100 80GB PCIe", "RTX 4090 24GB", "MI300X")]
    ['h100-sxm', 'a100-pcie', 'rtx-4090', '']
    """
    words = name.lower().removeprefix("nvidia ").split()
    variant = "pcie" if "pcie" in words else "sxm"
    for num_words in range(len(words), 0, -1):
        first = "-".join(words[:num_words])
        for known in (first, f"{first}-{variant}"):
            if known in gpus():
                return known
    return ""


def not_simulated(arguments: Mapping[str, Any], known: Container[str]) -> list[str]:
    """Returns the engine's arguments that are not `known`, in words, less those that are off."""
    unknown = [(name, value) for name, value in arguments.items() if name not in known]
    return [f"{name}={value}" for name, value in unknown if value or name not in OFF_UNLESS_SET]


def version_of(text: str | None) -> tuple[int, ...]:
    """Returns the numbers of an engine's version; () where it is not known.

    >>> version_of("v0.11.0"), version_of("inference-sim/vllm fork (v0.15-era, V1)"), version_of(None)
    ((0, 11, 0), (0, 15), ())
    """
    found = re.search(r"\d+(?:\.\d+)+", text or "")
    return tuple(int(number) for number in found[0].split(".")) if found else ()
