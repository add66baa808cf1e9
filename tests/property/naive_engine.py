"""An engine written a second time, to be obviously right rather than fast: lists, and every block and token counted one by one.

It restates vLLM's scheduler from the reading aid (`shared/reference/vllm-v1-scheduler.md`; the numbers in the comments are
its items) and shares no line with `replicas/`. `Engine` decides steps. `by_step` drives one by step index, as the recorder
of the conformance traces drove vLLM's; `by_time` drives one through simulated time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Settings:
    """vLLM's options, by vLLM's names; `num_usable_blocks` leaves the null block out."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_usable_blocks: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    scheduler_reserve_full_isl: bool = True
    watermark_blocks: int = 0
    async_scheduling: bool = False


@dataclass(eq=False)
class Request:
    name: str
    num_prompt_tokens: int
    num_output_tokens: int
    computed: int = 0  # tokens with KV, the scheduled ones included
    placeholders: int = 0  # output tokens that a scheduled step will yield
    received: int = 0  # output tokens that came out
    blocks: int = 0
    num_preemptions: int = 0
    scheduled_at_s: float | None = None
    token_at_s: list[float] = field(default_factory=list)


@dataclass
class Step:
    """What one step does: rows of (request, new tokens, tokens computed before), and who moved."""

    rows: list[tuple[Request, int, int]] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    yields: list[Request] = field(default_factory=list)

    def features(self) -> dict[str, float]:
        """What a step-time model may know of it."""
        return {
            "num_requests": len(self.rows),
            "num_tokens": sum(n for _, n, _ in self.rows),
            "attended_tokens": sum(n * (c + n / 2) for _, n, c in self.rows),
            "kv_tokens": sum(c + n for _, n, c in self.rows),
        }


