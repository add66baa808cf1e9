"""What a real engine looks like from the simulation: its limits, its steps, and how it is driven."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


class Limits(NamedTuple):
    """What an engine says of itself once it runs; vLLM's words."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_gpu_blocks: int  # vLLM's null block included
    enable_prefix_caching: bool
    async_scheduling: bool
    vocab_size: int
    version: str
    max_graph_tokens: int = 0  # tokens of the largest CUDA graph; 0 = none are used
    memory: Mapping[str, int] = {}  # bytes on one device, as far as it says: weights, kv_cache, activations, graphs


class Scheduled(NamedTuple):
    """One request in a step."""

    request: int
    num_new_tokens: int
    num_computed_tokens: int  # before the step; at the first admission, those found in the prefix cache


@dataclass
class Step:
    """One iteration of an engine: what it planned, what came out, and how long it took."""

    lasted_s: float  # what the virtual clock moves by
    cpu_s: float = 0.0  # CPU time of the engine's thread
    scheduled: list[Scheduled] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)  # from `waiting`, new or resumed
    preempted: list[int] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)  # request -> its new output tokens
    finished: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)  # request -> why
    cached: dict[int, int] = field(default_factory=dict)  # request -> cached prompt tokens, if told at its end
    num_free_blocks: tuple[int, int] = (0, 0)  # when the step is planned, and when it has ended
    planned: list[dict[str, Any]] = field(default_factory=list)  # rows of the step trace (see `recorder`) that begin here,
    done: list[dict[str, Any]] = field(default_factory=list)  # and end here: t0, t1 from the call's start, t2, t3 from its end


class LiveEngine(Protocol):
    """A started engine. Requests are named by their numbers in the simulation."""

    limits: Limits
    start_s: dict[str, float]  # the measured stages of its start: weights_s, start_s, capture_s

    def add(self, request: int, prompt: list[int], num_output_tokens: int, priority: int = 0) -> None:
        """Gives it a request that will yield exactly so many tokens."""

    def has_work(self) -> bool:
        """Tells whether a request is waiting or running, or a step in flight."""

    def step(self) -> Step:
        """Runs one iteration and measures it.

        Raises:
            EngineError: the engine failed.
        """

    def follow(self, now: Callable[[], float], next_arrival: Callable[[], float]) -> None:
        """Learns the simulation's clock and when the next request arrives; an engine in virtual time needs neither."""

    def abort(self, requests: list[int]) -> None:
        """Takes requests out that are still in it."""

    def count_blocks(self) -> tuple[int, int]:
        """Counts, block by block, those that requests hold and those that are free."""

    def shut_down(self) -> None:
        """Ends it and gives its memory back."""
