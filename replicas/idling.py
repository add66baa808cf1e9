"""When an engine that has nothing to do wakes up."""

import numpy as np

from replicas.events import set_next_end
from replicas.queues import slot_of
from sim.compiled import verb
from sim.records import NONE, Fleet


@verb
def wake_at(fleet: Fleet, r: int, at_s: float) -> None:
    """Has the engine wake at this instant, after everything else that happens at it."""
    fleet.replicas[r].woken_at_s = at_s
    set_next_end(fleet, r, np.nextafter(at_s, np.inf))


@verb
def sleep(fleet: Fleet, r: int, until_s: float) -> None:
    """Lets an idle engine sleep until then, or until a request comes."""
    fleet.replicas[r].num_plans = 0
    wake_at(fleet, r, until_s)


@verb
def next_work_at_s(fleet: Fleet, r: int, now_s: float) -> float:
    """Returns when the first grammar is compiled that one of the waiting requests waits for; inf if nobody waits."""
    at_s = float("inf")
    if fleet.loads[r].num_waiting == 0:
        return at_s
    for k in range(fleet.lines.shape[1]):
        i = fleet.lines[r, k].queue.head  # a line waits for one grammar
        if i != NONE:
            class_id = fleet.requests[slot_of(fleet, i)].class_id
            if fleet.classes[class_id].grammar_s > 0:
                at_s = min(at_s, fleet.grammar_ready_at_s[r, class_id])
    if now_s < at_s < float("inf"):
        return at_s
    fleet.replicas[r].num_idle_with_work += 1
    return float("inf")
