"""Where a GPU's memory goes, and so how many KV blocks an engine has: the number that matters most in a deployment.

vLLM does not compute this, it measures: it loads the weights, runs one step of the largest size with dummy requests, and
gives what is left of `gpu_memory_utilization` to the KV cache (`Worker.determine_available_memory` in
vllm/v1/worker/gpu_worker.py, 0.32.0). We follow the same items. How far off (tests/unit/replicas/test_memory.py):

    activation peak with 1,024 requests and 8,192 tokens on H100, vLLM 0.19, measured for llm-d's capacity planner:
    Llama 1.89 GiB (ours 1.77), Qwen3 2.21 (2.11), DeepSeek-V3 1.93 (1.97).
    RTX 4090, Llama 3.1 8B, utilisation 0.9, vLLM 0.19.0: 41,408 tokens. Ours 39,184; 44,992 with nothing set aside for
    CUDA graphs, as 0.19 did not yet. Weights alone subtracted would leave 50,848: a quarter too many.

Left out, each below 0.1 GiB: rotary tables, the top-k kernel's scratch, the worker's input buffers.
"""

from dataclasses import dataclass, replace

from replicas.catalog import Model

GIB = 2**30

BF16_BYTES = 2
"""Width of weights, activations and KV cache that are not quantized; models are served in 16 bit unless told otherwise."""

FP32_BYTES = 4
"""Width of weights and KV cache of a model that is served in float32, as on CPUs."""

LOGIT_BYTES = 14
"""Held for each logit while vLLM samples: bf16 logits 2, fp32 copy 4, softmax 4, exponential noise 4.

Source: `Sampler.forward` and `TopKTopPSampler.forward_native` of vLLM 0.32.0 (and 0.19.0), vllm/v1/sample/.
"""

CONTEXT_BYTES = {"single": round(0.27 * GIB), "parallel": round(2.10 * GIB)}
"""Per GPU, what is neither weights nor PyTorch's: kernels, cuBLAS, and with tensor parallelism NCCL and its buffers.

Source: measured on H100 with vLLM 0.19.0 for llm-d's capacity planner (llm_d_bench.capacity.vllm_constants,
NON_TORCH_OVERHEAD_GIB: tp1_pp1 and tpN_pp1). Its older measurements are 0.13 and 0.55 (llm-d/llm-d-benchmark,
config_explorer/empirical-vllm-memory-results.md).
"""

CUDA_GRAPH_BYTES = round(0.71 * GIB)
"""Per GPU, set aside for CUDA graphs by vLLM since 0.21 (before, nothing).

Assumption: the mean of two start-up logs with the default 86 graphs on one GPU, Qwen3.5 4B on 0.22.0 and 9B on 0.19.0:
0.64 and 0.78 GiB estimated, which is what vLLM subtracts (0.55 and 0.65 used). Larger models and more GPUs differ.
"""


