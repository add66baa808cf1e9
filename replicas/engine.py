"""One engine's life: it takes a request, starts a step when the device is free, and ends it when its time is over."""

from replicas.delivery import deliver
from replicas.events import set_next_end
from replicas.queues import append_waiting, slot_of
from replicas.scheduler import plan
from replicas.step_time import step_time
from sim.compiled import verb
from sim.records import NONE, WAITING, Fleet


@verb
def enqueue(fleet: Fleet, r: int, i: int, now_s: float) -> None:
    """Puts request `i` into replica `r`'s queue, and starts a step if the engine was idle."""
    replica, load, request = fleet.replicas[r], fleet.loads[r], fleet.requests[slot_of(fleet, i)]
    request.replica, request.machine = r, replica.machine
    request.phase = WAITING
    append_waiting(fleet, r, i)
    load.num_waiting += 1
    load.waiting_tokens += request.num_prompt_tokens + request.num_generated_tokens
    if not replica.is_running:
        start_next(fleet, r, now_s)


@verb
def start_next(fleet: Fleet, r: int, now_s: float) -> None:
    """Starts the next step of an engine whose device is free, and with async scheduling plans the one behind it.

    So with async scheduling a step is planned when the one before it starts: it sees arrivals, stops and free blocks one
    step late, and in exchange the CPU's work hides behind the device's.
    """
    replica = fleet.replicas[r]
    if replica.is_planned or plan(fleet, r, now_s):
        replica.is_planned = 0
        start(fleet, r, now_s)
        if fleet.engines[replica.pool].async_scheduling:
            replica.is_planned = plan(fleet, r, now_s)
    else:
        replica.is_running = 0
        set_next_end(fleet, r, float("inf"))
        if replica.waiting_head != NONE:
            replica.num_idle_with_work += 1


@verb
def start(fleet: Fleet, r: int, now_s: float) -> None:
    """Puts the planned step on the device; when it ends is then known."""
    replica = fleet.replicas[r]
    batch = fleet.batches[r, (replica.num_steps - 1) & 1]
    duration_s = step_time(batch, fleet.engines[replica.pool])
    batch.started_at_s = now_s
    batch.ends_at_s = now_s + duration_s
    replica.is_running = 1
    replica.busy_s += duration_s
    set_next_end(fleet, r, batch.ends_at_s)


@verb
def finish_step(fleet: Fleet, r: int) -> None:
    """Ends replica `r`'s running step: its tokens go out, the finished leave, the next step starts."""
    now_s = fleet.next_end_at_s[r]
    deliver(fleet, r, now_s)
    start_next(fleet, r, now_s)
