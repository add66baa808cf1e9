"""Which replica's step ends next: a winner tree, so that finding it is free and changing one leaf costs log2(replicas)."""

from sim.compiled import verb
from sim.records import Fleet


@verb
def set_next_end(fleet: Fleet, r: int, at_s: float) -> None:
    """Sets when replica `r`'s step ends and carries the winner up to the root. Ties go to the lower slot."""
    fleet.next_end_at_s[r] = at_s
    winner, winner_at_s = r, at_s
    i = r + fleet.next_end_at_s.size
    while i > 1:
        rival = fleet.earliest[i ^ 1]
        rival_at_s = fleet.next_end_at_s[rival]
        if rival_at_s < winner_at_s or (rival_at_s == winner_at_s and rival < winner):
            winner, winner_at_s = rival, rival_at_s
        i >>= 1
        fleet.earliest[i] = winner


@verb
def next_to_end(fleet: Fleet) -> int:
    """Returns the slot of the replica whose step ends first; if none runs, its end is infinite."""
    return fleet.earliest[1]
