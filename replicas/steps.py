"""A step's way: planned, sent to the device, in flight; and what an engine does after its turn."""

from replicas.batches import batch_of, next_batch, oldest_batch, take_up
from replicas.events import set_next_end
from replicas.idling import next_work_at_s, sleep
from replicas.step_time import is_outside_range, step_time
from replicas.together import go_on_together
from sim.compiled import verb
from sim.records import Fleet


@verb
def begin_turn(fleet: Fleet, r: int) -> float:
    """Returns the instant of replica `r`'s turn: the end of its oldest step in flight, or, if it is idle, when it was woken."""
    replica = fleet.replicas[r]
    return fleet.next_end_at_s[r] if replica.num_in_flight > 0 else replica.woken_at_s


@verb
def count_step(fleet: Fleet, r: int) -> bool:
    """Counts what has been planned into replica `r`'s next step, and returns whether that is any work."""
    replica, load = fleet.replicas[r], fleet.loads[r]
    batch = next_batch(fleet, r)
    if batch.num_requests == 0:
        return False
    batch.num_masks = replica.num_masks
    load.running_tokens += batch.num_tokens
    replica.peak_batched_tokens = max(replica.peak_batched_tokens, batch.num_tokens)
    replica.peak_running = max(replica.peak_running, load.num_running)
    return True


@verb
def run_next(fleet: Fleet, r: int, now_s: float) -> float:
    """Has the device run the planned step behind those in flight, and returns when it ends; inf until others step with it."""
    replica = fleet.replicas[r]
    engine = fleet.engines[replica.pool]
    if engine.num_together > 1:
        return float("inf")
    lasts_s = step_time(next_batch(fleet, r), engine)
    begins_at_s = batch_of(fleet, r, replica.num_steps - 1).ends_at_s if replica.num_in_flight > 0 else now_s
    replica.busy_s += lasts_s
    return begins_at_s + lasts_s


@verb
def send(fleet: Fleet, r: int, ends_at_s: float) -> None:
    """Puts the planned step, which ends at `ends_at_s`, behind those in flight."""
    replica = fleet.replicas[r]
    batch = next_batch(fleet, r)
    batch.ends_at_s = ends_at_s
    replica.num_steps_outside_range += is_outside_range(batch, fleet.engines[replica.pool])
    take_up(fleet, r)


@verb
def go_on(fleet: Fleet, r: int, now_s: float) -> None:
    """Sets when replica `r`'s next turn is: at the end of its oldest step in flight, or, if it is idle, when there is work."""
    if fleet.engines[fleet.replicas[r].pool].num_together > 1:
        go_on_together(fleet, r, now_s)
    elif fleet.replicas[r].num_in_flight > 0:
        set_next_end(fleet, r, oldest_batch(fleet, r).ends_at_s)
    else:
        sleep(fleet, r, next_work_at_s(fleet, r, now_s))
