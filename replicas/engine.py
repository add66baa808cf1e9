"""One engine's life: it takes a request, starts a step when the device is free, and ends it when its time is over."""

import numpy as np

from replicas.delivery import deliver
from replicas.events import set_next_end
from replicas.queues import add_waiting, sequence_of, slot_of
from replicas.scheduler import plan
from replicas.step_time import is_outside_range, step_time
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
    if not replica.is_running:
        replica.woken_at_s = now_s
        set_next_end(fleet, r, np.nextafter(now_s, np.inf))


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
    num_preemptions = replica.num_preemptions
    while not (replica.is_running and (replica.is_planned or not is_async)):
        if replica.is_planned:
            start(fleet, r, now_s)
        elif plan(fleet, r, now_s):
            replica.is_planned = 1
        elif not replica.is_running and replica.num_preemptions > num_preemptions:
            num_preemptions = replica.num_preemptions  # by priority, all may be preempted: the next plan admits some
        else:
            break
    if not replica.is_running:
        wait_for_work(fleet, r, now_s)


@verb
def wait_for_work(fleet: Fleet, r: int, now_s: float) -> None:
    """Lets an idle engine sleep until a request comes, or until the first grammar is compiled that one waits for."""
    replica = fleet.replicas[r]
    at_s = float("inf")
    i = replica.waiting.head
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        if fleet.classes[request.class_id].grammar_s > 0:
            at_s = min(at_s, fleet.lore[r, request.class_id].grammar_ready_at_s)
        i = request.next
    if replica.waiting.head != NONE and not now_s < at_s < float("inf"):
        replica.num_idle_with_work += 1
        at_s = float("inf")
    replica.woken_at_s = at_s
    set_next_end(fleet, r, np.nextafter(at_s, np.inf))


@verb
def start(fleet: Fleet, r: int, now_s: float) -> None:
    """Puts the planned step on the device; when it ends is then known."""
    replica = fleet.replicas[r]
    batch = fleet.batches[r, (replica.num_steps - 1) & 1]
    duration_s = step_time(batch, fleet.engines[replica.pool])
    batch.ends_at_s = now_s + duration_s
    replica.is_planned, replica.is_running = 0, 1
    replica.busy_s += duration_s
    replica.num_steps_outside_range += is_outside_range(batch, fleet.engines[replica.pool])
    set_next_end(fleet, r, batch.ends_at_s)
