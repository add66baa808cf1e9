"""What every autoscaler in the table must do, ours or yours: add its parameters to PARAMETERS and run."""

import math
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from autoscalers import FORECASTERS, KINDS, Autoscaler, Decision, Forecast
from sim.views import PoolView

PARAMETERS: list[tuple[str, dict[str, Any]]] = [
    ("fixed", {"replicas": 3}),
    ("queue_target", {}),
    ("queue_target", {"min_replicas": 0, "warm_buffer": 0, "replica_token_capacity": 500.0}),
    *(("forecast", {"forecaster": name, "season_s": 900.0}) for name in FORECASTERS),
    ("forecast", {"forecaster": "naive", "clear_backlog_s": 60.0, "max_replicas": None}),
]

each = pytest.mark.parametrize(
    "scaler",
    [KINDS[kind](**fields) for kind, fields in PARAMETERS],
    ids=[f"{k}-{i}" for i, (k, _) in enumerate(PARAMETERS)],
)


def known_rate(start_s: float, end_s: float) -> float:
    return 20.0 + 15.0 * math.sin((start_s + end_s) / 600.0)


def views(num_ticks: int = 200, seed: int = 1) -> Iterator[PoolView]:
    """A pool's history with every gauge somewhere between idle and overloaded, and times without replicas."""
    random, num_arrived = np.random.default_rng(seed), 0
    for i in range(num_ticks):
        num_arrived += int(random.poisson(300))
        tokens = random.integers(0, 50_000, size=2)
        yield PoolView(
            now_s=15.0 * i,
            num_ready=int(random.integers(0, 20)),
            num_starting=int(random.integers(0, 5)),
            num_draining=int(random.integers(0, 5)),
            num_waiting=int(tokens[0]) // 500,
            num_running=int(tokens[1]) // 500,
            waiting_tokens=int(tokens[0]),
            running_tokens=int(tokens[1]),
            num_arrived=num_arrived,
            kv_cache_usage=float(random.random()),
            cold_start_s=120.0,
            replica_requests_per_s=5.0,
            replica_tokens=4000.0,
        )


def run(scaler: Autoscaler, seed: int = 1) -> list[Decision]:
    controller = scaler.start(known_rate, seed)
    return [controller.decide(view) for view in views()]


def test_every_kind_is_tried_here() -> None:
    assert {kind for kind, _ in PARAMETERS} == set(KINDS)


def test_every_forecaster_of_the_table_can_be_spelled_and_no_other() -> None:
    for name, kind in FORECASTERS.items():
        assert all(type(Forecast(forecaster=spelled).forecaster) is kind for spelled in (name, {"kind": name}))
    with pytest.raises(ValidationError, match="no forecaster named 'naiv'; did you mean 'naive'"):
        Forecast(forecaster="naiv")


@each
def test_decisions_are_whole_numbers_within_bounds_with_a_reason(scaler: Autoscaler) -> None:
    for decision in run(scaler):
        assert type(decision.desired) is int
        assert type(decision.wanted) is int
        assert decision.wanted >= 0
        assert decision.desired == scaler.bounded(decision.desired)
        assert decision.reason


@each
def test_same_seed_same_decisions(scaler: Autoscaler) -> None:
    assert run(scaler) == run(scaler)


@each
def test_two_pools_do_not_share_memory(scaler: Autoscaler) -> None:
    first, second = scaler.start(known_rate, 1), scaler.start(known_rate, 1)
    interleaved = [(first.decide(view), second.decide(view)) for view in views()]
    assert [a for a, _ in interleaved] == [b for _, b in interleaved] == run(scaler)


@each
def test_only_an_oracle_looks_at_the_future(scaler: Autoscaler) -> None:
    asked: list[float] = []

    def spied_rate(start_s: float, end_s: float) -> float:
        asked.append(end_s)
        return known_rate(start_s, end_s)

    controller = scaler.start(spied_rate, 1)
    for view in views(20):
        controller.decide(view)
    assert bool(asked) == scaler.is_oracle


@each
def test_idle_pool_without_replicas_gets_an_answer(scaler: Autoscaler) -> None:
    controller = scaler.start(lambda start_s, end_s: 0.0, 1)
    for i in range(3):
        view = PoolView(15.0 * i, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 120.0, 5.0, 4000.0)
        assert controller.decide(view).desired >= 0


@each
def test_memory_stays_bounded(scaler: Autoscaler) -> None:
    controller = scaler.start(known_rate, 1)
    sizes = []
    for i, view in enumerate(views(2400)):
        controller.decide(view)
        if i in (600, 2399):
            sizes.append(memory(controller))
    assert sizes[1] <= sizes[0] + 10  # ticks; four times the time adds nothing


def memory(thing: Any, depth: int = 5) -> int:
    """Entries in all containers that hang on `thing`."""
    if isinstance(thing, str | int | float | None) or depth == 0:
        return 0
    if isinstance(thing, dict):
        return len(thing) + sum(memory(value, depth - 1) for value in thing.values())
    if hasattr(thing, "__len__"):
        return len(thing)
    owner = getattr(thing, "__self__", None)
    return memory(vars(owner), depth - 1) if owner is not None else memory(getattr(thing, "__dict__", {}), depth - 1)


@each
def test_parameters_survive_pickling_and_their_own_dump(scaler: Autoscaler) -> None:
    assert pickle.loads(pickle.dumps(scaler)) == scaler
    assert type(scaler)(**scaler.model_dump()) == scaler


@each
def test_every_field_is_described(scaler: Autoscaler) -> None:
    assert all(field.description for field in type(scaler).model_fields.values())
