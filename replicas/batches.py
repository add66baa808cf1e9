"""A replica's steps: the one being planned, and those in flight."""

from typing import Any

from sim.compiled import verb
from sim.records import NONE, Fleet


@verb
def batch_of(fleet: Fleet, r: int, step: int) -> Any:
    """Returns the record of a step that is being planned or in flight."""
    return fleet.batches[r, step & (fleet.batches.shape[1] - 1)]


@verb
def next_batch(fleet: Fleet, r: int) -> Any:
    """Returns the record of the step that replica `r` is planning."""
    return batch_of(fleet, r, fleet.replicas[r].num_steps)


@verb
def oldest_batch(fleet: Fleet, r: int) -> Any:
    """Returns the record of the first of replica `r`'s steps in flight; there must be one."""
    return batch_of(fleet, r, oldest_step(fleet, r))


@verb
def oldest_step(fleet: Fleet, r: int) -> int:
    """Returns the number of the first step that has not ended; without one in flight, of the next."""
    return fleet.replicas[r].num_steps - fleet.replicas[r].num_in_flight


@verb
def clear_batch(fleet: Fleet, r: int) -> None:
    """Opens the record of replica `r`'s next step; `schedule_decodes` sets the sums."""
    batch = next_batch(fleet, r)
    batch.step = fleet.replicas[r].num_steps
    batch.num_adapters = batch.has_prefill = batch.awaits_tokens = batch.num_empty_behind = 0
    batch.first_head = NONE


@verb
def take_up(fleet: Fleet, r: int) -> None:
    """Puts the planned step behind those in flight."""
    fleet.replicas[r].num_steps += 1
    fleet.replicas[r].num_in_flight += 1
