"""Autoscalers: how many replicas a pool should have.

A policy answers one question at each tick: how many replicas, ready or starting, does this pool need? `Autoscaler`
holds the limits around every policy (bounds, tolerance, stabilisation, cool-downs, steps), `Controller` applies them.
A `JointAutoscaler` answers for several pools at once. A new policy is one file with one class, and one line here.
"""

from autoscalers.autoscaler import Autoscaler, Deciding, JointAutoscaler, KnownRate
from autoscalers.controller import Controller, Decision, JointController, Limiter
from autoscalers.fixed import Fixed
from autoscalers.forecast import FORECASTERS, Forecast
from autoscalers.joint import Joint
from autoscalers.limits import JointPolicy, Limits, Policy, Wanted
from autoscalers.queue_target import QueueTarget

KINDS: dict[str, type[Limits]] = {
    "fixed": Fixed,
    "queue_target": QueueTarget,
    "forecast": Forecast,
    "joint": Joint,
}

__all__ = [
    "FORECASTERS",
    "KINDS",
    "Autoscaler",
    "Controller",
    "Deciding",
    "Decision",
    "Fixed",
    "Forecast",
    "Joint",
    "JointAutoscaler",
    "JointController",
    "JointPolicy",
    "KnownRate",
    "Limiter",
    "Limits",
    "Policy",
    "QueueTarget",
    "Wanted",
]
