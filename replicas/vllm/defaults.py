"""What vLLM chooses by itself where it is not told."""

from replicas.catalog import Gpu
from replicas.memory import GIB


def largest_graph_tokens(gpu: Gpu, max_num_seqs: int, num_speculative_tokens: int = 0) -> int:
    """Returns the tokens of the largest CUDA graph: twice max_num_seqs decodes, at most 512, or 1024 on Blackwell.

    Source: `VllmConfig._set_cudagraph_sizes` of vLLM 0.32.0.
    """
    largest = 1024 if gpu.name.startswith(("b200", "gb200", "b300", "gb300")) else 512
    return min(2 * max_num_seqs * (1 + num_speculative_tokens), largest)


def defaults(gpu: Gpu) -> tuple[int, int]:
    """Returns the API server's (max_num_batched_tokens, max_num_seqs) on this GPU.

    Source: `EngineArgs.get_batch_defaults` of vLLM 0.32.0.
    """
    if gpu.memory_bytes >= 160 * GIB:
        return 16384, 1024
    if gpu.memory_bytes >= 70 * GIB and "a100" not in gpu.name.lower():
        return 8192, 1024
    return 2048, 256
