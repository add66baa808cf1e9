"""Autoscalers: how many replicas a pool should have.

A policy answers one question at each tick: how many replicas, ready or starting, does this pool need? `Autoscaler`
holds the limits around every policy (bounds, tolerance, stabilisation, cool-downs, steps), `Controller` applies them.
A new policy is one file with one class, and one line here.
"""

from autoscalers.autoscaler import Autoscaler, KnownRate
from autoscalers.controller import Controller, Decision
from autoscalers.fixed import Fixed
from autoscalers.forecast import FORECASTERS, Forecast
from autoscalers.limits import Policy, Wanted
from autoscalers.queue_target import QueueTarget

KINDS: dict[str, type[Autoscaler]] = {
    "fixed": Fixed,
    "queue_target": QueueTarget,
    "forecast": Forecast,
}

__all__ = [
    "FORECASTERS",
    "KINDS",
    "Autoscaler",
    "Controller",
    "Decision",
    "Fixed",
    "Forecast",
    "KnownRate",
    "Policy",
    "QueueTarget",
    "Wanted",
]
