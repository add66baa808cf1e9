"""Which of the traffic's requests an engine would serve, and at which lengths: what its capacity has to be counted for."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Served:
    """The requests of a sample that an engine would serve, with their answers cut to what is allowed."""

    share: float  # of the sample, 0 to 1
    share_asked: float  # of the sample: those that ask for its model
    is_as_asked: bool  # all are served, and no answer is cut
    mean_prompt_tokens: float  # NaN where none is served
    mean_output_tokens: float

    def refused(self, engine: Any) -> str:
        """Says how many can never be served by this engine (one ENGINE record); empty where none is refused."""
        if self.share == self.share_asked > 0:
            return ""
        if self.share_asked == 0:
            return "no capacity: none of the traffic's requests asks for its model"
        whose = "the traffic's requests" if self.share_asked == 1 else "the requests that ask for its model"
        cache = engine.num_usable_blocks * engine.block_size
        limits = f"max_model_len {engine.max_model_len:,}, KV cache of {cache:,} tokens"
        if self.share == 0:
            return f"no capacity: it can serve none of {whose} ({limits}); they are rejected and counted"
        refused = f"about {100 * (1 - self.share / self.share_asked):.2g} % of {whose} are too long for it ({limits})"
        return f"{refused}; its capacity is that for the others"


def served(rows: NDArray[Any], engine: Any, max_tokens: NDArray[np.int64], asks: NDArray[np.bool_]) -> Served:
    """Returns what of the requests this engine would serve. The rules are the engine's own: `refuse` of `replicas.door`.

    Args:
        rows: (n,) ARRIVAL records, n at least 1.
        engine: one ENGINE record.
        max_tokens: (num_classes,) the longest answer that a class's clients allow; 0 = exactly what they get.
        asks: (num_classes,) whether a class asks for the engine's model.
    """
    num_all, rows = len(rows), rows[asks[rows["class_id"]]]
    share_asked = len(rows) / num_all
    prompt, asked = rows["num_prompt_tokens"], rows["num_output_tokens"]
    allowed = max_tokens[rows["class_id"]]
    is_cut = allowed > 0
    output = np.where(is_cut, np.minimum(asked, np.minimum(allowed, engine.max_model_len - prompt)), asked)
    num_tokens = prompt + np.where(is_cut, np.maximum(output, 1), output)
    num_ahead = engine.num_speculative_tokens + engine.num_lookahead_tokens
    num_slots = np.minimum(num_tokens - 1 + num_ahead, engine.max_model_len)
    fits = (num_tokens <= engine.max_model_len) & (num_slots <= engine.num_usable_blocks * engine.block_size)
    if not fits.any():
        return Served(0.0, share_asked, False, np.nan, np.nan)
    is_as_asked = bool(share_asked == 1 and fits.all() and (output == asked).all())
    return Served(int(fits.sum()) / num_all, share_asked, is_as_asked, _mean(prompt[fits]), _mean(output[fits]))


def _mean(tokens: NDArray[np.int64]) -> float:
    return int(tokens.sum()) / len(tokens)
