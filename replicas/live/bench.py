"""Has an engine run one step of a wanted shape, and measures it: what a calibration is fitted to."""

from typing import Any, NamedTuple

import numpy as np

from replicas.live.interface import LiveEngine, Step
from replicas.live.tokens import TokenStreams
from sim.errors import EngineError
from sim.records import SEGMENT

_DECODE, _CACHED, _FRESH = 1 << 40, 2 << 40, 3 << 40  # streams of tokens: of a decode's context, of a prefix, of a chunk
_LONG = 1 << 20  # output tokens of a request that is to go on decoding


class StepParts(NamedTuple):
    """How long the parts of one step took, in seconds."""

    device_s: float  # from the end of planning to the arrival of the model's output
    schedule_s: float
    update_s: float  # taking the output in
    front_end_s: float  # the rest of the call


class Bench:
    """Runs steps of wanted shapes on an engine that serves nobody else.

    Contexts come from the prefix cache where they still are, so that only the first step of a shape has to compute them. Each
    decode has a context of its own, as in life, and a chunk is never the same again. The engine must not schedule ahead
    (`async_scheduling: false`): parts that overlap cannot be told apart.

    Raises:
        EngineError: the engine schedules ahead, or has no prefix cache.
    """

    def __init__(self, engine: LiveEngine) -> None:
        if engine.limits.async_scheduling or not engine.limits.enable_prefix_caching:
            raise EngineError("to measure steps, start the engine with async_scheduling false and enable_prefix_caching true")
        self.engine = engine
        self._streams = TokenStreams(engine.limits.vocab_size)
        self._num_requests = 0
        self._num_chunks = 0

    def measure(self, num_decodes: int = 0, decode_context: int = 0, chunk: int = 0, cached: int = 0) -> StepParts:
        """Runs one step with so many decodes of this context, and a chunk of a prompt on `cached` computed tokens of it.

        While many contexts are put in place, the first ones go on decoding, so theirs may be a few tokens longer.

        Args:
            num_decodes: requests that decode.
            decode_context: tokens that each of them has computed before.
            chunk: prompt tokens of one more request; 0 = none.
            cached: of that request, a multiple of the block size.

        Raises:
            EngineError: the engine ran another step than that.
        """
        running: list[int] = []
        if cached:
            self._run_out(self._add(_CACHED, cached, 1))
        if num_decodes:
            running = [self._add(_DECODE + k, decode_context, self._answer(decode_context)) for k in range(num_decodes)]
            self._run_until_decoding(running)
        if chunk:
            self._num_chunks += 1
            running.append(self._add(_CACHED, cached, 1, _FRESH + self._num_chunks, chunk))
        step = self.engine.step()
        self._check(step, num_decodes, chunk, cached)
        self.engine.abort([i for i in running if i not in step.finished])
        while self.engine.has_work():
            self.engine.step()
        return parts_of(step)

    def _answer(self, context: int) -> int:
        return min(_LONG, self.engine.limits.max_model_len - context)

    def _add(self, stream: int, length: int, num_output: int, second: int = 0, num_second: int = 0) -> int:
        """Adds a request whose prompt is `length` tokens of one stream and then `num_second` of another."""
        self._num_requests += 1
        segments: Any = np.array([(stream, length), (second, num_second)], SEGMENT)
        prompt = self._streams.prompt(self._num_requests, segments, length + num_second)
        self.engine.add(self._num_requests, prompt, num_output)
        return self._num_requests

    def _run_out(self, request: int) -> None:
        while request not in self.engine.step().finished:
            pass

    def _run_until_decoding(self, requests: list[int]) -> None:
        """Steps until all of the requests have a token."""
        missing = set(requests)
        while missing:
            step = self.engine.step()
            missing -= step.tokens.keys()
            if step.preempted:
                raise EngineError(f"{len(requests)} contexts do not fit the KV cache together")

    def _check(self, step: Step, num_decodes: int, chunk: int, cached: int) -> None:
        decodes = step.scheduled[: len(step.scheduled) - (chunk > 0)]
        if chunk:
            last = step.scheduled[-1]
            if (last.num_new_tokens, last.num_computed_tokens) != (chunk, cached):
                ran = f"{last.num_new_tokens} on {last.num_computed_tokens} cached"
                raise EngineError(f"a chunk of {chunk} on {cached} cached tokens was asked for, and the engine ran {ran}")
        if len(decodes) != num_decodes or any(one.num_new_tokens != 1 for one in decodes):
            raise EngineError(f"{num_decodes} decodes were asked for, and the engine ran {step.scheduled}")


def parts_of(step: Step) -> StepParts:
    """Returns the parts of a step whose planning and output fall into one call.

    >>> row = {"t0": 0.001, "t1": 0.002, "t2": -0.004, "t3": -0.001}
    >>> [f"{part:.3f}" for part in parts_of(Step(0.020, planned=[row], done=[row]))]
    ['0.014', '0.001', '0.003', '0.002']
    """
    (row,) = step.done
    schedule_s, update_s = row["t1"] - row["t0"], row["t3"] - row["t2"]
    device_s = step.lasted_s + row["t2"] - row["t1"]
    return StepParts(device_s, schedule_s, update_s, step.lasted_s - schedule_s - update_s - device_s)
