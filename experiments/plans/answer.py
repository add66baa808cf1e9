"""The one place that decides what a plan's answer is: simulation where it was asked, the closed form where it was not."""

from dataclasses import dataclass

from experiments.plans.confidence import targets_of
from experiments.plans.config import Plan
from experiments.plans.demand import Traffic
from experiments.plans.fleets import Fleet
from experiments.plans.min_gpus import Candidate, search
from experiments.plans.progress import SILENT, Progress
from experiments.plans.sizes import at_size
from experiments.plans.verify import Verification, verified


@dataclass(frozen=True)
class Answer:
    """What to rent, and who says so."""

    fleet: Fleet | None  # None: nothing that was tried meets the targets
    closed_form: Fleet  # what the closed form alone would rent
    decided_by: str  # simulation, or closed form
    why: str = ""  # by simulation: what decided
    candidates: tuple[Candidate, ...] | None = None  # of a search, the cheapest answer first
    verification: Verification | None = None

    @property
    def is_as_planned(self) -> bool:
        """Whether the closed form would rent the same."""
        return self.fleet is not None and self.fleet.name == self.closed_form.name


def decided(plan: Plan, traffic: Traffic, closed_form: Fleet, progress: Progress = SILENT) -> Answer:
    """Runs the trials that the plan asks for and returns the answer.

    What a search finds is the answer. Without one, or where it finds none, a fleet that `verify` finds to be enough stays as it
    is, with its headroom; one that is not becomes the smallest that is; and where there is none either, there is no answer.

    Raises:
        ConfigError: the simulated engine does not know such instances, or the trials have nothing to judge by.
    """
    candidates = verification = None
    fleet, why, is_simulated = closed_form, "", False
    found: Fleet | None = None
    if plan.search == "min_gpus":
        candidates = tuple(search(plan, traffic, progress))
        is_simulated = True
        if candidates and (number := candidates[0].num_replicas) is not None:
            fleet = found = at_size(candidates[0].fleet, {"shared": number})
            why = candidates[0].tried[number].why
        else:
            why = candidates[0].remark if candidates else "no layout can run as a shared pool"
    if plan.verify:
        verification = verified(plan, traffic, fleet, progress)
        is_simulated = is_simulated or verification.is_enough.is_enough is not None
        found, why = found or _as_verified(verification), why if found else verification.is_enough.why
    progress.close()
    if not is_simulated:
        return Answer(closed_form, closed_form, "closed form", why, candidates, verification)
    if found is None:
        why += _never_served(plan, traffic)
    return Answer(found, closed_form, "simulation", why, candidates, verification)


def _as_verified(found: Verification) -> Fleet | None:
    if found.settled is None:
        return None
    return found.fleet if found.settled == found.fleet.working else at_size(found.fleet, found.settled)


def _never_served(plan: Plan, traffic: Traffic) -> str:
    """Says so where the requests that no replica can hold are reason enough."""
    lengths = traffic.lengths
    if not any(target.is_missed_by(lengths.served_share) for target in targets_of(plan.slo)):
        return ""
    return (
        f"; {100 * (1 - lengths.served_share):.2f} % of the requests are longer than the {lengths.longest:,} tokens that a "
        "replica holds, and are never served"
    )
