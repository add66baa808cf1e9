"""Arrays that travel together: what Python and compiled code see of them is the same memory."""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numba as nb
import numpy as np
import pytest

from sim.bundle import Bundle
from sim.bundle_types import BundleType
from sim.compiled import loop, verb

COMPILED = not nb.config.DISABLE_JIT  # type: ignore[attr-defined]
POINT = np.dtype([("x", "f8"), ("y", "i4")], align=True)


@dataclass(frozen=True, eq=False)
class Drawing(Bundle):
    points: Annotated[Any, POINT, 1]
    cube: Annotated[Any, "i4", 3]


DRAWING = BundleType(Drawing)


@verb
def put(fleet: Any, i: int, j: int, k: int, value: int) -> None:
    fleet.cube[i, j, k] = value


@loop(nb.types.void(DRAWING, nb.types.int64, nb.types.int64, nb.types.int64, nb.types.int64))
def put_and_move(drawing: Any, i: int, j: int, k: int, value: int) -> None:
    put(drawing, i, j, k, value)
    point = drawing.points[i]
    point.x += 0.5
    point.y = drawing.points.size * 100 + drawing.cube.shape[2]


def drawing() -> Drawing:
    return Drawing(points=np.zeros(2, POINT).view(np.recarray), cube=np.zeros((2, 3, 4), np.int32))


@pytest.mark.parametrize("place", [(0, 0, 0), (0, 2, 3), (1, 0, 1), (1, 2, 3)])
def test_compiled_code_writes_where_python_reads(place: tuple[int, int, int]) -> None:
    it = drawing()
    put_and_move(it, *place, 7)
    assert it.cube[place] == 7
    assert np.count_nonzero(it.cube) == 1
    assert it.points[place[0]].x == 0.5
    assert it.points[place[0]].y == 204


@pytest.mark.parametrize("another", [deepcopy, lambda it: replace(it, cube=it.cube.copy(), points=it.points.copy())])
def test_a_copy_has_its_own_arrays(another: Any) -> None:
    first = drawing()
    second = another(first)
    put_and_move(second, 1, 1, 1, 9)
    assert not first.cube.any()
    assert second.cube[1, 1, 1] == 9


@pytest.mark.parametrize(
    "wrong",
    [
        {"cube": np.zeros((2, 3, 4), np.int64)},
        {"cube": np.zeros((6, 4), np.int32)},
        {"cube": np.zeros((2, 3, 8), np.int32)[:, :, ::2]},
        {"points": np.zeros(4, POINT)[::2]},
        {"points": np.zeros(2)},
    ],
)
def test_an_array_that_compiled_code_would_misread_is_refused(wrong: dict[str, Any]) -> None:
    name = next(iter(wrong))
    with pytest.raises(TypeError, match=rf"Drawing\.{name} must be a contiguous array"):
        replace(drawing(), **wrong)


@pytest.mark.skipif(not COMPILED, reason="uncompiled, a verb is a plain function")
def test_python_cannot_call_a_verb_that_has_no_door() -> None:
    it = drawing()
    put_and_move(it, 0, 0, 0, 1)
    with pytest.raises((TypeError, KeyError)):  # in words of the builtin that stands in its place, but no crash
        put(it, 0, 0, 0, 1)
