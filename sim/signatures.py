"""The types by which compiled functions take records: apart from the records, for which nothing has to be compiled."""

import numba as nb

from sim.bundle_types import BundleType
from sim.records import LOAD, REQUEST_VIEW, Fleet, RouterState

FLEET_TYPE = BundleType(Fleet)
ROUTER_STATE_TYPE = BundleType(RouterState)
LOADS_TYPE = nb.types.Array(nb.from_dtype(LOAD), 1, "C")
ROUTER_SIGNATURE = nb.types.int64(
    LOADS_TYPE, nb.types.int64[::1], nb.types.Array(nb.from_dtype(REQUEST_VIEW), 1, "C"), ROUTER_STATE_TYPE
)
"""(loads, candidates, asking, state) -> the chosen slot, one of `candidates`."""
