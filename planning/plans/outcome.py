"""A plan worked out: the traffic, the fleets, the answer, its day, its money, and what could change it."""

from dataclasses import dataclass

from planning.plans.answer import Answer, decided
from planning.plans.config import Plan
from planning.plans.day import PlannedDay, planned_day
from planning.plans.demand import Traffic, measured
from planning.plans.fleets import Fleet, Option, base_case, option, why_not
from planning.plans.money import BreakEven, break_even
from planning.plans.progress import SILENT, Progress
from planning.plans.sensitivity import Variant, variants
from planning.plans.ttft import TtftCheck, check
from sim.errors import ConfigError


@dataclass(frozen=True)
class Bill:
    """What follows from a fleet."""

    ttft: TtftCheck | None
    day: PlannedDay
    money: tuple[BreakEven, ...]
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class Outcome:
    """Everything that the page shows."""

    plan: Plan
    traffic: Traffic
    options: tuple[Option, ...]  # by closed form
    answer: Answer
    bill: Bill | None  # of the answer; None where there is no answer

    @property
    def fleet(self) -> Fleet:
        """What the page is about: the answer, or what the closed form says where there is none."""
        return self.answer.fleet or self.answer.closed_form

    @property
    def alternatives(self) -> list[Fleet]:
        """The answer first, then what the closed form would rent, then all others that could be built, by closed form."""
        others = [fleet for one in self.options for fleet in (one.separate, one.shared) if fleet is not None]
        found: dict[tuple[str, str, float], Fleet] = {}
        for fleet in (self.fleet, self.answer.closed_form, *others):
            found.setdefault((fleet.name, fleet.arrangement, fleet.dollars_per_hour), fleet)
        return list(found.values())

    @property
    def ttft(self) -> TtftCheck | None:
        """Of the answer's prefill pool, if it has one of its own."""
        return None if self.bill is None else self.bill.ttft

    @property
    def day(self) -> PlannedDay:
        """Of the answer; there must be one."""
        assert self.bill is not None
        return self.bill.day

    @property
    def money(self) -> tuple[BreakEven, ...]:
        """Of the answer, against each API."""
        return () if self.bill is None else self.bill.money

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Of the answer."""
        return () if self.bill is None else self.bill.variants


def worked_out(plan: Plan, progress: Progress = SILENT) -> Outcome:
    """Returns a plan: in closed form, then by simulation where it asks for that, then what follows for day and money.

    Raises:
        ConfigError: the model runs on none of the GPUs in the way asked for, nothing arrives, or it cannot be simulated.
        TraceError: the traffic's file is wrong.
    """
    traffic = measured(plan)
    case = base_case(plan, traffic)
    options = tuple(option(plan, hardware, case) for hardware in plan.hardware)
    fleets = [fleet for one in options if (fleet := one.fleet(plan.pools)) is not None]
    if not fleets:
        raise ConfigError(why_not(plan, options, case))
    closed_form = min(fleets, key=lambda one: one.dollars_per_hour)
    answer = decided(plan, traffic, closed_form, progress)
    return Outcome(plan, traffic, options, answer, None if answer.fleet is None else billed(plan, traffic, answer.fleet))


def billed(plan: Plan, traffic: Traffic, fleet: Fleet) -> Bill:
    """Returns a fleet's TTFT, day, break-even and sensitivities."""
    day = planned_day(plan, traffic, fleet)
    return Bill(
        check(plan, traffic, fleet),
        day,
        tuple(break_even(plan, traffic, fleet, day)),
        tuple(variants(plan, traffic, fleet)),
    )
