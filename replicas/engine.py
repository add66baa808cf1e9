"""An engine's life: it takes a request, starts a step when the device is free, and ends it when its time is over."""

import numpy as np

from replicas.batches import batch_of, next_batch, oldest_batch, take_up
from replicas.delivery import deliver
from replicas.events import set_next_end
from replicas.idling import next_work_at_s, sleep, wake_at
from replicas.pipeline import awaits_tokens, keep_place, pass_stages
from replicas.queues import add_waiting, sequence_of, slot_of
from replicas.scheduler import plan
from replicas.step_time import is_outside_range, step_time
from replicas.together import go_on_together, wake_together
from sim.compiled import verb
from sim.records import WAITING, Fleet


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
    if np.isnan(request.first_token_at_s):
        replica.tokens_before_first += request.num_prompt_tokens
    if fleet.engines[replica.pool].num_together > 1:
        wake_together(fleet, r, now_s)
    elif replica.num_in_flight == 0:
        wake_at(fleet, r, now_s)


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
    """Ends replica `r`'s oldest step in flight, if there is one, and plans what may follow.

    With async scheduling one more step is in flight than runs. It sees arrivals, stops and free blocks one step late, and in
    exchange the CPU's work hides behind the device's. A pipeline has a step in each stage.
    """
    replica = fleet.replicas[r]
    engine = fleet.engines[replica.pool]
    now_s = replica.woken_at_s
    if replica.num_in_flight > 0:
        now_s = fleet.next_end_at_s[r]
        replica.num_empty -= oldest_batch(fleet, r).num_empty_behind
        deliver(fleet, r, now_s)
    while replica.num_in_flight + replica.num_empty < engine.num_stages + engine.async_scheduling:
        num_preemptions = replica.num_preemptions
        if plan(fleet, r, now_s):
            start(fleet, r, now_s)
            if engine.num_stages > 1 and awaits_tokens(fleet, r):
                break
        elif not plans_again(fleet, r, num_preemptions):
            break
    if engine.num_together > 1:
        go_on_together(fleet, r, now_s)
    elif replica.num_in_flight > 0:
        set_next_end(fleet, r, oldest_batch(fleet, r).ends_at_s)
    else:
        sleep(fleet, r, next_work_at_s(fleet, r, now_s))


@verb
def start(fleet: Fleet, r: int, now_s: float) -> None:
    """Sends the planned step to the device; when it will end is then known, unless others step with it."""
    replica = fleet.replicas[r]
    engine = fleet.engines[replica.pool]
    batch = next_batch(fleet, r)
    if engine.num_stages > 1:
        batch.ends_at_s = pass_stages(fleet, r, now_s)
    elif engine.num_together > 1:
        batch.ends_at_s = float("inf")
    else:
        lasts_s = step_time(batch, engine)
        begins_at_s = batch_of(fleet, r, replica.num_steps - 1).ends_at_s if replica.num_in_flight > 0 else now_s
        batch.ends_at_s = begins_at_s + lasts_s
        replica.busy_s += lasts_s
    replica.num_steps_outside_range += is_outside_range(batch, engine)
    take_up(fleet, r)


@verb
def plans_again(fleet: Fleet, r: int, num_preemptions: int) -> bool:
    """Tells whether the engine plans again after a plan that found nothing to do.

    By priority, all of an idle engine's may be preempted: the next plan admits some.
    """
    replica = fleet.replicas[r]
    if replica.num_in_flight == 0:
        return replica.num_preemptions != num_preemptions
    return fleet.engines[replica.pool].num_stages > 1 and keep_place(fleet, r)
