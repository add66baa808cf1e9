"""Prefills only in every n-th step (`prefill_schedule_interval`), so that engines that step together prefill together.

In between, decodes run and prefills wait, unless more requests wait than the last step that could prefill took in.
Source: vLLM 0.32.0, `Scheduler.schedule(throttle_prefills)` and `DPEngineCoreProc._should_throttle_prefills`.
"""

from replicas.queues import sequence_of, slot_of
from replicas.vllm.speculation import grows_unevenly
from sim.compiled import rare, verb
from sim.records import CATCHING_UP, NONE, Fleet


@rare
def pace_prefills(fleet: Fleet, r: int) -> None:
    """Decides whether prefills wait in the step being planned: only if something else runs."""
    replica = fleet.replicas[r]
    replica.defers_prefills = 0
    if (replica.num_plans - 1) % fleet.engines[replica.pool].prefill_schedule_interval == 0 or replica.is_saturated:
        return
    i = replica.running.head
    while i != NONE:
        if not is_prefilling(fleet, r, i):
            replica.defers_prefills = 1
        i = fleet.requests[slot_of(fleet, i)].next


@verb
def is_prefilling(fleet: Fleet, r: int, i: int) -> bool:
    """Tells whether running request `i` has not caught up since its admission."""
    request = fleet.requests[slot_of(fleet, i)]
    if grows_unevenly(fleet.engines[fleet.replicas[r].pool]):
        return sequence_of(fleet, i).may_decode_at == 0
    return request.phase == CATCHING_UP and request.last_step == NONE


@verb
def note_saturation(fleet: Fleet, r: int) -> None:
    """Notes after a step that could prefill whether requests still wait, other than those that it had to pass by."""
    num_passed_by = 0
    for k in range(fleet.lines.shape[1]):
        num_passed_by += fleet.lines[r, k].num_passed_by
    fleet.replicas[r].is_saturated = fleet.loads[r].num_waiting > num_passed_by
