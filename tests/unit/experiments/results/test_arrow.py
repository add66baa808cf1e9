"""Arrow arrays made of buffers are those that Arrow makes itself."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from experiments.results import arrow

COLUMNS: list[tuple[Any, list[Any]]] = [
    (pa.float64(), [1.5, None, -2.0]),
    (pa.int64(), [2**62, -(2**62), 0]),
    (pa.int32(), [None] * 9),
    (pa.bool_(), [True, None, False, True, True, False, True, False, None, True]),
    (pa.string(), ["", "größer", None, "x"]),
    *((kind, []) for kind in (pa.float64(), pa.bool_(), pa.string())),
]


@pytest.mark.parametrize(("kind", "values"), COLUMNS)
def test_a_column_has_its_values_and_its_nulls(kind: Any, values: list[Any]) -> None:
    made = arrow.column(kind, values)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))


@pytest.mark.parametrize(("kind", "values"), [pair for pair in COLUMNS if pair[0] != pa.string()])
@pytest.mark.parametrize("first", [0, 1])
def test_numbers_come_back_a_null_as_nan(kind: Any, values: list[Any], first: int) -> None:
    part = pa.array(values, kind)[first:]
    found = arrow.values_of(part)
    assert (found.dtype.kind == "f") == (kind == pa.float64() or part.null_count > 0)
    np.testing.assert_array_equal(found.astype(float), np.array(part.to_pylist(), float))


def test_what_stands_at_a_null_does_not_matter() -> None:
    made = arrow.numbers(pa.int16(), np.array([3, -1]), np.array([False, True]))
    assert made.to_pylist() == [3, None]
