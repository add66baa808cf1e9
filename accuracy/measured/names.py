"""How reports name models and GPUs, and what we call them."""

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
