"""A fleet at the size that simulation found, and what that size becomes when something else is asked of it."""

from collections.abc import Mapping
from dataclasses import replace

from planning.plans.fleets import Fleet
from planning.pools import PoolPlan, num_instances


def at_size(fleet: Fleet, working: Mapping[str, int]) -> Fleet:
    """Returns a closed form's fleet with as many working instances as simulation found, and its spares.

    What an instance does at most stays as the closed form has it, unless simulation saw it do more. How far the peak may fill
    it stays too where both find the same number; else it is the share at which the targets were seen to hold.

    Args:
        fleet: by closed form.
        working: instances of each pool, the spare ones left out.
    """
    pools, shares = [], []
    for pool, share in zip(fleet.pools, fleet.max_utilization, strict=True):
        seen = pool.load / working[pool.role]
        number = working[pool.role] + pool.num_spare
        pools.append(replace(pool, num_instances=number, capacity=max(pool.capacity, seen)))
        shares.append(share if number == pool.num_instances else seen / pools[-1].capacity)
    return replace(fleet, pools=tuple(pools), max_utilization=tuple(shares), closed_form=fleet)


def in_proportion(other: Fleet, found: Fleet) -> Fleet:
    """Returns a closed form's fleet for another case, filled as far as simulation found right for the plan's own.

    Args:
        other: by closed form, of the same layout.
        found: what simulation found; a fleet by closed form changes nothing.
    """
    if found.closed_form is None:
        return other
    pools = zip(other.pools, found.closed_form.pools, found.pools, found.max_utilization, strict=True)
    sized = tuple(_refilled(pool, simulated.capacity / closed.capacity, share) for pool, closed, simulated, share in pools)
    return replace(other, pools=sized, max_utilization=found.max_utilization, closed_form=other)


def _refilled(pool: PoolPlan, more: float, share: float) -> PoolPlan:
    """The pool with instances that do `more` times as much, filled up to `share`."""
    capacity = pool.capacity * more
    return replace(pool, num_instances=num_instances(pool.load, capacity, share) + pool.num_spare, capacity=capacity)
