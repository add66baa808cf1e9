"""A plan's day: GPUs hour by hour for a fixed fleet, one that reacts and one that looks ahead, and their bills."""

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from planning.days import Day, Policy, replicas_of_day
from planning.plans.config import Plan
from planning.plans.demand import DAY_S, Traffic, rates
from planning.plans.fleets import Fleet

POLICIES: tuple[Policy, ...] = get_args(Policy)
HOUR_S = 3600.0


@dataclass(frozen=True)
class PolicyDay:
    """What one policy has and costs, on traffic that repeats; all pools together."""

    policy: str
    gpus: NDArray[np.float64]  # billed, in each step
    capacity_per_s: NDArray[np.float64]  # requests/s that what is ready serves at most
    gpu_hours_per_day: float
    dollars_per_day: float
    per_million: float  # dollars per million tokens, prompt and output
    utilization: float  # of what is paid for, mean
    short_s_per_day: float  # seconds a day with more demand than ready capacity
    tight_s_per_day: float  # seconds a day with less headroom than planned


@dataclass(frozen=True)
class PlannedDay:
    """The traffic's rate and what each policy makes of it."""

    edges_s: NDArray[np.float64]
    demand_per_s: NDArray[np.float64]
    cold_start_s: float
    policies: tuple[PolicyDay, ...]

    def hours(self) -> list[dict[str, Any]]:
        """Returns a row for each hour: mean and highest demand, and each policy's mean GPUs."""
        rows = []
        for start_s in np.arange(0.0, self.edges_s[-1], HOUR_S).tolist():
            inside = (self.edges_s[1:] > start_s) & (self.edges_s[:-1] < start_s + HOUR_S)  # steps need not end with the hour
            demand = self.demand_per_s[inside]
            row = {"hour": round(start_s / HOUR_S), "demand_per_s": demand.mean(), "peak_per_s": demand.max()}
            rows.append(row | {f"{day.policy}_gpus": day.gpus[inside].mean() for day in self.policies})
        return rows


def planned_day(plan: Plan, traffic: Traffic, fleet: Fleet) -> PlannedDay:
    """Returns the day of a fleet under each policy. The traffic repeats; a shorter or longer one is scaled to a day."""
    step_s = plan.interval_s
    edges_s = np.arange(0.0, traffic.duration_s + step_s / 2, step_s)
    edges_s = edges_s if len(edges_s) > 1 else np.array([0.0, traffic.duration_s])
    demand_per_s = rates(plan, edges_s) * traffic.lengths.served_share
    num_nodes = max(1.0, fleet.instance.num_gpus / fleet.hardware.gpus_per_node)  # each loads its own part
    cold_start_s = plan.lifecycle.cold_start_s(fleet.instance.weight_bytes / num_nodes)
    cold_start_steps = int(np.ceil(cold_start_s / step_s))
    days = tuple(_policy(traffic, fleet, policy, demand_per_s, cold_start_steps) for policy in POLICIES)
    return PlannedDay(edges_s, demand_per_s, cold_start_s, days)


def _policy(
    traffic: Traffic, fleet: Fleet, policy: Policy, demand_per_s: NDArray[np.float64], cold_start_steps: int
) -> PolicyDay:
    peak_per_s = traffic.peak.requests_per_s
    gpus, capacity = np.zeros(len(demand_per_s)), np.full(len(demand_per_s), np.inf)
    tight = np.zeros(len(demand_per_s), np.bool_)
    for pool, share in zip(fleet.pools, fleet.max_utilization, strict=True):
        per_instance = pool.capacity / pool.load * peak_per_s  # in requests/s
        most = pool.num_instances - pool.num_spare
        asked_per_s = np.minimum(demand_per_s, most * per_instance * share)  # no policy has more than the fleet
        day: Day = replicas_of_day(asked_per_s, per_instance, cold_start_steps, policy, share, 1)
        ready = np.full_like(day.ready, most) if policy == "fixed" else day.ready
        billed = (ready if policy == "fixed" else day.billed) + pool.num_spare
        gpus += billed * pool.gpus_per_instance
        full_at_per_s = (ready + pool.num_spare) * per_instance
        capacity = np.minimum(capacity, full_at_per_s)
        tight |= demand_per_s > full_at_per_s * share * (1 + 1e-9)
    gpu_hours = gpus.mean() * 24
    dollars = gpu_hours * fleet.hardware.price_per_gpu_hour
    tokens = traffic.mean_tokens_per_s * DAY_S
    full_gpus = fleet.num_gpus / fleet.capacity_per_s  # GPUs that one request/s takes at capacity
    share_of_day = DAY_S / len(demand_per_s)
    return PolicyDay(
        policy=policy,
        gpus=gpus,
        capacity_per_s=capacity,
        gpu_hours_per_day=float(gpu_hours),
        dollars_per_day=float(dollars),
        per_million=float(dollars / tokens * 1e6),
        utilization=float(traffic.mean_per_s * full_gpus / gpus.mean()),
        short_s_per_day=float(np.count_nonzero(demand_per_s > capacity * (1 + 1e-9)) * share_of_day),
        tight_s_per_day=float(np.count_nonzero(tight) * share_of_day),
    )
