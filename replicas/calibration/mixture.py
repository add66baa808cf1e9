"""How a model's experts enter a step: the arithmetic that engines share, and the weights that a step's tokens hit."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replicas.catalog import Model

Floats = NDArray[np.float64]


class Mixture(NamedTuple):
    """The experts of a model; the default has none."""

    num_ranks: int = 1  # engines that share the experts and step together
    shared_flops: float = 0.0  # share of a token's arithmetic that they do together
    expert_weights: float = 0.0  # share of the weights on an engine's GPUs that are experts
    hit_share: float = 0.0  # of the experts, that one token visits

    def read(self, tokens: Floats) -> Floats:
        """Returns (n,) the share of the weights that steps read: all but the experts that none of the tokens of all hits.

        Source: `replicas.step_time.weight_bytes_read`.
        """
        hit = 1 - (1 - self.hit_share) ** (tokens * self.num_ranks)
        return 1 - self.expert_weights * (1 - np.asarray(hit, np.float64))


DENSE = Mixture()


def mixture_of(model: Model, num_ranks: int = 1) -> Mixture:
    """Returns the experts of `model` on `num_ranks` engines that share them.

    >>> from replicas.catalog import model
    >>> mixture_of(model("llama-3.1-8b")) == DENSE
    True
    >>> mixture_of(model("mixtral-8x7b"), 2).hit_share
    0.25
    """
    if not model.num_experts:
        return DENSE
    own = model.num_expert_params / num_ranks
    active = model.num_expert_params * model.expert_hit_share
    shared_flops = active / model.num_active_params if num_ranks > 1 else 0.0
    return Mixture(num_ranks, shared_flops, own / (model.num_params - model.num_expert_params + own), model.expert_hit_share)
