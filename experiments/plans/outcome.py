"""A plan worked out: the traffic, the fleets, the day, the money, what could change it, and what simulation says."""

from dataclasses import dataclass

from experiments.plans.config import Plan
from experiments.plans.day import PlannedDay, planned_day
from experiments.plans.demand import Traffic, measured
from experiments.plans.fleets import Fleet, Option, base_case, option
from experiments.plans.money import BreakEven, break_even
from experiments.plans.sensitivity import Variant, variants
from experiments.plans.ttft import TtftCheck, check
from sim.errors import ConfigError


@dataclass(frozen=True)
class Outcome:
    """Everything that the page shows, by closed form."""

    plan: Plan
    traffic: Traffic
    options: tuple[Option, ...]
    fleet: Fleet  # the plan
    ttft: TtftCheck | None
    day: PlannedDay
    money: tuple[BreakEven, ...]
    variants: tuple[Variant, ...]

    @property
    def alternatives(self) -> list[Fleet]:
        """The chosen fleet first, then all others that could be built."""
        others = [fleet for one in self.options for fleet in (one.separate, one.shared) if fleet is not None]
        return [self.fleet, *(fleet for fleet in others if fleet is not self.fleet)]


def worked_out(plan: Plan) -> Outcome:
    """Returns a plan in closed form.

    Raises:
        ConfigError: the model runs on none of the GPUs in the way asked for, or nothing arrives.
        TraceError: the traffic's file is wrong.
    """
    traffic = measured(plan)
    case = base_case(plan, traffic)
    options = tuple(option(plan, hardware, case) for hardware in plan.hardware)
    fleets = [fleet for one in options if (fleet := one.fleet(plan.pools)) is not None]
    if not fleets:
        raise ConfigError(_why_not(plan, options))
    fleet = min(fleets, key=lambda one: one.dollars_per_hour)
    day = planned_day(plan, traffic, fleet)
    return Outcome(
        plan,
        traffic,
        options,
        fleet,
        check(plan, traffic, fleet),
        day,
        tuple(break_even(plan, traffic, fleet, day)),
        tuple(variants(plan, traffic, fleet)),
    )


def _why_not(plan: Plan, options: tuple[Option, ...]) -> str:
    lines = [f"no fleet with pools: {plan.pools} can be built of this hardware:"]
    for one in options:
        problems = [f"{made.name}: {made.problem or 'a request alone is slower than the TPOT target'}" for made in one.layouts]
        lines += [
            f"  {one.hardware.gpu.name}: {problem}" for problem in problems or ["none of tensor_parallel_sizes fits its node"]
        ]
    return "\n".join(lines)
