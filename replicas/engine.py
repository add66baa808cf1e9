"""An engine's life: it takes a request, starts a step when the device is free, and ends it when its time is over."""

import numpy as np

from replicas.batches import batch_of, next_batch, oldest_batch, take_up
from replicas.delivery import deliver
from replicas.events import set_next_end
from replicas.pipeline import awaits_tokens, keep_place, pass_stages
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
    request.was_passed_by = fleet.classes[request.class_id].grammar_s > 0
    set_limits(fleet, r, i)
    ask_for_grammar(fleet, r, request.class_id, now_s)
    add_waiting(fleet, r, i)
    load.num_waiting += 1
    load.waiting_tokens += request.num_prompt_tokens + request.num_generated_tokens
    first = first_together(fleet, r)
    if fleet.replicas[first].num_in_flight == 0:
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
def turn(fleet: Fleet, first: int) -> None:
    """Ends the oldest step of the engines that step together from slot `first` on, if one runs, and plans what may follow.

    Most step alone. The data-parallel engines of a model with experts step together: one that has nothing to do takes part
    with an empty batch, as the experts on its devices serve the others.

    With async scheduling one more step is in flight than runs. It sees arrivals, stops and free blocks one step late, and in
    exchange the CPU's work hides behind the device's. A pipeline has a step in each stage.
    """
    replica = fleet.replicas[first]
    engine = fleet.engines[replica.pool]
    now_s = replica.woken_at_s
    if replica.num_in_flight > 0:
        now_s = fleet.next_end_at_s[first]
        replica.num_empty -= oldest_batch(fleet, first).num_empty_behind
        for r in range(first, first + engine.num_together):
            deliver(fleet, r, now_s)
    while replica.num_in_flight + replica.num_empty < engine.num_stages + engine.async_scheduling:
        if plan_together(fleet, first, now_s):
            start(fleet, first, now_s)
            if engine.num_stages > 1 and awaits_tokens(fleet, first):
                break
        elif engine.num_stages == 1 or not keep_place(fleet, first):
            break
    if replica.num_in_flight > 0:
        set_next_end(fleet, first, oldest_batch(fleet, first).ends_at_s)
    else:
        wait_for_work(fleet, first, now_s)


@verb
def plan_together(fleet: Fleet, first: int, now_s: float) -> bool:
    """Plans a step on each of the engines from slot `first` on and returns whether any of them has work.

    By priority, all of an idle engine's may be preempted: it plans again, and that plan admits some.
    """
    is_planned, has_preempted = False, True
    while has_preempted and not is_planned:
        has_preempted = False
        for r in range(first, first + fleet.engines[fleet.replicas[first].pool].num_together):
            num_preemptions = fleet.replicas[r].num_preemptions
            is_planned |= plan(fleet, r, now_s)
            has_preempted |= fleet.replicas[r].num_preemptions != num_preemptions and fleet.replicas[r].num_in_flight == 0
    return is_planned


@verb
def start(fleet: Fleet, first: int, now_s: float) -> None:
    """Sends the planned step to the devices of the engines from slot `first` on; when it will end is then known."""
    engine = fleet.engines[fleet.replicas[first].pool]
    begins_at_s = now_s
    if fleet.replicas[first].num_in_flight > 0:
        begins_at_s = batch_of(fleet, first, fleet.replicas[first].num_steps - 1).ends_at_s
    num_tokens = 0
    for r in range(first, first + engine.num_together):
        num_tokens += next_batch(fleet, r).num_tokens
    lasts_s = 0.0
    for r in range(first, first + engine.num_together):
        batch = next_batch(fleet, r)
        if batch.num_requests > 0:
            lasts_s = max(lasts_s, step_time_among(batch, engine, num_tokens))
            fleet.replicas[r].num_steps_outside_range += is_outside_range(batch, engine)
    ends_at_s = begins_at_s + lasts_s
    if engine.num_stages > 1:
        ends_at_s = pass_stages(fleet, first, now_s, num_tokens)
        lasts_s /= engine.num_stages
    for r in range(first, first + engine.num_together):
        next_batch(fleet, r).ends_at_s = ends_at_s
        fleet.replicas[r].busy_s += lasts_s
        take_up(fleet, r)


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
        fleet.replicas[r].num_plans = 0
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
