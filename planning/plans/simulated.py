"""What the trials have to say, as sections of the page and as tables."""

import math
from dataclasses import dataclass, field
from typing import Any

from experiments.pages.figures import number, percent, several, share
from experiments.pages.page import Section, Table
from planning.plans.confidence import targets_of
from planning.plans.min_gpus import Candidate
from planning.plans.outcome import Outcome
from planning.plans.verify import Row, Verification

Rows = list[dict[str, Any]]


@dataclass
class Simulated:
    """What trials came to: for the page, for Parquet, for JSON."""

    said: list[str] = field(default_factory=list)  # a sentence each
    sections: list[Section] = field(default_factory=list)
    tables: dict[str, Rows] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


def simulated(outcome: Outcome) -> Simulated:
    """Returns what was found by the trials that decided the answer."""
    made, answer = Simulated(), outcome.answer
    if answer.candidates is not None:
        candidates = list(answer.candidates)
        made.said.append(f"Searched by simulation: {_answer(candidates)}")
        made.sections.append(_search_section(outcome, candidates))
        made.tables["search"] = _search_rows(candidates)
        made.data["min_gpus"] = [_search_data(one) for one in candidates]
    if answer.verification is not None:
        found = answer.verification
        made.said.append(f"Checked by simulation: {_verdict(found)}")
        made.sections.append(_verify_section(outcome, found))
        made.tables["verification"] = [row._asdict() | {"gap": row.gap, "verdict": _said(row)} for row in found.rows]
        made.data["verified"] = _verified_data(found)
    return made


def _verified_data(found: Verification) -> dict[str, Any]:
    verdict = found.is_enough
    checked = {"checked": found.fleet.working, "is_enough": verdict.is_enough, "why": verdict.why}
    return checked | {"needed": found.needed, "settled": found.settled}


def _traffic_line(outcome: Outcome) -> str:
    trials = outcome.plan.trials
    seconds = trials.duration_s
    is_whole = seconds is None or outcome.plan.traffic.limit is not None or seconds >= outcome.traffic.duration_s
    span = "all traffic" if is_whole else f"{seconds:,.0f} s around the peak"
    seeds = ", ".join(map(str, trials.seeds))
    asked = " and ".join(map(str, targets_of(outcome.plan.slo))) or "no targets"
    return (
        f"{span[0].upper()}{span[1:]}, seeds {seeds}; whatever is tried sees the same requests. Targets: {asked}, each on "
        f"every seed and on average with {trials.confidence * 100:g} % confidence; a request that is not served in time "
        "misses them."
    )


def _search_section(outcome: Outcome, candidates: list[Candidate]) -> Section:
    head = ("layout", "bound", "closed form", "simulated", "GPUs", "$/hour", "gap", "tried", "decided by")
    rows = []
    for one in candidates:
        is_met = one.num_replicas is not None
        last = one.tried[one.num_replicas].why if one.num_replicas is not None else one.remark
        gap = percent(one.num_replicas / one.planned - 1, 0, sign="+") if one.num_replicas is not None else "-"
        rows.append((
            f"{one.fleet.layout.name} {one.fleet.hardware.gpu.name}", str(one.least), str(one.planned),
            str(one.num_replicas) if is_met else "-", str(one.num_gpus) if is_met else "-",
            f"${one.dollars_per_hour:,.2f}" if is_met else "-", gap, ", ".join(map(str, sorted(one.tried))) or "nothing", last,
        ))  # fmt: skip
    lines = [_answer(candidates), _traffic_line(outcome)]
    notes = [
        "bound: the mean rate if every step did the mean step's work, at all of its capacity; closed form: the peak at "
        f"{percent(outcome.plan.max_utilization, 0)} of it. Simulated as shared pools, of replicas that are all ready.",
        *_spares(outcome, "bound, closed form, simulated and tried; GPUs and $/hour include them"),
        *(f"{one.fleet.layout.name}: {one.remark}." for one in candidates if one.remark and one.num_replicas is not None),
    ]
    table = Table(head, rows, 0 if outcome.answer.is_searched else None)
    return Section("The fewest shared replicas, by simulation", lines, [table], notes=notes)


def _spares(outcome: Outcome, what: str) -> list[str]:
    number = outcome.plan.num_spare
    text = f"The {number} to spare (num_spare) of each pool take no part in simulations and are left out of {what}."
    return [text] if number else []


