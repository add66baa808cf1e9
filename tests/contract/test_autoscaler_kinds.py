"""Every autoscaler and forecaster of the tables keeps the contract."""

from typing import Any

import pytest
from pydantic import ValidationError

from autoscalers import FORECASTERS, KINDS, Deciding, Forecast
from experiments.contracts import AutoscalerContract

PARAMETERS: list[tuple[str, dict[str, Any]]] = [
    ("fixed", {"replicas": 3}),
    ("queue_target", {}),
    ("queue_target", {"min_replicas": 0, "warm_buffer": 0, "replica_token_capacity": 500.0}),
    *(("forecast", {"forecaster": name, "season_s": 900.0}) for name in FORECASTERS),
    ("forecast", {"forecaster": "naive", "clear_backlog_s": 60.0, "max_replicas": None}),
]


class TestEveryAutoscaler(AutoscalerContract):
    @pytest.fixture(autouse=True, params=PARAMETERS, ids=[f"{kind}-{i}" for i, (kind, _) in enumerate(PARAMETERS)])
    def _each(self, request: pytest.FixtureRequest) -> None:
        kind, fields = request.param
        self.scaler = KINDS[kind](**fields)


def test_every_kind_is_tried_here() -> None:
    assert {kind for kind, _ in PARAMETERS} == {kind for kind, found in KINDS.items() if issubclass(found, Deciding)}


def test_every_forecaster_of_the_table_can_be_spelled_and_no_other() -> None:
    for name, kind in FORECASTERS.items():
        assert all(type(Forecast(forecaster=spelled).forecaster) is kind for spelled in (name, {"kind": name}))
    with pytest.raises(ValidationError, match="no forecaster named 'naiv'; did you mean 'naive'"):
        Forecast(forecaster="naiv")
