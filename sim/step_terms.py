"""What a step takes besides its arithmetic and memory: one entry a term.

Fields of ENGINE, what a calibration's coefficients set in it, a calibration's prediction, the times that drift scales, and the
table of docs/design.md follow from here. `replicas.step_time` adds the terms up, compiled, and is tested against this table.
"""

from itertools import groupby
from typing import Any, NamedTuple

import numpy as np


class Step(NamedTuple):
    """What the terms of a step are multiplied by: numbers of one step, or arrays of many."""

    padded_tokens: Any  # of the longest of the steps that are taken together
    num_requests: Any
    kv_tokens: Any
    num_masks: Any  # requests whose tokens a grammar limits
    is_mixed: Any  # some request has several new tokens: prompt tokens, or drafts
    is_eager: Any  # the longest has more tokens than the largest CUDA graph
    once: Any = 1.0


IN_WORDS = {
    "once": "",
    "padded_tokens": "tokens, padding included",
    "num_requests": "requests",
    "kv_tokens": "KV tokens",
    "num_masks": "masks of structured output",
    "is_mixed": "with prompt tokens",
    "is_eager": "of more tokens than the largest CUDA graph",
}
"""How the fields of `Step` are written."""


class Term(NamedTuple):
    """One term, in seconds; several of one condition are added up before they join the others."""

    field: str  # of ENGINE
    coefficient: str | None  # of a calibration's device_time, or cpu_time; None = it has none for it
    meaning: str
    of: str = "once"  # a field of Step: what it is multiplied by
    when: str = "once"  # a field of Step: the steps that have it
    is_cpu: bool = False  # of the CPU's part, not the device's
    is_least: bool = False  # the least that the step takes with all terms above it

    def seconds(self, step: Step, value: float) -> Any:
        """Returns what it comes to where its coefficient is `value`."""
        return value * getattr(step, self.of) * getattr(step, self.when)


TERMS = (
    Term("comm_s", "link_s", "messages between GPUs, their fixed part"),
    Term("comm_s_per_token", "link_s_per_token", "messages between GPUs", of="padded_tokens"),
    Term("overhead_s", "fixed_s", "what every step takes"),
    Term("gpu_s_per_request", "s_per_request", "work for each request, such as sampling", of="num_requests"),
    Term("mixed_s", "mixed_s", "no CUDA graph holds such a step as a whole", when="is_mixed"),
    Term("mixed_kv_s_per_token", "s_per_mixed_kv_token", "attention reads KV less well", of="kv_tokens", when="is_mixed"),
    Term("launch_s", "launch_s", "the least that it takes: kernels are launched one by one", when="is_mixed", is_least=True),
    Term("eager_s", "eager_s", "kernels are launched one by one", when="is_eager"),
    Term("cpu_s", "s", "planning, and taking tokens in", is_cpu=True),
    Term("cpu_s_per_request", "s_per_request", "the same", of="num_requests", is_cpu=True),
    Term("grammar_cpu_s_per_request", None, "filling masks", of="num_masks", is_cpu=True),
)
"""In the order in which they are added."""

FITTED_WITH_THE_FORM = ("fixed_s", "s_per_request")
"""Coefficients of the device that are fitted together with arithmetic and memory (`replicas.calibration.device_fit`)."""


def set_by(device: Any, cpu: Any, scale: float) -> dict[str, float]:
    """Returns the ENGINE fields that a calibration's coefficients set.

    Args:
        device: its device_time.
        cpu: its cpu_time.
        scale: multiplies all of them.
    """
    known = [(term, term.coefficient) for term in TERMS if term.coefficient is not None]
    return {term.field: getattr(cpu if term.is_cpu else device, name) * scale for term, name in known}


def with_terms(seconds: Any, step: Step, device: Any) -> Any:
    """Returns (n,) the device's seconds of steps with the terms that are not fitted together with arithmetic and memory.

    Args:
        seconds: (n,) without them.
        step: of arrays (n,).
        device: a calibration's device_time.
    """
    rest = [term for term in TERMS if not term.is_cpu and term.coefficient not in FITTED_WITH_THE_FORM]
    for (_, is_least), terms in groupby(rest, key=lambda term: (term.when, term.is_least)):
        together = sum(term.seconds(step, getattr(device, str(term.coefficient))) for term in terms)
        seconds = np.maximum(seconds, together) if is_least else seconds + together
    return seconds