@dataclass(frozen=True)
class MemoryBreakdown:
    """One GPU's memory, in bytes, and the KV blocks that the replica gets from it. Print it to see the table."""

    gpu: str
    model: str
    tensor_parallel_size: int
    gpu_memory_utilization: float
    total_bytes: float
    weight_bytes: float
    activation_bytes: float
    context_bytes: float
    cuda_graph_bytes: float
    block_size: int
    block_bytes: float  # one block's share on this GPU
    num_gpu_blocks: int  # block 0 of vLLM, its null block, included
    is_given: bool  # num_gpu_blocks was stated, not computed

    @property
    def utilised_bytes(self) -> float:
        """What the engine may use of this GPU."""
        return self.total_bytes * self.gpu_memory_utilization

    @property
    def available_bytes(self) -> float:
        """What is left for the KV cache; negative when the model does not fit."""
        taken = self.weight_bytes + self.activation_bytes + self.context_bytes + self.cuda_graph_bytes
        return self.utilised_bytes - taken

    @property
    def is_enough(self) -> bool:
        """Whether the model runs at all. A stated num_gpu_blocks is believed as long as the weights fit."""
        if self.is_given:
            return self.weight_bytes <= self.utilised_bytes
        return self.available_bytes >= 2 * self.block_bytes

    def with_blocks(self) -> "MemoryBreakdown":
        """Returns the same memory with as many KV blocks as fit."""
        return replace(self, num_gpu_blocks=max(0, int(self.available_bytes // self.block_bytes)))

    @property
    def kv_bytes(self) -> float:
        """What the KV blocks take of this GPU."""
        return self.num_gpu_blocks * self.block_bytes

    @property
    def num_tokens(self) -> int:
        """Tokens of KV cache in the replica, as vLLM's start-up log counts them (null block included)."""
        return self.num_gpu_blocks * self.block_size

    def __str__(self) -> str:
        """Returns the table of one GPU, in GiB."""
        rows = [
            ("memory of the GPU", self.total_bytes),
            (f"x gpu_memory_utilization {self.gpu_memory_utilization:g}", self.utilised_bytes),
            ("- weights", self.weight_bytes),
            ("- activations", self.activation_bytes),
            ("- context (CUDA, NCCL, kernels)", self.context_bytes),
            ("- CUDA graphs", self.cuda_graph_bytes),
            ("= left for the KV cache", self.available_bytes),
        ]
        title = f"{self.model} on {self.tensor_parallel_size} x {self.gpu}, per GPU in GiB"
        lines = [title, *(f"  {label:<34}{size / GIB:>9.2f}" for label, size in rows)]
        origin = "given" if self.is_given else "computed"
        blocks = f"  {self.num_gpu_blocks:,} blocks of {self.block_size} ({origin}), {self.num_tokens:,} tokens"
        return "\n".join([*lines, blocks])


def weight_bytes(model: Model, bytes_per_weight: float) -> tuple[float, float]:
    """Returns (dense, expert) bytes of the whole model, as stored.

    Where the blocks are quantized, embedding table and output head stay in 16 bit: in published checkpoints
    (compressed-tensors, ModelOpt) as where vLLM itself quantizes, linear layers only
    (`Fp8Config.get_quant_method`, 0.32.0).

    >>> from replicas.catalog import model
    >>> [f"{size / 1e9:.1f}" for size in weight_bytes(model("mixtral-8x7b"), 2)]
    ['3.2', '90.2']
    >>> sum(weight_bytes(model("llama-3.1-70b"), 1)) - model("llama-3.1-70b").num_params == 2 * 128256 * 8192
    True
    """
    experts = model.num_expert_params * bytes_per_weight
    wider = max(0.0, BF16_BYTES - bytes_per_weight) * (model.embedding_params + model.head_params)
    return model.num_params * bytes_per_weight - experts + wider, experts


def weight_bytes_read(model: Model, bytes_per_weight: float) -> tuple[float, float]:
    """Returns (dense, expert) bytes that a step reads which visits all experts.

    Texts count every parameter once, and so do we: in 16 bit that is up to 8 % too much (Llama 3.1 8B 7 %), as only rows of the
    embedding table are read. In fp8 it is right: the output head is read in 16 bit, and takes the place of a table of its size.

    >>> from replicas.catalog import model
    >>> sum(weight_bytes_read(model("llama-3.1-70b"), 1)) == model("llama-3.1-70b").num_params
    True
    >>> small = model("qwen3-0.6b")  # its head is the embedding table, all of which is read
    >>> sum(weight_bytes_read(small, 1)) == small.num_params + 151936 * 1024
    True
    """
    dense, experts = weight_bytes(model, bytes_per_weight)
    if bytes_per_weight < BF16_BYTES:
        dense -= BF16_BYTES * model.embedding_params
    return dense, experts


def kv_bytes_per_token(model: Model, tensor_parallel_size: int, bytes_per_element: float) -> float:
    """Returns the bytes that one token's KV takes on *each* GPU of the replica.

    KV heads are split over the GPUs, and repeated when there are fewer than GPUs; a latent (MLA) is on every GPU whole.

    >>> from replicas.catalog import model
    >>> kv_bytes_per_token(model("llama-3.1-70b"), 4, 2) * 4
    327680.0
    """
    if model.kv_lora_rank:
        elements = float(model.kv_lora_rank + model.qk_rope_head_dim)
    else:
        elements = 2.0 * max(1, model.kv_heads // tensor_parallel_size) * model.head_dim
    return model.layers * elements * bytes_per_element


def lora_bytes(model: Model, rank: int) -> float:
    """Returns the bytes of a LoRA adapter in 16 bit: two thin matrices for each linear layer of every block.

    Assumption: on attention and the dense feed-forward layers; experts carry none.

    >>> from replicas.catalog import model
    >>> lora_bytes(model("llama-3.1-8b"), 16)
    83886080.0
    """
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    attention = 2 * (model.hidden + queries) + 2 * (model.hidden + keys)
    feed_forward = 0 if model.num_experts else 3 * (model.hidden + model.intermediate)
    return float(model.layers * rank * (attention + feed_forward) * BF16_BYTES)


def activation_bytes(model: Model, tensor_parallel_size: int, max_num_batched_tokens: int, max_num_seqs: int) -> float:
    """Returns the peak of PyTorch's temporary memory on one GPU: the larger of the widest layer and the sampler.

    Both see the largest step. The sampler works on whole rows of logits on every GPU, so its peak does not shrink with
    tensor parallelism, and with the default 1,024 requests and a large vocabulary it is the larger.

    Source: `GPUModelRunner.profile_run` of vLLM 0.32.0; for experts `TritonExperts.workspace_shapes`.
    """
    tokens = max_num_batched_tokens
    num_logits = min(max_num_seqs, tokens) * model.vocab
    sampler = num_logits * LOGIT_BYTES + tokens * model.hidden * BF16_BYTES
    mlp = 3 * model.intermediate / tensor_parallel_size  # gate and up, and their product
    if model.num_experts:
        expert = model.moe_intermediate / tensor_parallel_size
        mlp = model.experts_per_token * (max(2 * expert, model.hidden) + max(expert, model.hidden))
    layer = tokens * BF16_BYTES * (2 * model.hidden + mlp)  # the layer's input and the residual stream
    return max(sampler, layer)
