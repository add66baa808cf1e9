"""Closed form against simulation over utilisation: the page is what comes out, and its explanations hold."""

import re
from pathlib import Path

import pytest

from planning.balance import mixed_capacity
from replicas.capacity import capacity
from tests.servers import MEAN_STEPS
from tests.theory.closed_forms import (
    LOADS,
    NUM_REQUESTS,
    OUTPUT,
    PROMPT,
    QUEUES,
    Row,
    Served,
    engine_8b,
    engine_tables,
    queue_tables,
)

PAGE = (Path(__file__).parents[2] / "docs" / "closed_forms.md").read_text(encoding="utf-8")
TRIED = (0.5, 0.8)  # of the engine, simulated again here; the page has all loads
TRIED_QUEUES = (0.8,)


@pytest.fixture(scope="module")
def queues() -> dict[str, list[Row]]:
    return queue_tables(TRIED_QUEUES)


@pytest.fixture(scope="module")
def engines() -> dict[str, list[Served]]:
    return engine_tables(TRIED)


def shown(name: str) -> dict[float, list[float]]:
    """The numbers of one table of the page, by load."""
    _, _, rest = PAGE.partition(f"### {name}\n")
    lines = [line for line in rest.split("\n#")[0].splitlines() if re.match(r"\| \d", line)]
    rows = [[float(cell.strip(" %").replace(",", "")) for cell in line.strip("| ").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows}


def test_the_page_has_every_table_at_every_load(queues: dict[str, list[Row]], engines: dict[str, list[Served]]) -> None:
    assert f"{NUM_REQUESTS:,} requests" in PAGE
    for name in [*queues, *engines]:
        assert tuple(shown(name)) == LOADS, f"docs/closed_forms.md is old: run `make docs` ({name})"


@pytest.mark.parametrize("name", QUEUES)
def test_the_page_of_queues_is_what_comes_out(name: str, queues: dict[str, list[Row]]) -> None:
    """To the last digit shown, give or take one: a processor may round its own way."""
    for row in queues[name]:
        closed_form, simulated, *_ = shown(name)[row.load]
        assert closed_form == pytest.approx(row.closed_form, abs=0.0015)
        assert simulated == pytest.approx(row.simulated, abs=0.0015)


def test_the_page_of_engines_is_what_comes_out(engines: dict[str, list[Served]]) -> None:
    for name, rows in engines.items():
        for row in rows:
            rate_per_s, closed_tpot, tpot, _, p90, *_ = shown(name)[row.load]
            ours = (row.requests_per_s, row.closed_tpot, row.tpot, row.tpot_p90)
            assert (rate_per_s, closed_tpot, tpot, p90) == pytest.approx(ours, abs=0.15)


@pytest.mark.parametrize("name", QUEUES)
def test_queues_deviate_by_chance_alone(name: str, queues: dict[str, list[Row]]) -> None:
    """Within four standard errors; M/M/8 up to a step of its services above."""
    bias = 1 / MEAN_STEPS if "M/M/8" in name else 0.0
    for row in queues[name]:
        assert -4 * row.standard_error <= row.simulated - row.closed_form <= bias + 4 * row.standard_error
        assert row.standard_error < 0.03 * row.closed_form


def test_with_equal_lengths_the_closed_form_is_up_to_a_fifth_too_fast(engines: dict[str, list[Served]]) -> None:
    for row in engines["Equal lengths"]:
        assert 0 < row.deviation < 0.2


def test_lengths_that_vary_make_it_worse(engines: dict[str, list[Served]]) -> None:
    equal, spread = engines["Equal lengths"], engines["Lognormal lengths, p99 of 10,000 and 2,000"]
    for one, other in zip(equal, spread, strict=True):
        assert other.deviation > one.deviation
    assert spread[-1].deviation > spread[0].deviation


def test_the_bound_is_above_the_closed_form_s_capacity() -> None:
    engine = engine_8b()[0]
    full = mixed_capacity(engine, PROMPT, OUTPUT)
    assert full is not None
    assert 1.1 < capacity(engine, PROMPT, OUTPUT).requests_per_s / full.requests_per_s < 1.3
