"""How many replicas carry a load: the one division that every policy ends with."""

import math

from autoscalers.limits import Wanted

NO_CAPACITY = Wanted(0.0, "no replica can serve any of the traffic")
"""The answer where one replica's capacity is None: the pool gets no request, and would gain nothing by more replicas."""

_ROUNDING = 1e-12
"""Relative; far above the error of a few float operations, far below any real difference in load."""


def replicas_for(load: float, capacity: float) -> int:
    """Returns the fewest replicas whose joint capacity holds `load`; both in the same unit.

    21 / 0.7 is 30.000000000000004 in floats; the answer is 30, not 31.

    >>> replicas_for(21, 0.7 * 1.0), replicas_for(21.1, 0.7), replicas_for(0, 5.0)
    (30, 31, 0)

    Raises:
        ValueError: The capacity of one replica is not a positive number. Then no number of replicas is right.
    """
    if not (capacity > 0 and math.isfinite(capacity)):
        raise ValueError(f"one replica's capacity must be a positive number to size a pool by it, got {capacity!r}")
    return max(0, math.ceil(load / capacity * (1 - _ROUNDING)))
