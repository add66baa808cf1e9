"""A request's moves on a replica: into the queue, among the running ones, and out; what every engine counts of them."""

import numpy as np

from replicas.answers import set_limits
from replicas.held_up import ask_for_grammar
from replicas.idling import wake_at
from replicas.queues import add_waiting, append, leave_waiting, look_from_the_front, next_waiting, remove, slot_of
from replicas.together import wake_together
from sim.compiled import verb
from sim.records import CATCHING_UP, NONE, WAITING, Fleet


@verb
def begin_waiting(fleet: Fleet, r: int, i: int, now_s: float) -> None:
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
def begin_running(fleet: Fleet, r: int, i: int, num_cached_tokens: int, now_s: float) -> None:
    """Moves request `i` from the waiting to the running requests; it has its cached tokens, and all others to catch up."""
    replica, load, request = fleet.replicas[r], fleet.loads[r], fleet.requests[slot_of(fleet, i)]
    end_waiting(fleet, r, i)
    append(fleet, replica.running, i)
    load.num_running += 1
    load.running_tokens += num_cached_tokens
    if not request.scheduled_at_s <= now_s:
        request.scheduled_at_s = now_s
        request.num_cached_tokens = num_cached_tokens
    request.phase = CATCHING_UP
    request.last_step = NONE
    request.num_computed_tokens = num_cached_tokens
    replica.num_catching_up += 1
    if fleet.classes[request.class_id].grammar_s > 0:
        replica.num_masks += 1


@verb
def end_running(fleet: Fleet, r: int, i: int) -> None:
    """Takes request `i` out of the running requests; what it held has been given back."""
    replica = fleet.replicas[r]
    if fleet.classes[fleet.requests[slot_of(fleet, i)].class_id].grammar_s > 0:
        replica.num_masks -= 1
    remove(fleet, replica.running, i)
    fleet.loads[r].num_running -= 1


@verb
def end_waiting(fleet: Fleet, r: int, i: int) -> None:
    """Takes request `i` out of replica `r`'s queue and its sums."""
    load, request = fleet.loads[r], fleet.requests[slot_of(fleet, i)]
    leave_waiting(fleet, r, i)
    load.num_waiting -= 1
    load.waiting_tokens -= request.num_prompt_tokens + request.num_generated_tokens


@verb
def next_to_go(fleet: Fleet, r: int) -> int:
    """Takes the first request off replica `r`'s lists, the running one first, and returns it; `NONE` if there is none."""
    running = fleet.replicas[r].running
    i = running.head
    if i != NONE:
        remove(fleet, running, i)
        return i
    look_from_the_front(fleet, r)
    i = next_waiting(fleet, r)
    if i != NONE:
        leave_waiting(fleet, r, i)
    return i


@verb
def clear_lists(fleet: Fleet, r: int) -> None:
    """Leaves replica `r` without requests and without steps, and its blocks all free."""
    replica, load = fleet.replicas[r], fleet.loads[r]
    replica.running.head = replica.running.tail = NONE
    for k in range(fleet.lines.shape[1]):
        line = fleet.lines[r, k]
        line.queue.head = line.queue.tail = line.last_inserted = line.last_passed_by = NONE
        line.num_passed_by = 0
    replica.num_decoding = replica.decoding_context_tokens = replica.num_catching_up = replica.num_surplus = 0
    replica.num_masks = replica.tokens_before_first = replica.num_in_flight = 0
    load.num_waiting = load.num_running = load.waiting_tokens = load.running_tokens = 0
    load.num_free_blocks = load.num_usable_blocks
    fleet.due[r, :] = NONE
    fleet.grammar_ready_at_s[r, :] = np.inf
    fleet.adapter_step[r, :] = NONE
