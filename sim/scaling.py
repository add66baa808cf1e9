"""An autoscaler's loop, over the pools that it decides for."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import simpy

from sim.pool import Pool
from sim.views import PoolView


class Alone:
    """What decides by the view of one pool, as an autoscaler at work."""

    def __init__(self, controller: Any) -> None:
        self._controller = controller

    def decide(self, views: Mapping[str, PoolView]) -> Mapping[str, Any]:
        """Returns the decision for the pool."""
        return {name: self._controller.decide(view) for name, view in views.items()}


def control(env: simpy.Environment, pools: Sequence[Pool]) -> Generator[Any, Any, None]:
    """An autoscaler's loop: look, decide, act. The first decision is the fleet that the day starts with.

    Args:
        env: the clock.
        pools: those that the autoscaler of the first of them decides for, at its interval.
    """
    spec, is_first = pools[0].spec, True
    while True:
        decisions = spec.autoscaler.decide({pool.spec.name: pool.shown() for pool in pools})
        for pool in pools:
            pool.apply(decisions[pool.spec.name].desired, warm=is_first and pool.spec.warm_start)
        is_first = False
        yield env.timeout(spec.interval_s)


def decided_together(pools: Sequence[Pool]) -> list[list[Pool]]:
    """Returns the pools that have the same autoscaler together, in their order."""
    groups: list[list[Pool]] = []
    for pool in pools:
        mine = [group for group in groups if group[0].spec.autoscaler is pool.spec.autoscaler]
        if mine:
            mine[0].append(pool)
        else:
            groups.append([pool])
    return groups
