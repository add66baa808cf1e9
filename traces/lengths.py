"""Prompt and output lengths of a request, and the classes of requests that differ in them."""

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from sim.params import Params
from sim.randomness import stream
from traces.length_laws import Law, Tokens
from traces.rates import Floats
from traces.traffic import Arrivals


class Lengths(Params):
    """How many tokens come in and go out."""

    prompt: Law = Field(description="Law of the prompt length, in tokens.")
    output: Law = Field(description="Law of the output length, in tokens.")
    correlation: float = Field(
        default=0.0,
        ge=-1,
        le=1,
        description="Correlation of the two normal numbers that prompt and output are made from (a Gaussian copula: "
        "it ties their ranks, and leaves both laws as they are).",
    )

    def draw(self, normals: Floats) -> tuple[Tokens, Tokens]:
        """Turns independent standard normal numbers, shape (2, n), into prompt and output tokens, (n,) each."""
        prompt, other = normals
        output = self.correlation * prompt + math.sqrt(1 - self.correlation**2) * other if self.correlation else other
        return self.prompt.of_normal(prompt), self.output.of_normal(output)


class RequestClass(Params):
    """One kind of request in the mix; an SLO can be set for it by name."""

    name: str = Field(min_length=1, description="The name of the class in results and SLOs.")
    share: float = Field(gt=0, description="Share of the requests; shares are taken relative to their sum.")
    lengths: Lengths = Field(description="Lengths of this class.")


class Mix:
    """Draws class and lengths of one request after the other; the same whatever the size of the chunks."""

    def __init__(self, classes: Sequence[RequestClass], seed: int) -> None:
        self._classes = classes
        shares = np.cumsum([one.share for one in classes])
        self._shares = shares[:-1] / shares[-1]
        self._class_random = stream(seed, "classes")
        self._length_random = stream(seed, "prompt_lengths"), stream(seed, "output_lengths")

    def fill(self, rows: Arrivals) -> None:
        """Writes `class_id`, `num_prompt_tokens` and `num_output_tokens` of every row."""
        normals = np.stack([random.standard_normal(len(rows)) for random in self._length_random])
        rows["class_id"] = 0
        if len(self._classes) > 1:
            rows["class_id"] = np.searchsorted(self._shares, self._class_random.random(len(rows)), side="right")
        for class_id, one in enumerate(self._classes):
            chosen = slice(None) if len(self._classes) == 1 else rows["class_id"] == class_id
            prompt, output = one.lengths.draw(normals[:, chosen])
            rows["num_prompt_tokens"][chosen] = prompt
            rows["num_output_tokens"][chosen] = output
