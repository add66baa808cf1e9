"""An engine's life: it takes a request, starts a step when the device is free, and ends it when its time is over."""

import numpy as np

from replicas.delivery import deliver
from replicas.events import set_next_end
from replicas.queues import add_waiting, sequence_of, slot_of
from replicas.scheduler import plan
from replicas.step_time import is_outside_range, step_time_among
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
    set_limits(fleet, r, i)
    ask_for_grammar(fleet, r, request.class_id, now_s)
    add_waiting(fleet, r, i)
    load.num_waiting += 1
    load.waiting_tokens += request.num_prompt_tokens + request.num_generated_tokens
    first = first_together(fleet, r)
    if not is_any_running(fleet, first):
        fleet.replicas[first].woken_at_s = now_s
        set_next_end(fleet, first, np.nextafter(now_s, np.inf))


@verb
def set_limits(fleet: Fleet, r: int, i: int) -> None:
    """Cuts request `i`'s answer to what is allowed, and notes whether the scheduler sees its end coming.

    It does if the answer is as long as the client allows, or reaches `max_model_len`; otherwise an end-of-sequence token
    ends it, which nobody knows before it is sampled.
    """
    request = fleet.requests[slot_of(fleet, i)]
    answer = longest_answer(fleet, fleet.replicas[r].pool, i)
    if answer < request.num_output_tokens:
        request.num_output_tokens = answer
        fleet.clock[0].num_cut_answers += 1
    limit = request.num_output_tokens
    if fleet.classes[request.class_id].max_tokens > 0:
        limit = fleet.engines[fleet.replicas[r].pool].max_model_len - request.num_prompt_tokens
        limit = min(limit, fleet.classes[request.class_id].max_tokens)
    request.stops_early = request.num_output_tokens < limit
    sequence_of(fleet, i).max_output_tokens = limit


@verb
def longest_answer(fleet: Fleet, pool: int, i: int) -> int:
    """Returns the tokens of request `i`'s answer that its client's limit and the longest sequence of the engine leave."""
    request = fleet.requests[slot_of(fleet, i)]
    answer = min(request.num_output_tokens, fleet.engines[pool].max_model_len - request.num_prompt_tokens)
    if fleet.classes[request.class_id].max_tokens > 0:
        answer = min(answer, fleet.classes[request.class_id].max_tokens)
    return answer


@verb
def ask_for_grammar(fleet: Fleet, r: int, class_id: int, now_s: float) -> None:
    """Starts to compile a class's grammar with its first request on replica `r`; it then stays compiled."""
    grammar_s = fleet.classes[class_id].grammar_s
    if grammar_s > 0 and fleet.lore[r, class_id].grammar_ready_at_s == float("inf"):
        fleet.lore[r, class_id].grammar_ready_at_s = now_s + grammar_s


@verb
def first_together(fleet: Fleet, r: int) -> int:
    """Returns the first of the slots that step together with slot `r`; where each steps alone, itself."""
    engine = fleet.engines[fleet.replicas[r].pool]
    return r - (r - engine.first_slot) % engine.num_together


@verb
def is_any_running(fleet: Fleet, first: int) -> bool:
    """Tells whether a step of those that step together with `first` is on their devices."""
    for r in range(first, first + fleet.engines[fleet.replicas[first].pool].num_together):
        if fleet.replicas[r].is_running:
            return True
    return False


@verb
def turn(fleet: Fleet, first: int) -> None:
    """Ends the running step of the engines that step together from slot `first` on, if one runs, and begins their next.

    Most step alone. The data-parallel engines of a model with experts step together: one that has nothing to do takes part
    with an empty batch, as the experts on its devices serve the others.

    With async scheduling a second step is planned when one starts. It sees arrivals, stops and free blocks one step late,
    and in exchange the CPU's work hides behind the device's.
    """
    engine = fleet.engines[fleet.replicas[first].pool]
    now_s = fleet.replicas[first].woken_at_s
    is_planned = False
    for r in range(first, first + engine.num_together):
        replica = fleet.replicas[r]
        if replica.is_running:
            now_s = fleet.next_end_at_s[first]
            deliver(fleet, r, now_s)
            replica.is_running = 0
        is_planned = is_planned or replica.is_planned == 1
    is_running = False
    while not (is_running and (is_planned or not engine.async_scheduling)):
        if is_planned:
            start(fleet, first, now_s)
            is_running, is_planned = True, False
        elif plan_together(fleet, first, now_s, not is_running):
            is_planned = True
        else:
            break
    if not is_running:
        wait_for_work(fleet, first, now_s)


@verb
def plan_together(fleet: Fleet, first: int, now_s: float, is_idle: bool) -> bool:
    """Plans a step on each of the engines from slot `first` on and returns whether any of them has work.

    By priority, all of an idle engine's may be preempted: it plans again, and that plan admits some.
    """
    is_planned = False
    for r in range(first, first + fleet.engines[fleet.replicas[first].pool].num_together):
        replica = fleet.replicas[r]
        num_preemptions = -1
        while not replica.is_planned and replica.num_preemptions != num_preemptions:
            num_preemptions = replica.num_preemptions
            if plan(fleet, r, now_s):
                replica.is_planned = 1
            elif not is_idle:
                break
        is_planned = is_planned or replica.is_planned == 1
    return is_planned


@verb
def wait_for_work(fleet: Fleet, first: int, now_s: float) -> None:
    """Lets idle engines sleep until a request comes, or until the first grammar is compiled that one waits for."""
    wake_at_s = float("inf")
    for r in range(first, first + fleet.engines[fleet.replicas[first].pool].num_together):
        at_s = next_grammar_at_s(fleet, r)
        if fleet.replicas[r].waiting.head != NONE and not now_s < at_s < float("inf"):
            fleet.replicas[r].num_idle_with_work += 1
            at_s = float("inf")
        wake_at_s = min(wake_at_s, at_s)
    fleet.replicas[first].woken_at_s = wake_at_s
    set_next_end(fleet, first, np.nextafter(wake_at_s, np.inf))


@verb
def next_grammar_at_s(fleet: Fleet, r: int) -> float:
    """Returns when the first grammar is compiled that a request of slot `r` waits for; inf if none is being compiled."""
    at_s = float("inf")
    i = fleet.replicas[r].waiting.head
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        if fleet.classes[request.class_id].grammar_s > 0:
            at_s = min(at_s, fleet.lore[r, request.class_id].grammar_ready_at_s)
        i = request.next
    return at_s


@verb
def start(fleet: Fleet, first: int, now_s: float) -> None:
    """Puts the planned step on the devices of the engines from slot `first` on; when it ends is then known."""
    engine = fleet.engines[fleet.replicas[first].pool]
    num_tokens = 0
    for r in range(first, first + engine.num_together):
        if fleet.replicas[r].is_planned:
            num_tokens += fleet.batches[r, (fleet.replicas[r].num_steps - 1) & 1].num_tokens
    duration_s = 0.0
    for r in range(first, first + engine.num_together):
        replica = fleet.replicas[r]
        if replica.is_planned:
            batch = fleet.batches[r, (replica.num_steps - 1) & 1]
            duration_s = max(duration_s, step_time_among(batch, engine, num_tokens))
            replica.num_steps_outside_range += is_outside_range(batch, engine)
    for r in range(first, first + engine.num_together):
        replica = fleet.replicas[r]
        if replica.is_planned:
            fleet.batches[r, (replica.num_steps - 1) & 1].ends_at_s = now_s + duration_s
            replica.is_planned, replica.is_running = 0, 1
            replica.busy_s += duration_s
    set_next_end(fleet, first, now_s + duration_s)
