"""The page of a plan, in the order in which a reader asks: the answer, why, the day, the money, and how sure it is."""

from collections.abc import Sequence

from experiments.pages.figures import number, percent, several
from experiments.pages.page import Page, Section
from planning.plans import report_basis, report_fleets, report_money
from planning.plans.fleets import Fleet
from planning.plans.outcome import Outcome


def page(outcome: Outcome, simulated: Sequence[Section] = (), said: Sequence[str] = ()) -> Page:
    """Returns the whole page.

    Args:
        outcome: the plan.
        simulated: what trials have to say, right after the answer.
        said: the same in a sentence each, for the head of the page.
    """
    sections = [
        report_fleets.fleets(outcome),
        *simulated,
        report_basis.traffic(outcome),
        report_fleets.pools(outcome),
        report_fleets.layouts(outcome),
    ]
    if outcome.bill is not None:
        sections += [report_money.day(outcome), report_money.hours(outcome)]
        if outcome.money:
            sections.append(report_money.money(outcome))
        sections.append(report_money.sensitivity(outcome))
    if outcome.plan.published is not None:
        sections.append(report_money.published(outcome))
    sections.append(report_basis.assumptions(outcome))
    lead = [headline(outcome), *_bill(outcome), *said, *_unchecked(outcome), *report_basis.step_times_briefly(outcome)]
    return Page(f"Plan: {outcome.plan.name}", lead, sections)


def headline(outcome: Outcome) -> str:
    """Returns the answer in a sentence."""
    answer, closed = outcome.answer, outcome.answer.closed_form
    if answer.fleet is None:
        return (
            f"Nothing that was tried meets the targets ({answer.why}), so there is no fleet to name and no bill. The closed "
            f"form said {several(closed.num_gpus, 'GPU')}: {closed.name}."
        )
    fleet, demand = answer.fleet, outcome.traffic.peak
    verb = "serves" if fleet.num_gpus == 1 else "serve"
    opening = (
        f"{fleet.num_gpus:,} x {fleet.hardware.gpu.name} {verb} {outcome.plan.model.name} at the peak of "
        f"{number(demand.requests_per_s)} requests/s: {_kinds(outcome, fleet)}"
    )
    if fleet.closed_form is None:
        agrees = ", which simulation finds enough" if answer.decided_by == "simulation" else ""
        return f"{opening}, at most {percent(outcome.plan.max_utilization, 0)} full{agrees}."
    if answer.is_as_planned:
        return f"{opening}, the fewest that meet the targets by simulation, as the closed form said."
    fewest = "the fewest that meet the targets by simulation"
    how = fewest if answer.is_searched else "as many as simulation needs to meet the targets"
    return f"{opening}, {how}; the closed form said {several(closed.num_gpus, 'GPU')}: {closed.name}."


def _kinds(outcome: Outcome, fleet: Fleet) -> str:
    """The instances in words: 19 prefill and 9 decode instances of TP4."""
    names = {fleet.layout_of(pool.role) for pool in fleet.pools}
    kinds = " and ".join(
        f"{pool.num_instances} {pool.role}" + (f" ({fleet.layout_of(pool.role)})" if len(names) > 1 else "")
        for pool in fleet.pools
    )
    instances = "instance" if sum(pool.num_instances for pool in fleet.pools) == 1 else "instances"
    of = f" of {names.pop()}" if len(names) == 1 else ""
    spare = f", {outcome.plan.num_spare} of each pool to spare" if outcome.plan.num_spare else ""
    return f"{kinds} {instances}{of}{spare}"


def _bill(outcome: Outcome) -> list[str]:
    if outcome.bill is None:
        return []
    days = {one.policy: one for one in outcome.day.policies}
    return [
        f"Kept at that size the fleet costs ${days['fixed'].dollars_per_day:,.0f} a day, ${days['fixed'].per_million:.3f} per "
        f"million tokens; scaled one cold start ahead of the load ${days['forecast'].dollars_per_day:,.0f} and "
        f"${days['forecast'].per_million:.3f}."
    ]


def _unchecked(outcome: Outcome) -> list[str]:
    if outcome.answer.decided_by == "simulation" or not outcome.fleet.instance.is_simulated:
        return []
    return ["By closed form, and not simulated: `verify: true` does that."]
