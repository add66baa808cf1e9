"""One table of a step's terms: the compiled sum, the records, the calibrations and the documentation have what it says."""

import math
import random
from typing import Any

import pytest

from experiments.pages.tables import markdown
from replicas.calibration.device_fit import NAMES
from replicas.calibration.file import CpuTime, DeviceTime
from replicas.step_time import measured_s, padded_tokens, step_time, weight_bytes_read
from sim.records import BATCH, ENGINE, records
from sim.step_terms import FITTED_WITH_THE_FORM, IN_WORDS, TERMS, Step
from tests.commands import ROOT

MEASURED = ("measured_tokens", "measured_s")


def a_batch(chance: random.Random) -> Any:
    batch = records(BATCH, 1)[0]
    batch.num_requests = chance.randint(1, 300)
    batch.num_tokens = batch.num_requests + chance.choice([0, 0, chance.randint(1, 3000)])
    batch.kv_tokens = batch.num_tokens + chance.randint(0, 10**6)
    batch.attended_tokens = float(batch.kv_tokens)
    batch.num_masks = chance.randint(0, batch.num_requests)
    return batch


def an_engine(chance: random.Random) -> Any:
    engine = records(ENGINE, 1)[0]
    rates = {
        "flops_per_token": 1e9,
        "flops_per_s": 1e15,
        "dense_weight_bytes": 1e10,
        "kv_bytes_per_token": 1e5,
        "bytes_per_s": 3e12,
    }
    for name, value in rates.items():
        engine[name] = value * chance.uniform(0.5, 2)
    engine.serial_share = chance.random()
    engine.max_graph_tokens = chance.choice([0, 256, 512])
    if chance.random() < 0.5:
        engine.num_knots = 3
        engine.knot_tokens[:3] = 1, 256, 2048
        engine.knot_s[:3] = 1e-4, 2e-3, 9e-3
    return engine


def what_it_has(batch: Any, engine: Any) -> Step:
    return Step(
        padded_tokens=padded_tokens(batch.num_tokens, engine.max_graph_tokens),
        num_requests=batch.num_requests,
        kv_tokens=batch.kv_tokens,
        num_masks=batch.num_masks,
        is_mixed=batch.num_tokens > batch.num_requests,
        is_eager=batch.num_tokens > engine.max_graph_tokens,
    )


def by_the_table(batch: Any, engine: Any) -> float:
    step = what_it_has(batch, engine)
    tokens = step.padded_tokens
    arithmetic_s = (tokens * engine.flops_per_token) / engine.flops_per_s
    memory_s = (weight_bytes_read(batch.num_tokens, engine) + batch.kv_tokens * engine.kv_bytes_per_token) / engine.bytes_per_s
    device_s = max(arithmetic_s, memory_s) + engine.serial_share * min(arithmetic_s, memory_s)
    device_s += measured_s(tokens, engine) if engine.num_knots else 0.0
    for term in TERMS:
        seconds = term.seconds(step, float(engine[term.field]))
        if not term.is_cpu:
            device_s = max(device_s, seconds) if term.is_least else device_s + seconds
    return device_s + sum(term.seconds(step, float(engine[term.field])) for term in TERMS if term.is_cpu)


@pytest.mark.parametrize("seed", range(50))
def test_the_compiled_sum_is_that_of_the_table(seed: int) -> None:
    chance = random.Random(seed)
    batch, engine = a_batch(chance), an_engine(chance)
    for term in TERMS:
        typical = {"once": 1.0, "num_requests": 100.0, "num_masks": 100.0, "padded_tokens": 500.0, "kv_tokens": 5e5}[term.of]
        engine[term.field] = chance.choice([0.0, chance.uniform(0.001, 0.05)]) / typical
    assert step_time(batch, engine) == pytest.approx(by_the_table(batch, engine), rel=1e-12)


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.field)
def test_no_term_is_missing_in_the_compiled_sum(term: Any) -> None:
    """With all others at 0, a step of everything takes what the term says."""
    batch, engine = records(BATCH, 1)[0], records(ENGINE, 1)[0]
    batch.num_requests, batch.num_tokens, batch.kv_tokens, batch.num_masks = 3, 100, 1000, 2
    engine.flops_per_s = engine.bytes_per_s = math.inf
    engine.max_graph_tokens = 64
    engine[term.field] = 0.5
    times = {"once": 1, "padded_tokens": 100, "num_requests": 3, "kv_tokens": 1000, "num_masks": 2}[term.of]
    assert step_time(batch, engine) == 0.5 * times


def test_a_calibration_has_a_coefficient_for_each_term_and_no_other() -> None:
    ours = {term.coefficient for term in TERMS if not term.is_cpu}
    of_the_form = set(NAMES) - set(FITTED_WITH_THE_FORM)
    assert set(DeviceTime.model_fields) == ours | of_the_form | set(MEASURED)
    assert set(FITTED_WITH_THE_FORM) <= ours & set(NAMES)
    assert all(hasattr(CpuTime, str(term.coefficient)) for term in TERMS if term.is_cpu and term.coefficient)


def test_the_design_page_has_the_table() -> None:
    rows = [
        (
            f"`{term.field}`",
            "" if term.coefficient is None else f"`{'cpu_time' if term.is_cpu else 'device_time'}.{term.coefficient}`",
            IN_WORDS[term.of],
            IN_WORDS[term.when],
            term.meaning,
        )
        for term in TERMS
    ]
    table = markdown(("engine", "calibration", "times", "in a step", "what it is"), rows, num_left=5)
    assert table in (ROOT / "docs" / "design.md").read_text(), table
