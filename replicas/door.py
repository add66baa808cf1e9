"""The door to the engines: seven verbs, which lead to the room of the engine that a replica runs, by its number (`schedulers`).

Nothing outside an engine's room knows how it plans a step, and no engine knows another. The verbs keep true what all engines
have in common: who waits and who runs, the loads that a router sees, and when the replica's step ends.
"""

from typing import Any

from replicas.moves import begin_waiting
from replicas.schedulers import STATIC
from replicas.static import engine as static
from replicas.steps import begin_turn, go_on
from replicas.vllm import engine as vllm
from sim.compiled import verb
from sim.records import Fleet


@verb
def is_static(fleet: Fleet, r: int) -> bool:
    """Tells whether replica `r` runs the engine that batches statically; else it runs vLLM's."""
    return fleet.engines[fleet.replicas[r].pool].scheduler == STATIC


@verb
def enqueue(fleet: Fleet, r: int, i: int, now_s: float) -> None:
    """Puts request `i`, which is on no replica, into replica `r`'s queue, and wakes the engine if it is idle.

    Both engines queue alike; one that does not gets its branch here.
    """
    begin_waiting(fleet, r, i, now_s)


@verb
def turn(fleet: Fleet, r: int) -> None:
    """Ends replica `r`'s oldest step in flight, if there is one, plans what may follow, and sets when its next turn is."""
    now_s = begin_turn(fleet, r)
    if is_static(fleet, r):
        static.turn(fleet, r, now_s)
    else:
        vllm.turn(fleet, r, now_s)
    go_on(fleet, r, now_s)


@verb
def refuse(fleet: Fleet, pool: int, i: int) -> int:
    """Returns why this pool's engine, even an empty one, could never serve request `i`, or `NO_REASON`."""
    if fleet.engines[pool].scheduler == STATIC:
        return static.refuse(fleet, pool, i)
    return vllm.refuse(fleet, pool, i)


@verb
def clear(fleet: Fleet, r: int) -> None:
    """Empties replica `r`: no requests, no steps, all blocks free."""
    if is_static(fleet, r):
        static.clear(fleet, r)
    else:
        vllm.clear(fleet, r)


@verb
def evict(fleet: Fleet, r: int) -> int:
    """Takes one request off replica `r`'s lists, with the tokens it has got, and returns it; `NONE` when none is left.

    Running ones go first, in order of admission, then waiting ones in the queue's order. Only `clear` makes the replica fit for
    another step after that.
    """
    if is_static(fleet, r):
        return static.evict(fleet, r)
    return vllm.evict(fleet, r)


@verb
def abort(fleet: Fleet, r: int, i: int) -> None:
    """Takes request `i` off replica `r`'s lists with what it holds; it keeps the tokens that were delivered.

    Its tokens on the device are thrown away, though the steps last as long as they were planned to. A real engine reads
    aborts when a step has run, before it takes the step's tokens; as it plans nothing in between, it comes to the same.
    Source: `EngineCore.step` of vLLM, which calls `_process_aborts_queue` before `Scheduler.update_from_output`.
    """
    if is_static(fleet, r):
        static.abort(fleet, r, i)
    else:
        vllm.abort(fleet, r, i)


@verb
def recount(fleet: Fleet, r: int, counts: Any) -> None:
    """Adds to `counts`, as `DataPlane.recounts` says, the blocks and tokens that replica `r`'s running requests hold."""
    if is_static(fleet, r):
        static.recount(fleet, r, counts)
    else:
        vllm.recount(fleet, r, counts)
