"""The one place that decides what a plan's answer is: simulation where it was asked, the closed form where it was not."""

from dataclasses import dataclass

from experiments.pages.figures import percent
from planning.plans.confidence import targets_of
from planning.plans.config import Plan
from planning.plans.demand import Traffic
from planning.plans.fleets import Fleet
from planning.plans.min_gpus import Candidate, search
from planning.plans.progress import SILENT, Progress
from planning.plans.sizes import at_size
from planning.plans.verify import Verification, verified


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

    @property
    def is_searched(self) -> bool:
        """Whether the fleet is a search's."""
        return self.candidates is not None and self.fleet is not None and self.fleet.arrangement == "shared"


def decided(plan: Plan, traffic: Traffic, closed_form: Fleet, progress: Progress = SILENT) -> Answer:
    """Runs the trials that the plan asks for and returns the answer.

    A search's answer is the cheapest that it finds. A fleet that is checked stays as it is where it is enough, with its
    headroom; where it is not it becomes the smallest that is. A search has shared pools only, so that a closed form with
    separate ones is checked beside it, and the cheaper is the answer. Where nothing meets the targets there is none.

    Raises:
        ConfigError: the simulated engine does not know such instances, or the trials have nothing to judge by.
    """
    candidates = _searched(plan, traffic, progress)
    best = candidates[0] if candidates else None
    found = None if best is None or best.num_replicas is None else at_size(best.fleet, {"shared": best.num_replicas})
    is_beside = candidates is not None and closed_form.arrangement == "separate" and closed_form.instance.is_simulated
    verification = None
    if plan.verify or is_beside:
        verification = verified(plan, traffic, closed_form if is_beside or found is None else found, progress)
    progress.close()
    checked = None if verification is None else verification.enough
    fleet = min((one for one in (found, checked) if one is not None), key=lambda one: one.dollars_per_hour, default=None)
    if candidates is None and (verification is None or verification.is_enough.is_enough is None):
        return Answer(closed_form, closed_form, "closed form", "", candidates, verification)
    if fleet is None:
        return Answer(None, closed_form, "simulation", _why_none(plan, traffic, best, verification), candidates, verification)
    why = best.why if best is not None and fleet is found else verification.is_enough.why if verification else ""
    return Answer(fleet, closed_form, "simulation", why, candidates, verification)


def _searched(plan: Plan, traffic: Traffic, progress: Progress) -> tuple[Candidate, ...] | None:
    return tuple(search(plan, traffic, progress)) if plan.search == "min_gpus" else None


def _why_none(plan: Plan, traffic: Traffic, best: Candidate | None, verification: Verification | None) -> str:
    """What stands in the way; requests that no replica can hold may be reason enough."""
    if verification is not None:
        why = verification.is_enough.why
    else:
        why = "no layout can run as a shared pool" if best is None else best.why
    lengths = traffic.lengths
    if any(target.is_missed_by(lengths.served_share) for target in targets_of(plan.slo)):
        why += (
            f"; {percent(1 - lengths.served_share, 2)} of the requests are longer than the {lengths.longest:,} tokens that a "
            "replica holds, and are never served"
        )
    return why
