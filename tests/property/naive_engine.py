"""An engine written a second time, as a specification that can be run; it shares no line with `replicas/`.

`by_step` drives its scheduler by step index, as the recorder of the conformance traces drove vLLM's; `by_time` drives it
through simulated time.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.property.naive_request import Request, Settings, Step
from tests.property.naive_scheduler import Scheduler

__all__ = ["Pipeline", "Request", "Scheduler", "Settings", "by_step", "by_time"]


def by_step(settings: Settings, arriving: Sequence[tuple[int, Request]]) -> Iterator[dict[str, Any]]:
    """Lets requests in by step index and yields each step, in the recorder's words, once its output is processed."""
    scheduler, coming = Scheduler(settings), list(arriving)
    in_flight: list[tuple[Step, dict[str, Any]]] = []
    loop_step, has_finished = 0, False
    while coming or scheduler.has_requests() or in_flight or has_finished:
        while coming and coming[0][0] <= loop_step:
            scheduler.add(coming.pop(0)[1])
        may_plan_on = False
        if scheduler.has_requests() or has_finished:  # also to tell the workers who has finished
            step = scheduler.schedule(loop_step)
            in_flight.append((step, told(step, scheduler)))
            has_room = len(in_flight) < settings.max_in_flight
            may_plan_on = has_room and not step.awaits_tokens and (bool(step.rows) or scheduler.has_requests())
            has_finished = False
        if in_flight and not may_plan_on:
            step, words = in_flight.pop(0)
            if step.rows:
                finished = sorted(scheduler.deliver(step, loop_step))
                has_finished |= bool(finished)
                yield words | {"loop_step": loop_step, "finished": finished}
        loop_step += 1
        assert loop_step < 100_000, "it does not end"


def told(step: Step, scheduler: Scheduler) -> dict[str, Any]:
    admitted = step.new + step.resumed
    return {
        "reqs": [[row.request.name, row.num_new, row.num_before, row.request.num_prompt_tokens] for row in step.rows],
        "new": step.new,
        "resumed": sorted(step.resumed),
        "preempted": sorted(step.preempted),
        "running": len(scheduler.running),
        "waiting": len(scheduler.line()),
        "free_blocks": len(scheduler.pool.free),
        "cached": {row.request.name: row.num_before for row in step.rows if row.request.name in admitted},
        "drafts": {row.request.name: row.num_drafts for row in step.rows if row.num_drafts},
    }


def by_time(
    settings: Settings, arriving: Sequence[tuple[float, Request]], pipeline: "Pipeline", max_concurrency: float = math.inf
) -> float:
    """Serves requests that arrive at their times (s); their tokens' times are in the requests. Returns the busy seconds.

    A step's end comes before an arrival at the same instant; an idle engine takes all that arrive at one instant together.
    A grammar that is ready at an instant counts for what is planned then. 18: as long as there is room, one step after the
    other is planned, in the state of that instant; a plan without work takes a place as well, behind what is in flight. While
    `max_concurrency` requests are in flight the client holds the next one back; it comes when one ends, behind the plan that is
    made at that instant. One whose `timeout_s` is over when it has not finished is aborted: the engine reads that when the
    step that runs has ended, before it takes that step's output; an idle one at once.
    """
    scheduler, coming = Scheduler(settings), Client(arriving, max_concurrency)
    now_s = 0.0
    in_flight: list[tuple[Step, float]] = []  # and when it ends
    while True:
        while len(in_flight) < settings.max_in_flight:
            step = scheduler.schedule(now_s)
            for row in step.rows:
                if row.request.scheduled_at_s is None:
                    row.request.scheduled_at_s = now_s
            if step.rows:
                in_flight.append((step, pipeline.ends_at_s(step, now_s)))
            elif in_flight and in_flight[-1][1] > now_s and scheduler.has_requests():
                in_flight.append((step, in_flight[-1][1]))
            elif in_flight or not step.preempted:
                break
            if step.awaits_tokens:
                break
        if in_flight:
            step, ends_at_s = in_flight.pop(0)
            aborted = []
            while min(coming.next_at_s(), coming.gives_up_at_s()) < ends_at_s:
                if coming.gives_up_at_s() <= coming.next_at_s():
                    aborted.append(coming.give_up())
                else:
                    scheduler.add(coming.send())
            for request in aborted:
                scheduler.finish(request)
            now_s = ends_at_s
            coming.take(scheduler.deliver(step, now_s), now_s)
        else:
            scheduler.num_plans = 0
            while math.inf > coming.gives_up_at_s() <= wakes_at_s(scheduler, coming, now_s):
                scheduler.finish(coming.give_up())
            now_s = wakes_at_s(scheduler, coming, now_s)
            if now_s == math.inf:
                break
            while coming.next_at_s() == now_s:
                scheduler.add(coming.send())
    assert not coming.requests
    assert not scheduler.line()
    assert not scheduler.running
    return pipeline.busy_s


