"""One engine's life: it takes a request, starts a step when the device is free, and ends it when its time is over."""

import numpy as np

from replicas.delivery import deliver
from replicas.events import set_next_end
from replicas.queues import append, slot_of
from replicas.scheduler import plan
from replicas.step_time import step_time
from sim.compiled import verb
from sim.records import NONE, WAITING, Fleet


@verb
def enqueue(fleet: Fleet, r: int, i: int, now_s: float) -> None:
    """Puts request `i` into replica `r`'s queue and wakes the engine if it is idle.

    It wakes at this instant, but after everything else that happens at it: what arrives at one instant enters an idle
    engine's first step together, as vLLM drains its input queue before it schedules.
    """
    replica, load, request = fleet.replicas[r], fleet.loads[r], fleet.requests[slot_of(fleet, i)]
    request.replica, request.machine = r, replica.machine
    request.phase = WAITING
    append(fleet, replica.waiting, i)
    load.num_waiting += 1
    load.waiting_tokens += request.num_prompt_tokens + request.num_generated_tokens
    if not replica.is_running:
        replica.woken_at_s = now_s
        set_next_end(fleet, r, np.nextafter(now_s, np.inf))


@verb
def turn(fleet: Fleet, r: int) -> None:
    """Ends replica `r`'s running step, if one runs, and gives the device its next.

    With async scheduling a second step is planned when one starts. It sees arrivals, stops and free blocks one step late,
    and in exchange the CPU's work hides behind the device's.
    """
    replica = fleet.replicas[r]
    now_s = replica.woken_at_s
    if replica.is_running:
        now_s = fleet.next_end_at_s[r]
        deliver(fleet, r, now_s)
    replica.is_running = 0
    is_async = fleet.engines[replica.pool].async_scheduling
    while not (replica.is_running and (replica.is_planned or not is_async)):
        if replica.is_planned:
            start(fleet, r, now_s)
        elif plan(fleet, r, now_s):
            replica.is_planned = 1
        else:
            break
    if not replica.is_running:
        set_next_end(fleet, r, float("inf"))
        if replica.waiting.head != NONE:
            replica.num_idle_with_work += 1


@verb
def start(fleet: Fleet, r: int, now_s: float) -> None:
    """Puts the planned step on the device; when it ends is then known."""
    replica = fleet.replicas[r]
    batch = fleet.batches[r, (replica.num_steps - 1) & 1]
    duration_s = step_time(batch, fleet.engines[replica.pool])
    batch.ends_at_s = now_s + duration_s
    replica.is_planned, replica.is_running = 0, 1
    replica.busy_s += duration_s
    set_next_end(fleet, r, batch.ends_at_s)
