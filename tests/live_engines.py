"""Live engines without vLLM: the naive scheduler behind the interface of a real engine, with made-up tokens and step times."""

import itertools
from collections.abc import Callable
from typing import Any

from replicas.live.config import Vllm
from replicas.live.interface import Limits, Scheduled, Step
from sim.errors import EngineError
from tests.property.naive_request import Request, Settings
from tests.property.naive_scheduler import Scheduler

VOCAB = 1000


def limits(settings: Settings) -> Limits:
    return Limits(
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        block_size=settings.block_size,
        num_gpu_blocks=settings.num_usable_blocks + 1,
        enable_prefix_caching=settings.enable_prefix_caching,
        async_scheduling=False,
        vocab_size=VOCAB,
        version="naive",
    )


class NaiveEngine:
    """A `LiveEngine`; its clock is what `step_time` says of a step's features."""

    def __init__(self, settings: Settings, step_time: Callable[[dict[str, float]], float], fails_at_step: int = -1) -> None:
        self.limits, self.settings, self.step_time = limits(settings), settings, step_time
        self.start_s = {"weights_s": 3.0, "start_s": 4.0, "capture_s": 5.0}
        self.scheduler = Scheduler(settings)
        self.known: dict[int, list[int]] = {}  # request -> its tokens so far
        self.requests: list[Request] = []
        self.num_steps, self.fails_at_step = 0, fails_at_step
        self.is_shut_down = False

    def add(self, request: int, prompt: list[int], num_output_tokens: int, priority: int = 0) -> None:
        assert not self.is_shut_down
        assert all(0 < token < VOCAB for token in prompt)
        self.known[request] = known = list(prompt)
        one = Request(str(request), len(prompt), num_output_tokens, priority=priority, tokens=lambda i: known[i])
        self.requests.append(one)
        self.scheduler.add(one)

    def has_work(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running)

    def step(self) -> Step:
        assert not self.is_shut_down
        self.num_steps += 1
        if self.num_steps == self.fails_at_step:
            raise EngineError("vLLM failed in a step: OutOfMemoryError: CUDA out of memory")
        planned = self.scheduler.schedule(0.0)
        step = Step(self.step_time(planned.features()) if planned.rows else 0.0)
        num_free = len(self.scheduler.pool.free)
        step.scheduled = [Scheduled(int(row.request.name), row.num_new, row.num_before) for row in planned.rows]
        seen = [
            [int(r.request.name), r.num_new, r.num_before, r.request.num_prompt_tokens, r.request.num_tokens]
            for r in planned.rows
        ]
        step.admitted = [int(name) for name in planned.new + planned.resumed]
        step.preempted = [int(name) for name in planned.preempted]
        for row in planned.rows:
            if row.has_output:
                known = self.known[int(row.request.name)]
                known.append(1 + (7 * sum(known[-3:]) + len(known)) % (VOCAB - 1))
                step.tokens[int(row.request.name)] = known[-1:]
        step.finished = [int(name) for name in self.scheduler.deliver(planned, 0.0)]
        step.num_free_blocks = (num_free, len(self.scheduler.pool.free))
        self._trace(step, seen)
        return step

    def _trace(self, step: Step, seen: list[list[int]]) -> None:
        """A step of which planning takes 1 ms, taking the output in 2 ms, and the front end nothing."""
        row = {"step": self.num_steps - 1, "reqs": seen, "t0": 0.0, "t1": 0.001}
        step.planned, step.done = [row], [row | {"t2": -0.002, "t3": 0.0, "finished": step.finished}]

    def follow(self, now: Callable[[], float], next_arrival: Callable[[], float]) -> None: ...

    def abort(self, requests: list[int]) -> None:
        for request in [one for one in self.requests if int(one.name) in requests]:
            self.scheduler.finish(request)

    def count_blocks(self) -> tuple[int, int]:
        held = {block for request in self.scheduler.running for block in request.blocks}
        return len(held), len(self.scheduler.pool.free)

    def shut_down(self) -> None:
        self.is_shut_down = True


def per_token(features: dict[str, float]) -> float:
    """10 ms and 10 us a token."""
    return 0.01 + 1e-5 * features["num_tokens"]


class Naive(Vllm):
    """`kind: tests.live_engines:Naive`, which takes `engine_args: {fails_at_step: N}`."""

    def start(self, model: Any, gpu: Any, enable_prefix_caching: bool) -> NaiveEngine:
        max_model_len, max_num_seqs, max_num_batched_tokens = self.limits(model, gpu)
        settings = Settings(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=self.block_size,
            num_usable_blocks=(self.num_gpu_blocks or 1000) - 1,
            max_model_len=max_model_len,
            scheduling_policy=self.scheduling_policy,
            enable_prefix_caching=enable_prefix_caching,
        )
        if self.engine_args.get("fails_at_start"):
            raise EngineError("vLLM did not start: ValueError: the model does not fit")
        step_time = slowed(self.engine_args["slows_at_step"]) if "slows_at_step" in self.engine_args else per_token
        return NaiveEngine(settings, step_time, self.engine_args.get("fails_at_step", -1))


def slowed(at_step: int) -> Callable[[dict[str, float]], float]:
    """`per_token`, and from a step on its device, which is all but 3 ms of it, takes 1.3 times as long."""
    steps = itertools.count()
    return lambda features: 0.003 + (per_token(features) - 0.003) * (1.3 if next(steps) >= at_step else 1.0)