def wakes_at_s(scheduler: Scheduler, coming: "Client", now_s: float) -> float:
    """When an idle engine has something to do again, unless somebody gives up before: a request, or a grammar for one."""
    return min([coming.next_at_s(), *(r.grammar_ready_at for r in scheduler.line() if r.grammar_ready_at > now_s)])


class Pipeline:
    """Stages through which steps pass in order; of one stage, unless told otherwise.

    Args:
        seconds: of a step with these features, where there is one stage.
        num_stages: each takes an even part of the device's time.
        parts: (device, CPU, one hand-over) seconds of a step with these features, where there are more.
    """

    def __init__(
        self,
        seconds: Callable[[dict[str, float]], float],
        num_stages: int = 1,
        parts: Callable[[dict[str, float]], tuple[float, float, float]] = lambda _: (0.0, 0.0, 0.0),
    ) -> None:
        self.seconds, self.parts = seconds, parts
        self.free_at_s = [0.0] * num_stages
        self.busy_s = 0.0

    def ends_at_s(self, step: Step, now_s: float) -> float:
        """When a step that is planned now leaves the last stage."""
        if len(self.free_at_s) == 1:
            lasts_s = self.seconds(step.features())
            self.busy_s += lasts_s
            self.free_at_s[0] = max(now_s, self.free_at_s[0]) + lasts_s
            return self.free_at_s[0]
        gpu_s, cpu_s, hop_s = self.parts(step.features())
        at_s = max([now_s + cpu_s, *(row.request.token_due_at_s for row in step.rows if row.needs_token)])
        for stage, free_at_s in enumerate(self.free_at_s):
            at_s = max(at_s + (hop_s if stage else 0.0), free_at_s) + gpu_s / len(self.free_at_s)
            self.free_at_s[stage] = at_s
        self.busy_s += gpu_s / len(self.free_at_s)
        for row in step.rows:
            if row.has_output:
                row.request.token_due_at_s = at_s
        return at_s


class Client:
    """Sends requests one after the other: each when it is there and fewer than `max_concurrency` are in flight.

    It gives up on each that has not finished when its `timeout_s` is over.
    """

    def __init__(self, arriving: Sequence[tuple[float, Request]], max_concurrency: float) -> None:
        self.requests, self.max_concurrency = list(arriving), max_concurrency
        self.num_in_flight, self.last_end_s = 0, 0.0
        self.sent: list[Request] = []

    def next_at_s(self) -> float:
        is_held = not self.requests or self.num_in_flight >= self.max_concurrency
        return math.inf if is_held else max(self.requests[0][0], self.last_end_s)

    def send(self) -> Request:
        at_s, (_, request) = self.next_at_s(), self.requests.pop(0)
        self.num_in_flight += 1
        request.sent_at_s = at_s
        self.sent.append(request)
        return request

    def gives_up_at_s(self) -> float:
        self.sent = [request for request in self.sent if not request.is_finished and request.given_up_at_s is None]
        return min((request.times_out_at_s for request in self.sent), default=math.inf)

    def give_up(self) -> Request:
        at_s = self.gives_up_at_s()
        request = next(request for request in self.sent if request.times_out_at_s == at_s)
        request.given_up_at_s = self.last_end_s = at_s
        self.num_in_flight -= 1
        return request

    def take(self, finished: Sequence[str], now_s: float) -> None:
        self.num_in_flight -= len(finished)
        self.last_end_s = now_s if finished else self.last_end_s
