"""The page of a plan, in the order in which a reader asks: the answer, why, the day, the money, and how sure it is."""

from collections.abc import Sequence

from experiments.plans import report_fleets, report_money
from experiments.plans.outcome import Outcome
from experiments.plans.page import Page, Section


def page(outcome: Outcome, simulated: Sequence[Section] = (), said: Sequence[str] = ()) -> Page:
    """Returns the whole page.

    Args:
        outcome: the plan in closed form.
        simulated: what trials have to say, right after the answer.
        said: the same in a sentence each, for the head of the page.
    """
    sections = [
        report_fleets.fleets(outcome),
        *simulated,
        report_fleets.pools(outcome),
        report_fleets.layouts(outcome),
        report_money.day(outcome),
        report_money.hours(outcome),
    ]
    if outcome.money:
        sections.append(report_money.money(outcome))
    sections.append(report_money.sensitivity(outcome))
    if outcome.plan.published is not None:
        sections.append(report_money.published(outcome))
    sections.append(_assumptions(outcome))
    return Page(f"Plan: {outcome.plan.name}", [*_lead(outcome), *said], sections)


def _lead(outcome: Outcome) -> list[str]:
    fleet, traffic = outcome.fleet, outcome.traffic
    days = {one.policy: one for one in outcome.day.policies}
    names = {fleet.layout_of(pool.role) for pool in fleet.pools}
    kinds = " and ".join(
        f"{pool.num_instances} {pool.role}" + (f" ({fleet.layout_of(pool.role)})" if len(names) > 1 else "")
        for pool in fleet.pools
    )
    of = f" of {names.pop()}" if len(names) == 1 else ""
    spare = f", {outcome.plan.num_spare} of each pool to spare" if outcome.plan.num_spare else ""
    return [
        f"{fleet.num_gpus:,} x {fleet.hardware.gpu.name} serve {outcome.plan.model.name} at the peak of "
        f"{traffic.peak.requests_per_s:,.4g} requests/s: {kinds} instances{of}{spare}, at most "
        f"{outcome.plan.max_utilization * 100:.0f} % full.",
        f"Kept at that size the fleet costs ${days['fixed'].dollars_per_day:,.0f} a day, ${days['fixed'].per_million:.3f} per "
        f"million tokens; scaled one cold start ahead of the load ${days['forecast'].dollars_per_day:,.0f} and "
        f"${days['forecast'].per_million:.3f}.",
    ]


def _assumptions(outcome: Outcome) -> Section:
    plan, traffic = outcome.plan, outcome.traffic
    mfu = (
        f"prefill at {plan.prefill_mfu * 100:.0f} % of the peak arithmetic, links included"
        if plan.prefill_mfu
        else (f"prefill at {plan.replicas.flops_efficiency * 100:.0f} % of the peak arithmetic, links on top")
    )
    reached = outcome.fleet.prefill.mfu(traffic.peak.prompt_tokens)
    given = plan.replicas.model_dump(exclude_defaults=True)
    engine = ", ".join(f"{name} {value}" for name, value in given.items()) or "all defaults"
    return Section(
        "What this stands on",
        [
            f"Prompts of {traffic.peak.prompt_tokens:,.0f} and answers of {traffic.peak.output_tokens:,.0f} tokens on average, "
            f"{plan.cached_share * 100:.0f} % of a prompt cached; {mfu} (reached: {reached:.2f}); decodes at the roofline with "
            f"{plan.replicas.bandwidth_efficiency * 100:.0f} % of the memory bandwidth. Engine: {engine}.",
            "Roofline bounds with stated efficiencies, means for lengths, no queueing but where it says so. Measure kernels, "
            "lengths and overheads before the order is placed.",
        ],
    )  # fmt: skip
