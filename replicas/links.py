"""What the GPUs of an engine, or engines that share experts, send each other in a step: in no profile of one GPU's kernels."""

from typing import NamedTuple

from replicas.catalog import Gpu, Model
from replicas.memory import BF16_BYTES


class Links(NamedTuple):
    """The time of a step's messages; without any, of one GPU alone."""

    num_ranks: int = 1  # engines that share experts and step together
    fixed_s: float = 0.0
    s_per_token: float = 0.0  # of the longest of their steps, padded

    def step_s(self, num_tokens: float) -> float:
        """Returns the seconds of the messages of a step of so many tokens."""
        return self.fixed_s + num_tokens * self.s_per_token


NO_LINKS = Links()


def links_of(model: Model, gpu: Gpu, tensor_parallel_size: int, num_ranks: int, latency_s: float, efficiency: float) -> Links:
    """Returns the messages of `tensor_parallel_size` GPUs, and of `num_ranks` engines that share the model's experts.

    Two ring all-reduces a layer, each of 2 (n - 1) messages of an n-th of the tokens; and in a layer with experts an all-gather
    of the hidden states of all ranks' tokens and a reduce-scatter, each of ranks - 1 messages of a rank's tokens, as vLLM's
    default `all2all_backend` sends them.

    Args:
        model: whose hidden states are sent.
        gpu: whose links carry them.
        tensor_parallel_size: n.
        num_ranks: 1 for a model without experts.
        latency_s: of one message.
        efficiency: share of the links' peak bandwidth.
    """
    n, m = tensor_parallel_size, num_ranks
    reduced, exchanged = 2 * model.layers * 2 * (n - 1), 2 * model.moe_layers * (m - 1)
    message_s = model.hidden * BF16_BYTES / (gpu.link_bytes_per_s * efficiency)  # a token's hidden state, whole
    return Links(m, (reduced + exchanged) * latency_s, (reduced / n + exchanged) * message_s)
