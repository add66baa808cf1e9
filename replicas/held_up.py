"""What holds a waiting request up besides the want of room: a grammar not compiled yet, or no slot for its adapter.

It lets those behind it pass, and with it all of its line.
"""

from replicas.batches import next_batch
from replicas.queues import lets_passed_by_go_first, mark_passed_by, own_line, slot_of
from sim.compiled import rare, verb
from sim.records import CATCHING_UP, DECODING, LAST_TOKEN, NONE, SURPLUS, Fleet


@verb
def ask_for_grammar(fleet: Fleet, r: int, class_id: int, now_s: float) -> None:
    """Starts to compile a class's grammar with its first request on replica `r`; it then stays compiled."""
    grammar_s = fleet.classes[class_id].grammar_s
    if grammar_s > 0 and fleet.grammar_ready_at_s[r, class_id] == float("inf"):
        fleet.grammar_ready_at_s[r, class_id] = now_s + grammar_s


@verb
def is_held_up(fleet: Fleet, r: int, class_id: int, now_s: float) -> bool:
    """Tells whether requests of this class are passed by: their grammar is not compiled, or no room is for their adapter.

    In one step, what is held up stays so.
    """
    engine, kind = fleet.engines[fleet.replicas[r].pool], fleet.classes[class_id]
    if kind.grammar_s > 0 and now_s < fleet.grammar_ready_at_s[r, class_id]:
        return True
    if engine.max_loras == 0 or kind.adapter == 0:
        return False
    return next_batch(fleet, r).num_adapters == engine.max_loras and not has_adapter(fleet, r, class_id)


@rare
def pass_by_line(fleet: Fleet, r: int, i: int) -> None:
    """Passes by request `i`, which is held up, and with it all of its line.

    Where it matters who was passed by, each is marked when it is reached for the first time.
    """
    engine, line = fleet.engines[fleet.replicas[r].pool], own_line(fleet, r, i)
    if engine.prefill_schedule_interval > 1 or lets_passed_by_go_first(fleet, r):
        mark_passed_by(fleet, r, i)
        line.cursor = fleet.requests[slot_of(fleet, line.last_passed_by)].next
    else:
        line.cursor = NONE


@verb
def has_adapter(fleet: Fleet, r: int, class_id: int) -> bool:
    """Tells whether the step being planned runs this class's adapter already."""
    return fleet.adapter_step[r, fleet.classes[class_id].adapter] == fleet.replicas[r].num_steps


@verb
def add_adapter(fleet: Fleet, r: int, class_id: int) -> None:
    """Counts this class's adapter among those of the step being planned."""
    replica, adapter = fleet.replicas[r], fleet.classes[class_id].adapter
    if adapter > 0 and not has_adapter(fleet, r, class_id):
        fleet.adapter_step[r, adapter] = replica.num_steps
        next_batch(fleet, r).num_adapters += 1


@rare
def count_adapters(fleet: Fleet, r: int) -> None:
    """Counts the distinct adapters of the running requests that the step being planned gives tokens."""
    replica = fleet.replicas[r]
    i = replica.running.head
    while i != NONE:
        request = fleet.requests[slot_of(fleet, i)]
        is_scheduled = request.phase == DECODING or request.phase == SURPLUS
        is_scheduled |= request.phase == LAST_TOKEN and request.last_step == replica.num_steps
        is_scheduled |= request.phase == CATCHING_UP and request.num_new_tokens > 0
        if is_scheduled:
            add_adapter(fleet, r, request.class_id)
        i = request.next