class Engine:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.free = settings.num_usable_blocks

    def schedule(self) -> Step:
        """Plans one step (1: one token budget, no phases; 2: the running first, in order of admission)."""
        step, budget = Step(), self.settings.max_num_batched_tokens
        place = 0
        while place < len(self.running):  # which loses its last ones on the way
            request = self.running[place]
            place += 1
            wanted = min(self.wanted(request), budget)
            if wanted == 0:  # 6
                continue
            if not self.allocate_or_preempt(request, wanted, step):
                break
            step.rows.append((request, wanted, request.computed))
            budget -= wanted
        while not step.preempted and budget > 0 and self.can_admit(budget):  # 9, 10
            request = self.waiting.pop(0)
            wanted = min(request.num_prompt_tokens + request.received, budget)
            self.running.append(request)
            self.allocate(request, wanted)
            (step.resumed if request.num_preemptions else step.new).append(request.name)
            step.rows.append((request, wanted, 0))
            budget -= wanted
        for request, wanted, _ in step.rows:  # 17
            request.computed += wanted
            if request.computed == request.num_prompt_tokens + request.received + request.placeholders:
                request.placeholders += 1
                step.yields.append(request)
        return step

    def wanted(self, request: Request) -> int:
        """3; and 18: no step is planned past the last token, even when it has not come out yet."""
        if request.received + request.placeholders == request.num_output_tokens:
            return 0
        known = request.num_prompt_tokens + request.received + request.placeholders
        return min(known - request.computed, self.settings.max_model_len - request.computed - 1)

    def allocate_or_preempt(self, request: Request, wanted: int, step: Step) -> bool:
        """7: makes room by preempting from the back; False when it had to preempt `request` itself."""
        while self.blocks_for(request.computed + wanted) - request.blocks > self.free:
            victim = self.running.pop()
            self.free += victim.blocks  # 8
            victim.blocks = victim.computed = 0
            victim.num_preemptions += 1
            self.waiting.insert(0, victim)
            step.preempted.append(victim.name)
            if victim is request:
                return False
        self.allocate(request, wanted)
        return True

    def can_admit(self, budget: int) -> bool:
        """10 to 13: head of the line only; the whole prompt has to fit even if only its first chunk is allocated."""
        settings = self.settings
        if not self.waiting or len(self.running) == settings.max_num_seqs:
            return False
        request = self.waiting[0]
        assert request.placeholders == 0, "admitted before its last token came out"
        num_tokens = request.num_prompt_tokens + request.received
        if num_tokens > budget and not settings.enable_chunked_prefill:
            return False
        watermark = settings.watermark_blocks if self.running else 0
        must_fit = num_tokens if settings.scheduler_reserve_full_isl else min(num_tokens, budget)
        return self.blocks_for(must_fit) + watermark <= self.free

    def blocks_for(self, num_tokens: int) -> int:
        """14."""
        return -(-min(num_tokens, self.settings.max_model_len) // self.settings.block_size)

    def allocate(self, request: Request, wanted: int) -> None:
        more = self.blocks_for(request.computed + wanted) - request.blocks
        assert 0 <= more <= self.free
        request.blocks += more
        self.free -= more

    def deliver(self, step: Step, now_s: float) -> list[str]:
        """Brings the step's tokens out and lets the finished go; returns their names."""
        finished = []
        for request in step.yields:
            request.placeholders -= 1
            request.received += 1
            request.token_at_s.append(now_s)
            if request.received == request.num_output_tokens:
                (self.running if request in self.running else self.waiting).remove(request)
                self.free += request.blocks
                request.blocks = 0
                finished.append(request.name)
        return finished


def by_step(settings: Settings, arriving: Sequence[tuple[int, Request]]) -> Iterator[dict[str, Any]]:
    """Lets requests in by step index and yields each step, in the recorder's words, once its output is processed."""
    engine, coming, in_flight = Engine(settings), list(arriving), []
    loop_step = 0
    while coming or engine.waiting or engine.running:
        while coming and coming[0][0] <= loop_step:
            engine.waiting.append(coming.pop(0)[1])
        step = engine.schedule()
        if step.rows:
            in_flight.append((step, told(step, engine)))
        if in_flight and (not step.rows or len(in_flight) > settings.async_scheduling):
            step, words = in_flight.pop(0)
            yield words | {"loop_step": loop_step, "finished": sorted(engine.deliver(step, loop_step))}
        loop_step += 1
        assert loop_step < 100_000, "it does not end"


def told(step: Step, engine: Engine) -> dict[str, Any]:
    return {
        "reqs": [[request.name, new, before, request.num_prompt_tokens] for request, new, before in step.rows],
        "new": step.new,
        "resumed": sorted(step.resumed),
        "preempted": sorted(step.preempted),
        "running": len(engine.running),
        "waiting": len(engine.waiting),
        "free_blocks": engine.free,
    }


def by_time(
    settings: Settings, arriving: Sequence[tuple[float, Request]], step_time: Callable[[dict[str, float]], float]
) -> float:
    """Serves requests that arrive at their times (s); their tokens' times are in the requests. Returns the busy seconds.

    A step's end comes before an arrival at the same instant; an idle engine takes all that arrive at one instant together.
    With async scheduling one more step is planned, in the state of that instant, whenever one starts.
    """
    engine, coming = Engine(settings), list(arriving)
    now_s, busy_s = 0.0, 0.0
    on_device: Step | None = None
    behind: Step | None = None
    while True:
        if on_device is not None:
            engine.deliver(on_device, now_s)
        on_device, behind = behind, None
        if on_device is None:
            on_device = planned(engine, now_s)
        if on_device is not None and settings.async_scheduling:
            behind = planned(engine, now_s)
        if on_device is not None:
            lasts_s = step_time(on_device.features())
            now_s, busy_s = now_s + lasts_s, busy_s + lasts_s
            while coming and coming[0][0] < now_s:
                engine.waiting.append(coming.pop(0)[1])
        elif coming:
            now_s = coming[0][0]
            while coming and coming[0][0] == now_s:
                engine.waiting.append(coming.pop(0)[1])
        else:
            assert not engine.waiting
            assert not engine.running
            return busy_s


def planned(engine: Engine, now_s: float) -> Step | None:
    step = engine.schedule()
    for request, _, _ in step.rows:
        if request.scheduled_at_s is None:
            request.scheduled_at_s = now_s
    return step if step.rows else None
