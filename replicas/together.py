"""Data-parallel engines of a model with experts step together: the experts on the devices of each serve the others.

Their turns come one after the other at the same instant. When the last of them has planned, their steps begin, as long for all
as the slowest is; an engine that has nothing to do takes part with an empty step.
Source: vLLM 0.32.0, `DPEngineCoreProc.run_busy_loop`.
"""

from replicas.batches import batch_of, clear_batch, next_batch, oldest_batch, oldest_step, take_up
from replicas.events import set_next_end
from replicas.idling import next_work_at_s, sleep, wake_at
from replicas.step_time import step_time_among
from sim.compiled import rare, verb
from sim.records import Fleet


@verb
def first_together(fleet: Fleet, r: int) -> int:
    """Returns the first of the slots that step together with slot `r`; where each steps alone, itself."""
    engine = fleet.engines[fleet.replicas[r].pool]
    return r - (r - engine.first_slot) % engine.num_together


@rare
def wake_together(fleet: Fleet, r: int, now_s: float) -> None:
    """Wakes the engines that step together with slot `r`, if they are idle."""
    first = first_together(fleet, r)
    if fleet.replicas[first].num_in_flight == 0:
        for k in range(first, first + fleet.engines[fleet.replicas[r].pool].num_together):
            wake_at(fleet, k, now_s)


@rare
def go_on_together(fleet: Fleet, r: int, now_s: float) -> None:
    """Notes that slot `r` has had its turn; after the last of those that step together, their steps begin, or all sleep."""
    first = first_together(fleet, r)
    last = first + fleet.engines[fleet.replicas[r].pool].num_together - 1
    set_next_end(fleet, r, float("inf"))
    if r < last:
        return
    fall_in(fleet, first, last)
    num_in_flight = fleet.replicas[first].num_in_flight
    for k in range(num_in_flight):
        if batch_of(fleet, first, oldest_step(fleet, first) + k).ends_at_s == float("inf"):
            begins_at_s = batch_of(fleet, first, oldest_step(fleet, first) + k - 1).ends_at_s if k > 0 else now_s
            begin(fleet, first, last, k, begins_at_s)
    wake_at_s = float("inf")
    for rank in range(first, last + 1):
        if num_in_flight > 0:
            set_next_end(fleet, rank, oldest_batch(fleet, rank).ends_at_s)
        else:
            wake_at_s = min(wake_at_s, next_work_at_s(fleet, rank, now_s))
    if num_in_flight == 0:
        for rank in range(first, last + 1):
            sleep(fleet, rank, wake_at_s)


@verb
def fall_in(fleet: Fleet, first: int, last: int) -> None:
    """Gives those that planned fewer steps empty ones, so that all have equally many."""
    num_in_flight = num_plans = 0
    for rank in range(first, last + 1):
        num_in_flight = max(num_in_flight, fleet.replicas[rank].num_in_flight)
        num_plans = max(num_plans, fleet.replicas[rank].num_plans)
    for rank in range(first, last + 1):
        fleet.replicas[rank].num_plans = num_plans
        while fleet.replicas[rank].num_in_flight < num_in_flight:
            clear_batch(fleet, rank)
            batch = next_batch(fleet, rank)
            batch.num_decodes = batch.num_surplus = batch.num_requests = batch.num_tokens = 0
            batch.ends_at_s = float("inf")
            take_up(fleet, rank)


@verb
def begin(fleet: Fleet, first: int, last: int, k: int, begins_at_s: float) -> None:
    """Sets when the `k`-th step in flight of the engines from slot `first` to `last` ends."""
    engine = fleet.engines[fleet.replicas[first].pool]
    longest = num_tokens = 0
    for rank in range(first, last + 1):
        batch = batch_of(fleet, rank, oldest_step(fleet, rank) + k)
        longest = max(longest, batch.num_tokens)
        num_tokens += batch.num_tokens
    lasts_s = 0.0
    for rank in range(first, last + 1):
        batch = batch_of(fleet, rank, oldest_step(fleet, rank) + k)
        if batch.num_requests > 0:
            lasts_s = max(lasts_s, step_time_among(batch, engine, longest, num_tokens))
    for rank in range(first, last + 1):
        batch_of(fleet, rank, oldest_step(fleet, rank) + k).ends_at_s = begins_at_s + lasts_s
        fleet.replicas[rank].busy_s += lasts_s
