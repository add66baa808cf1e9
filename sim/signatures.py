"""The types by which compiled functions take records: apart from the records, for which nothing has to be compiled."""

from functools import cache
from typing import Any

import numba as nb

from sim.bundle_types import BundleType
from sim.records import Fleet, RouterView

FLEET_TYPE = BundleType(Fleet)


@cache
def view_type(memory: Any, options: Any) -> BundleType:
    """Returns the type of a router's view, for the dtypes of its memory and of its options."""
    return BundleType(RouterView, memory=memory, options=options)


RouterView._numba_type_ = property(lambda view: view_type(*view.own_dtypes))  # type: ignore[attr-defined]
"""The type for which a view's router is compiled."""

VIEW_TYPE = view_type("u1", "u1")
"""A view as those see it who only pass it on: its memory and options are bytes to them."""

CHOOSE_SIGNATURE = nb.types.int64(VIEW_TYPE)
"""A router: view -> the chosen slot, one of its `candidates`."""

OBSERVE_SIGNATURE = nb.types.void(VIEW_TYPE)
"""Who tells a router what happens: view, of which `event` is what it is told."""
