"""Which replica's step ends next: a winner tree, so that finding it is free and changing one leaf costs log2(replicas)."""

from sim.compiled import verb
from sim.records import Fleet


@verb
def set_next_end(fleet: Fleet, r: int, at_s: float) -> None:
    """Sets when replica `r`'s step ends and carries the winner up to the root. Ties go to the lower slot."""
    fleet.next_end_at_s[r] = at_s
    i = (r + fleet.next_end_at_s.size) >> 1
    while i > 0:
        left, right = fleet.earliest[2 * i], fleet.earliest[2 * i + 1]
        if fleet.next_end_at_s[right] < fleet.next_end_at_s[left]:
            fleet.earliest[i] = right
        else:
            fleet.earliest[i] = left
        i >>= 1


@verb
def next_to_end(fleet: Fleet) -> int:
    """Returns the slot of the replica whose step ends first; if none runs, its end is infinite."""
    return fleet.earliest[1]
