"""What would change the answer: slower instances, a prompt cache, long answers instead of mean ones, a lost replica."""

from dataclasses import dataclass, replace

import numpy as np

from experiments.pages.figures import percent
from planning.layouts import layout
from planning.plans.config import Plan
from planning.plans.demand import Traffic
from planning.plans.fleets import Case, Fleet, base_case, option
from planning.plans.sizes import in_proportion


@dataclass(frozen=True)
class Variant:
    """The fleet of one case, with the layout of the plan's own."""

    change: str
    fleet: Fleet | None  # None where it cannot be built

    def row(self, base: Fleet) -> dict[str, object]:
        """Returns it as a row of a table, with its difference from the plan."""
        if self.fleet is None:
            return {"change": self.change, "instances": "cannot be built", "num_gpus": None, "difference": None}
        counts = " + ".join(str(pool.num_instances) for pool in self.fleet.pools)
        difference = self.fleet.num_gpus - base.num_gpus
        return {"change": self.change, "instances": counts, "num_gpus": self.fleet.num_gpus, "difference": difference}


def variants(plan: Plan, traffic: Traffic, fleet: Fleet) -> list[Variant]:
    """Returns the plan's fleet under each change, one at a time."""
    base = base_case(plan, traffic)
    cases = {
        "capacity 10 % lower": replace(base, capacity_share=0.9),
        "capacity 20 % lower": replace(base, capacity_share=0.8),
    }
    for share in (0.25, 0.5, 0.75):
        if share > base.demand.cached_share:
            name = f"a prefix cache holds {percent(share, 0)} of each prompt"
            cases[name] = replace(base, demand=replace(base.demand, cached_share=share))
    if base.demand.has_decodes and fleet.arrangement == "separate":  # a shared pool's balance is of means alone
        cases |= _by_memory(traffic, base)
    return [Variant(name, _refitted(plan, fleet, case)) for name, case in cases.items()]


def _by_memory(traffic: Traffic, base: Case) -> dict[str, Case]:
    """Memory set aside by percentiles of the answer, in full, instead of half of the mean; and what a batch really holds."""
    cases = {}
    percentiles = {rank: float(np.percentile(traffic.outputs, rank)) for rank in (50, 90, 99)}
    if len(set(percentiles.values())) == 1:  # all answers are alike
        percentiles = {99: percentiles[99]}
    for rank, output in percentiles.items():
        held = base.demand.prompt_tokens + output
        name = f"memory for whole answers of p{rank}, {output:,.0f} tokens"
        cases[name] = replace(base, work=replace(base.work, held_tokens=held))
    context = traffic.biased_context_tokens
    work = replace(base.work, context_tokens=context, held_tokens=context)
    cases[f"long answers stay longer: a batch of {context:,.0f} tokens each"] = replace(base, work=work)
    return cases


def _refitted(plan: Plan, fleet: Fleet, case: Case) -> Fleet | None:
    bare = fleet.instance
    if layout(bare, case.work).problem:
        return None
    found = option(plan, fleet.hardware, case, bare, [fleet.arrangement]).fleet(fleet.arrangement)
    return None if found is None else in_proportion(found, fleet)
