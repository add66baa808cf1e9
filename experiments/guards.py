"""Where a simulation calls code of the user's own: what goes wrong there is said to be its mistake, with the user's line."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from autoscalers import Autoscaler, Controller
from experiments.settings.outside import is_outside, own_code
from sim.errors import TraceError
from sim.records import ARRIVAL
from sim.views import PoolView
from traces.traffic import Traffic, TrafficStream


def started(autoscaler: Autoscaler, known_rate: Callable[[float, float], float], seed: int) -> Controller:
    """Returns the decider of one pool for one run."""
    with own_code(type(autoscaler)):
        return autoscaler.start(known_rate, seed)


class Decider:
    """A controller, with its autoscaler's mistakes told as that."""

    def __init__(self, autoscaler: Autoscaler, controller: Controller) -> None:
        self._kind, self._controller = type(autoscaler), controller

    def decide(self, view: PoolView) -> Any:
        """Returns the decision for this tick."""
        with own_code(self._kind):
            return self._controller.decide(view)


def streamed(traffic: Traffic, seed: int, chunk_rows: int) -> TrafficStream:
    """Returns one pass over the arrivals; those of the user's own traffic are looked through on their way."""
    if not is_outside(type(traffic)):
        return traffic.stream(seed, chunk_rows)
    with own_code(type(traffic)):
        stream = traffic.stream(seed, chunk_rows)
        return replace(stream, arrivals=_checked(stream.arrivals, type(traffic), len(traffic.class_names)))


def _checked(chunks: Iterator[Any], kind: type, num_classes: int) -> Iterator[Any]:
    last_s = 0.0
    while True:
        with own_code(kind):
            rows = next(chunks, None)
        if rows is None:
            return
        wrong = _wrong_with(rows, last_s, num_classes)
        if wrong:
            raise TraceError(f"{kind.__module__}:{kind.__qualname__}: its arrivals {wrong}")
        last_s = float(rows["arrived_at_s"][-1])
        yield rows


def _wrong_with(rows: Any, last_s: float, num_classes: int) -> str:
    """What the simulator cannot take, in words; empty when it can."""
    if getattr(rows, "dtype", None) != ARRIVAL:
        return f"must be rows of sim.records.ARRIVAL, given {type(rows).__name__} of {getattr(rows, 'dtype', 'no dtype')}"
    at_s = rows["arrived_at_s"]
    if not np.isfinite(at_s).all() or (np.diff(at_s, prepend=last_s) < 0).any():
        return "must be sorted, finite instants from 0 s up (arrived_at_s)"
    for name in ("num_prompt_tokens", "num_output_tokens"):
        if rows[name].min() < 1:
            return f"must have at least one token (a {name} is {rows[name].min()})"
    if not 0 <= rows["class_id"].min() <= rows["class_id"].max() < num_classes:
        return f"must have a class_id from 0 to {num_classes - 1}, as class_names has names (one is {rows['class_id'].max()})"
    return ""
