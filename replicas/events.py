"""Which replica's step ends next: a winner tree, so that finding it is free and changing one leaf costs log2(replicas)."""

import numpy as np

from sim.compiled import verb
from sim.records import Fleet


@verb
def order_of(at_s: float) -> int:
    """Returns an integer that sorts like `at_s`, which is not negative: the bits of the float.

    Which of two ends comes first is a coin toss. As integers, they are compared without a branch to mispredict.
    """
    return int(np.float64(at_s).view(np.int64))


@verb
def set_next_end(fleet: Fleet, r: int, at_s: float) -> None:
    """Sets when replica `r`'s step ends and carries the winner up to the root. Ties go to the lower slot."""
    fleet.next_end_at_s[r] = at_s
    winner, winner_order = r, order_of(at_s)
    i = r + fleet.next_end_at_s.size
    while i > 1:
        rival = fleet.earliest[i ^ 1]
        rival_order = order_of(fleet.next_end_at_s[rival])
        loses = rival_order < winner_order + (i & 1)  # at a tie the left one, the lower slot, stays
        winner = rival if loses else winner
        winner_order = rival_order if loses else winner_order
        i >>= 1
        fleet.earliest[i] = winner


@verb
def next_to_end(fleet: Fleet) -> int:
    """Returns the slot of the replica whose step ends first; if none runs, its end is infinite."""
    return fleet.earliest[1]
