"""One replica's block pool and prefix cache by hand: the verbs that a test calls, without a scheduler around them."""

from collections.abc import Sequence
from typing import Any

import numba as nb
import numpy as np

from experiments.contracts.fleets import classes, engine
from replicas.eviction import clear
from replicas.queues import sequence_of
from replicas.vllm.allocation import take_blocks
from replicas.vllm.block_pool import give_back, unregister
from replicas.vllm.prefix_cache import count_free, hold_hits, look_up, register_blocks
from sim.coming import appear, count_arrival
from sim.compiled import loop
from sim.metrics import NUM_ITL_BINS
from sim.records import ARRIVAL, SEGMENT, Fleet
from sim.signatures import FLEET_TYPE
from sim.window import load, new_fleet


@loop(nb.types.int64(FLEET_TYPE, nb.types.int64))
def look_up_hits(fleet: Fleet, i: int) -> int:
    """Returns how many blocks request `i` can begin with; they are in the free row of the block table."""
    return look_up(fleet, 0, i)


@loop(nb.types.int64(FLEET_TYPE, nb.types.int64))
def count_free_hits(fleet: Fleet, num_hits: int) -> int:
    return count_free(fleet, 0, num_hits)


@loop(nb.types.void(FLEET_TYPE, nb.types.int64, nb.types.int64))
def begin(fleet: Fleet, i: int, num_hits: int) -> None:
    """Gives request `i` its row, with the blocks just looked up."""
    hold_hits(fleet, 0, i, num_hits)


@loop(nb.types.void(FLEET_TYPE, nb.types.int64, nb.types.int64, nb.types.int64))
def grow(fleet: Fleet, i: int, num_held: int, num_blocks: int) -> None:
    take_blocks(fleet, 0, i, num_held, num_blocks)


@loop(nb.types.void(FLEET_TYPE, nb.types.int64, nb.types.int64))
def register(fleet: Fleet, i: int, num_tokens: int) -> None:
    register_blocks(fleet, 0, i, num_tokens)


@loop(nb.types.void(FLEET_TYPE, nb.types.int64, nb.types.int64))
def release(fleet: Fleet, i: int, num_blocks: int) -> None:
    fleet.loads[0].num_free_blocks += give_back(fleet, 0, sequence_of(fleet, i).row, num_blocks)


@loop(nb.types.void(FLEET_TYPE, nb.types.int64))
def forget(fleet: Fleet, b: int) -> None:
    """Makes block `b` impossible to hit."""
    unregister(fleet, 0, b)


def empty_cache(num_blocks: int, **fields: Any) -> Fleet:
    """A fleet of one replica with prefix caching, for requests of class 0 (no adapter) or 1 (adapter 1)."""
    engines = engine(enable_prefix_caching=1, num_usable_blocks=num_blocks, **fields)
    fleet = new_fleet(engines, 1, NUM_ITL_BINS, classes=classes((0, 0, 0, 0.0), (0, 1, 0, 0.0)))
    fleet.loads[0].num_usable_blocks = num_blocks
    clear(fleet, 0)
    return fleet


@loop(nb.types.void(FLEET_TYPE))
def bring_in(fleet: Fleet) -> None:
    """Makes requests of all rows of the traffic that have been let in, in order."""
    while fleet.clock[0].num_to_come > 0:
        appear(fleet)
        count_arrival(fleet)


def with_request(fleet: Fleet, num_tokens: int, segments: Sequence[tuple[int, int]], class_id: int = 0) -> Fleet:
    """The fleet with one request more in the window; its id is the number of those before it."""
    arrival = np.zeros(1, ARRIVAL)
    arrival["num_prompt_tokens"], arrival["class_id"], arrival["num_segments"] = num_tokens, class_id, len(segments)
    fleet = load(fleet, arrival, np.array(list(segments), SEGMENT))
    bring_in(fleet)
    return fleet
