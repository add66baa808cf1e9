"""Over how many GPUs to split a model: every layout with what it holds, how fast it is, and what binds it."""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planning.instance import Instance
from replicas.catalog import Gpu, Model
from replicas.engine import Engine
from sim.checks import check_positive

TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)
PIPELINE_STAGES = (2, 4, 8)
"""Tried, the fewest first, only where the model does not fit into the GPUs of one machine."""


@dataclass(frozen=True)
class Work:
    """What a request asks of a decode, and the slowest that a token may be."""

    context_tokens: float  # attended to, mean over the answer: prompt and half the output
    held_tokens: float  # set aside in memory for one request
    tpot_s: float | None = None


@dataclass(frozen=True)
class Layout:
    """One way to split the model, with its cache full of such requests. Where it cannot run, `problem` says why."""

    gpu: str
    tensor_parallel_size: int
    num_stages: int
    expert_parallel_size: int
    num_gpus: int
    problem: str = ""
    memory_batch: int = 0  # requests that the cache holds
    tpot_batch: int = 0  # requests within the TPOT target; 0 = not even one
    batch: int = 0  # the least of both and of max_num_seqs
    binding: str = ""  # which of the three it is
    step_s: float = float("nan")
    tokens_per_s: float = 0.0  # output, of the instance
    alone_s: float = float("nan")  # a token's time at batch 1

    @property
    def name(self) -> str:
        """Its parallelism, for people: TP4, TP8 PP2, EP144."""
        if self.expert_parallel_size > 1:
            return f"EP{self.expert_parallel_size}"
        return f"TP{self.tensor_parallel_size}" + (f" PP{self.num_stages}" if self.num_stages > 1 else "")

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Output tokens/s of each GPU: what a token costs follows from it."""
        return self.tokens_per_s / self.num_gpus

    @property
    def tokens_per_s_per_user(self) -> float:
        """Output tokens/s that each user sees; NaN where it cannot run."""
        return 1 / self.step_s


def layout(instance: Instance, work: Work) -> Layout:
    """Returns what one instance does with this work.

    Raises:
        ValueError: a number of `work` is not positive.
    """
    check_positive("context_tokens", work.context_tokens)
    check_positive("held_tokens", work.held_tokens)
    size, stages, experts = instance.replicas.tensor_parallel_size, instance.num_stages, instance.expert_parallel_size
    names = (instance.gpu.name, size, stages, experts, instance.num_gpus)
    try:
        memory_batch = int(instance.cache_tokens // work.held_tokens)
        engine = instance.engine
    except ValueError as error:
        return Layout(*names, problem=str(error))
    alone_s = instance.step_s(1, work.context_tokens)
    most_seqs = int(engine.max_num_seqs) * stages * experts
    most = min(memory_batch, most_seqs)
    tpot_batch = largest_batch_within(instance, work.context_tokens, work.tpot_s, most)
    limits = {"memory": memory_batch, "max_num_seqs": most_seqs}
    if tpot_batch < most:
        limits["tpot"] = tpot_batch
    binding = min(limits, key=lambda name: limits[name])
    batch = limits[binding]
    if batch == 0:
        why = "not one such request fits in its cache" if binding == "memory" else f"a token alone takes {alone_s:.3g} s"
        return Layout(*names, why, memory_batch, tpot_batch, 0, binding, alone_s=alone_s)
    step_s = instance.step_s(batch, work.context_tokens)
    return Layout(*names, "", memory_batch, tpot_batch, batch, binding, step_s, batch / step_s, alone_s)


def largest_batch_within(instance: Instance, context_tokens: float, tpot_s: float | None, most: int) -> int:
    """Returns the largest batch, at most `most`, whose step is no longer than `tpot_s`; 0 when a single request's is longer.

    One token a step: a step's length is the TPOT.
    """
    if tpot_s is None:
        return most
    check_positive("tpot_s", tpot_s)
    return bisect.bisect_right(range(1, most + 1), tpot_s, key=lambda batch: instance.step_s(batch, context_tokens))


def instances(
    replicas: Engine, model: Model, gpu: Gpu, gpus_per_node: int = 8, expert_parallel_sizes: Sequence[int] = ()
) -> Iterator[Instance]:
    """Yields the instances worth a look: every tensor-parallel size within a node, pipelines where none of those fits.

    And groups that share experts, of the sizes given.

    Raises:
        ValueError: a group of a model without experts.
    """
    sizes = [n for n in TENSOR_PARALLEL_SIZES if n <= gpus_per_node and model.heads % n == 0]
    fits = False
    for size in sizes:
        one = Instance(replicas.model_copy(update={"tensor_parallel_size": size}), model, gpu)
        fits = fits or _fits(one)
        yield one
    if not fits:
        widest = replicas.model_copy(update={"tensor_parallel_size": sizes[-1]})
        for num_stages in PIPELINE_STAGES:
            one = Instance(widest, model, gpu, num_stages)
            yield one
            if _fits(one):
                break
    for size in expert_parallel_sizes:
        yield Instance(replicas.model_copy(update={"tensor_parallel_size": 1}), model, gpu, expert_parallel_size=size)


def _fits(instance: Instance) -> bool:
    try:
        return instance.cache_tokens > 0
    except ValueError:
        return False
