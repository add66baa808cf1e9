"""Where a simulation calls code of the user's own: what goes wrong there is said to be its mistake, with the user's line."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from autoscalers import Autoscaler, Controller
from sim.outside import is_outside, own_code
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
    """Returns one pass over the arrivals, with what the user's own traffic raises on the way told as its mistake."""
    if not is_outside(type(traffic)):
        return traffic.stream(seed, chunk_rows)
    with own_code(type(traffic)):
        stream = traffic.stream(seed, chunk_rows)
        return replace(stream, arrivals=_guarded(stream.arrivals, type(traffic)))


def _guarded(chunks: Iterator[Any], kind: type) -> Iterator[Any]:
    while True:
        with own_code(kind):
            rows = next(chunks, None)
        if rows is None:
            return
        yield rows
