"""Where a simulation calls code of the user's own: what goes wrong there is said to be its mistake, with the user's line."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from autoscalers import Autoscaler, Deciding, JointAutoscaler, KnownRate, Limiter, Limits
from sim.outside import is_outside, own_code
from sim.pool import Decides
from sim.scaling import Alone
from sim.views import PoolView
from traces.traffic import Traffic, TrafficStream


class Decider:
    """An autoscaler at work, with its mistakes told as that."""

    def __init__(self, autoscaler: Deciding, decides: Decides) -> None:
        self._kind, self._decides = type(autoscaler), decides

    def decide(self, views: Mapping[str, PoolView]) -> Mapping[str, Any]:
        """Returns the decisions for this tick."""
        with own_code(self._kind):
            return self._decides.decide(views)


def started(
    autoscaler: Deciding, limits: Mapping[str, Limits], known_rates: Mapping[str, KnownRate], seed: int
) -> tuple[Decider, Mapping[str, Limiter]]:
    """Returns the autoscaler at work for one run, and what holds each of its pools, by name, to its limits.

    Args:
        autoscaler: a joint one, or one pool's own.
        limits: of each pool that it decides for.
        known_rates: the traffic that each could serve.
        seed: the run's.
    """
    with own_code(type(autoscaler)):
        if isinstance(autoscaler, JointAutoscaler):
            joint = autoscaler.start(limits, known_rates, seed)
            return Decider(autoscaler, joint), joint.limiters
        assert isinstance(autoscaler, Autoscaler)
        [(name, known_rate)] = known_rates.items()
        controller = autoscaler.start(known_rate, seed)
        return Decider(autoscaler, Alone(controller)), {name: controller}


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
