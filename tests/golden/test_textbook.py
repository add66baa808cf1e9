"""Every number of the two texts of docs/sources.md, T01 to T42, through the public API; and the page that shows them."""

import csv
import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.golden.textbook import ROWS, Row, page
from tests.shared import shared

ROOT = Path(__file__).parents[2]
NUMBERLESS = {"T23", "T36", "T38", "T39", "T40", "T41", "T42"}  # theorems, shapes and properties
ids = [row.id for row in ROWS]


@pytest.mark.parametrize("row", [row for row in ROWS if not row.proven], ids=lambda row: row.id)
def test_our_number_is_the_text_s(row: Row) -> None:
    ours = row.ours()
    tolerances = row.tolerance if isinstance(row.tolerance, tuple) else (row.tolerance,) * len(row.text)
    assert len(ours) == len(row.text)
    for mine, text, tolerance in zip(ours, row.text, tolerances, strict=True):
        assert mine == pytest.approx(text, rel=0, abs=tolerance)


@pytest.mark.parametrize("row", [row for row in ROWS if row.proven], ids=lambda row: row.id)
def test_a_property_holds(row: Row) -> None:
    """Tests that are named after the row of docs/textbook.md look for an exception to it."""
    module = import_module(row.proven.removesuffix(".py").replace("/", "."))
    tests = [test for name, test in vars(module).items() if name.startswith(f"test_{row.id.lower()}_")]
    assert tests
    for test in tests:
        test()


def test_all_rows_are_there_once() -> None:
    assert ids == [f"T{number:02d}" for number in range(1, 43)]


def test_what_is_written_here_is_what_the_reference_says() -> None:
    """So that no expectation drifts towards our number."""
    with shared("reference/textbook.csv").open(newline="", encoding="utf-8") as lines:
        reference = {line["id"]: line for line in csv.DictReader(lines)}
    assert list(reference) == ids
    for row in ROWS:
        if row.id not in NUMBERLESS:
            assert [float(one) for one in re.findall(r"\d+\.?\d*", reference[row.id]["expected"])] == list(row.text), row.id
            given = reference[row.id]["tolerance"]
            allowed = {"exact": 1e-9, "shape": 15.0}.get(given) or float(given)
            tolerances = row.tolerance if isinstance(row.tolerance, tuple) else (row.tolerance,)
            assert max(tolerances) <= allowed, row.id


def test_overlap_halves_ttft_and_cuts_tpot() -> None:
    plain_tpot, tpot, plain_ttft, ttft = next(row for row in ROWS if row.id == "T37").ours()
    assert tpot < plain_tpot
    assert ttft / plain_ttft == pytest.approx(0.5, abs=0.1)


def test_the_page_is_current() -> None:
    assert (ROOT / "docs" / "textbook.md").read_text(encoding="utf-8") == page(), "docs/textbook.md is old: run `make docs`"
