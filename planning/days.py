"""A day of replicas: what a fixed fleet, one that reacts, and one that looks ahead have ready, and what they are billed for."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sim.checks import check_positive, check_share, check_whole

Policy = Literal["fixed", "reactive", "forecast"]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Day:
    """Replicas in each step of a day, (n,) each."""

    ready: Whole  # able to serve
    billed: Whole  # ready or starting

    def short(self, load: NDArray[np.float64], capacity: float) -> NDArray[np.bool_]:
        """Returns in which steps the load is above what is ready, shape (n,)."""
        return load > self.ready * capacity * (1 + 1e-12)


def replicas_of_day(
    load: NDArray[np.float64],
    capacity: float,
    cold_start_steps: int,
    policy: Policy,
    max_utilization: float = 1.0,
    min_replicas: int = 1,
) -> Day:
    """Returns the replicas that a policy has, step by step, on a load that it sees without noise.

    A replica asked for in one step is ready `cold_start_steps` later and billed from the asking on; one let go is gone at
    once. `reactive` asks for what the load of this step needs, and so is exactly one cold start behind on a rise; `forecast`
    for the most that any step needs up to one cold start ahead, and so is never behind; `fixed` holds the day's most.

    Args:
        load: requests/s in each step, (n,), repeating day after day.
        capacity: requests/s of one replica.
        cold_start_steps: from the asking to being ready, in steps; 0 = at once.
        policy: who decides.
        max_utilization: share of the capacity that the load should fill.
        min_replicas: fewest at any time.

    Source: docs/sources.md [1], Routing and autoscaling (the theorem of the cold start).

    Raises:
        ValueError: a number is out of range.
    """
    check_positive("capacity", capacity)
    check_share("max_utilization", max_utilization)
    check_whole("cold_start_steps", cold_start_steps, 0)
    check_whole("min_replicas", min_replicas, 0)
    if not len(load) or not np.isfinite(load).all() or load.min() < 0:
        raise ValueError("load must be finite numbers from 0 up, and not empty")
    needed = np.maximum(min_replicas, np.ceil(load / (capacity * max_utilization) * (1 - 1e-12))).astype(np.int64)
    if policy == "fixed":
        most = np.full_like(needed, needed.max())
        return Day(most, most)
    if policy == "forecast":
        ahead = np.max([np.roll(needed, -step) for step in range(cold_start_steps + 1)], axis=0)
        return _scaled(ahead, cold_start_steps)
    return _scaled(needed, cold_start_steps)


def _scaled(wanted: Whole, cold_start_steps: int) -> Day:
    """What is ready and billed when `wanted` are asked for; the day before was the same, so it begins as it ends."""
    ready, starting = int(wanted[0]), list[int]()  # the step in which each starting replica is ready
    ready_of, billed_of = [], []
    for step, want in enumerate(np.concatenate([wanted, wanted]).tolist()):
        ready += sum(at <= step for at in starting)
        starting = [at for at in starting if at > step]
        change = want - ready - len(starting)
        if change > 0 and cold_start_steps == 0:
            ready += change
        elif change > 0:
            starting += [step + cold_start_steps] * change
        elif change < 0:
            cancelled = min(-change, len(starting))
            starting = starting[: len(starting) - cancelled]
            ready += change + cancelled
        ready_of.append(ready)
        billed_of.append(ready + len(starting))
    return Day(np.array(ready_of[len(wanted) :]), np.array(billed_of[len(wanted) :]))