def _answer(candidates: list[Candidate]) -> str:
    if not candidates:
        return "no layout can run."
    best = candidates[0]
    if best.num_replicas is None:
        return f"no number of replicas that was tried is enough: {best.remark}."
    below = best.tried.get(best.num_replicas - 1)
    less = best.num_replicas - 1
    why = f"; {less} {'is' if less == 1 else 'are'} not enough ({below.why})" if below else ""
    which = "right" if best.num_replicas == best.planned else ("too few" if best.num_replicas > best.planned else "too many")
    where = f"{best.fleet.layout.name} on {best.fleet.hardware.gpu.name}"
    spare = f" and {best.num_spare} to spare" if best.num_spare else ""
    said = f"{best.planned}{', spares left out' if best.num_spare else ''}"
    replicas, gpus = several(best.num_replicas, "replica"), several(best.num_gpus or 0, "GPU")
    return f"{replicas} of {where}{spare}, {gpus}{why}. The closed form said {said}: {which}."


def _search_rows(candidates: list[Candidate]) -> Rows:
    return [
        {
            "gpu": one.fleet.hardware.gpu.name,
            "layout": one.fleet.layout.name,
            "num_replicas": number,
            "num_gpus": number * one.fleet.instance.num_gpus,
            "is_enough": verdict.is_enough,
            "why": verdict.why,
            "num_seeds": verdict.num_seeds,
        }
        for one in candidates
        for number, verdict in sorted(one.tried.items())
    ]


def _search_data(one: Candidate) -> dict[str, Any]:
    return {
        "gpu": one.fleet.hardware.gpu.name,
        "layout": one.fleet.layout.name,
        "bound": one.least,
        "closed_form": one.planned,
        "num_replicas": one.num_replicas,
        "num_spare": one.num_spare,
        "num_gpus": one.num_gpus,
        "remark": one.remark,
    }


def _verify_section(outcome: Outcome, found: Verification) -> Section:
    head = ("quantity", "closed form", "simulated", "+/-", "gap", "")
    rows = [
        (one.quantity, *map(number, (one.closed_form, one.simulated, one.half_width)), percent(one.gap, sign="+"), _said(one))
        for one in found.rows
    ]
    shares = [f"{target}: {_shares(given)}" for target, given in found.shares.items()]
    traffic = outcome.traffic
    notes = [
        "TPOT is held against the mean time of a token, which all requests share: a request that meets more prompts than the "
        "mean is slower. Instances: the fewest with which the targets hold, one pool at a time, the other as above.",
        f"The closed form counts {traffic.peak.context_tokens:,.0f} tokens of context for each request of a batch; as long "
        f"answers stay longer, a batch of this traffic holds {traffic.biased_context_tokens:,.0f} each.",
        *_spares(outcome, "this table"),
    ]
    if not traffic.peak.has_decodes:
        notes = ["Answers of one token have no TPOT.", *notes[2:]]
    if found.outside_share:
        notes.append(f"{percent(found.outside_share)} of the steps are larger than any that the calibration was fitted on.")
    return Section(
        "Checked by simulation",
        [
            f"Simulated, {_verdict(found)}",
            _traffic_line(outcome),
            f"The table is of {_named(found.settled or found.fleet.working)}.",
            f"{found.num_requests:,} requests a seed, {found.num_refused:,} of all refused as no instance can hold them, "
            f"{found.num_preemptions:,} preemptions." + (f" {'; '.join(shares)}." if shares else ""),
        ],
        [Table(head, rows)],
        notes=notes,
    )


def _verdict(found: Verification) -> str:
    whose = "the search" if found.fleet.closed_form else "the closed form"
    spares = " (spares left out)" if any(pool.num_spare for pool in found.fleet.pools) else ""
    checked = f"{whose}'s {_named(found.fleet.working)}{spares}"
    if found.is_enough.is_enough is None:
        return f"nothing can be said of {checked}: {found.is_enough.why}."
    fewest = {role: number for role, number in found.needed.items() if number is not None}
    needs = f"; the fewest that meet the targets: {_named(fewest)}" if fewest else ""
    needs += ", one pool at a time" if len(fewest) > 1 else ""
    if found.settled is None:
        needs = "; no number of instances that was tried meets the targets"
    be = "is" if sum(found.fleet.working.values()) == 1 else "are"
    return f"{checked} {be} {'enough' if found.is_enough.is_enough else 'NOT enough'} ({found.is_enough.why}){needs}."


def _named(working: dict[str, int]) -> str:
    """19 prefill and 9 decode instances."""
    instances = "instance" if sum(working.values()) == 1 else "instances"
    return f"{' and '.join(f'{number} {role}' for role, number in working.items())} {instances}"


def _shares(given: list[float]) -> str:
    if all(map(math.isnan, given)):
        return share(math.nan)
    return f"{', '.join(map(share, given))} of the requests"


def _said(row: Row) -> str:
    if row.quantity.endswith("instances"):
        if math.isnan(row.gap):
            return "no target of its own, or none to be met"
        if row.gap == 0:
            return "as planned"
        return "closed form optimistic" if row.gap > 0 else "closed form has room"
    return row.verdict
