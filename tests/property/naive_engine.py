"""An engine written a second time, as a specification that can be run; it shares no line with `replicas/`.

`by_step` drives its scheduler by step index, as the recorder of the conformance traces drove vLLM's; `by_time` drives it
through simulated time.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.property.naive_request import Request, Settings, Step
from tests.property.naive_scheduler import Scheduler

__all__ = ["Request", "Scheduler", "Settings", "by_step", "by_time"]


def by_step(settings: Settings, arriving: Sequence[tuple[int, Request]]) -> Iterator[dict[str, Any]]:
    """Lets requests in by step index and yields each step, in the recorder's words, once its output is processed."""
    scheduler, coming = Scheduler(settings), list(arriving)
    in_flight: list[tuple[Step, dict[str, Any]]] = []
    loop_step = 0
    while coming or scheduler.line() or scheduler.running or in_flight:
        while coming and coming[0][0] <= loop_step:
            scheduler.add(coming.pop(0)[1])
        step = scheduler.schedule(loop_step)
        if step.rows:
            in_flight.append((step, told(step, scheduler)))
        if in_flight and (not step.rows or len(in_flight) > settings.async_scheduling):
            step, words = in_flight.pop(0)
            yield words | {"loop_step": loop_step, "finished": sorted(scheduler.deliver(step, loop_step))}
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
    settings: Settings, arriving: Sequence[tuple[float, Request]], step_time: Callable[[dict[str, float]], float]
) -> float:
    """Serves requests that arrive at their times (s); their tokens' times are in the requests. Returns the busy seconds.

    A step's end comes before an arrival at the same instant; an idle engine takes all that arrive at one instant together.
    A grammar that is ready at an instant counts for what is planned then. With async scheduling one more step is planned, in
    the state of that instant, whenever one starts.
    """
    scheduler, coming = Scheduler(settings), list(arriving)
    now_s, busy_s = 0.0, 0.0
    on_device: Step | None = None
    behind: Step | None = None
    while True:
        if on_device is not None:
            scheduler.deliver(on_device, now_s)
        on_device, behind = behind, None
        if on_device is None:
            on_device = planned(scheduler, now_s, is_idle=True)
        if on_device is not None and settings.async_scheduling:
            behind = planned(scheduler, now_s, is_idle=False)
        if on_device is not None:
            lasts_s = step_time(on_device.features())
            now_s, busy_s = now_s + lasts_s, busy_s + lasts_s
            while coming and coming[0][0] < now_s:
                scheduler.add(coming.pop(0)[1])
        else:
            grammars_s = [r.grammar_ready_at for r in scheduler.line() if r.grammar_ready_at > now_s]
            next_s = min([at_s for at_s, _ in coming[:1]] + grammars_s, default=None)
            if next_s is None:
                break
            now_s = next_s
            while coming and coming[0][0] == now_s:
                scheduler.add(coming.pop(0)[1])
    assert not scheduler.line()
    assert not scheduler.running
    return busy_s


def planned(scheduler: Scheduler, now_s: float, is_idle: bool) -> Step | None:
    """Returns the next step, or None when nothing runs; an idle engine that only preempted plans again at once."""
    step = scheduler.schedule(now_s)
    while is_idle and step.preempted and not step.rows:
        step = scheduler.schedule(now_s)
    for row in step.rows:
        if row.request.scheduled_at_s is None:
            row.request.scheduled_at_s = now_s
    return step if step.rows else None
