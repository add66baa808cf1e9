"""What the trials have to say, as sections of the page and as tables."""

import math
from dataclasses import dataclass, field
from typing import Any

from experiments.plans.confidence import targets_of
from experiments.plans.min_gpus import Candidate, search
from experiments.plans.outcome import Outcome
from experiments.plans.page import Section, Table
from experiments.plans.verify import Row, Verification, verified
from sim.errors import ConfigError

Rows = list[dict[str, Any]]


@dataclass
class Simulated:
    """What trials came to: for the page, for Parquet, for JSON."""

    said: list[str] = field(default_factory=list)  # a sentence each
    sections: list[Section] = field(default_factory=list)
    tables: dict[str, Rows] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


def simulated(outcome: Outcome) -> Simulated:
    """Runs the trials that the plan asks for."""
    made = Simulated()
    if outcome.plan.search == "min_gpus":
        candidates = search(outcome.plan, outcome.traffic)
        made.said.append(f"Searched by simulation: {_answer(candidates)}")
        made.sections.append(_search_section(outcome, candidates))
        made.tables["search"] = _search_rows(candidates)
        made.data["min_gpus"] = [_search_data(one) for one in candidates]
    if outcome.plan.verify:
        if not outcome.fleet.instance.is_simulated:
            layout = outcome.fleet.layout.name
            raise ConfigError(
                f"verify: the simulated engine has no pipelines nor groups that share experts; the plan is {layout}"
            )
        found = verified(outcome)
        made.said.append(f"Checked by simulation: {_verdict(found)}")
        made.sections.append(_verify_section(outcome, found))
        made.tables["verification"] = [row._asdict() | {"gap": row.gap, "verdict": _said(row)} for row in found.rows]
        made.data["verified"] = {"is_enough": found.is_enough.is_enough, "why": found.is_enough.why, "needed": found.needed}
    return made


def _traffic_line(outcome: Outcome) -> str:
    trials = outcome.plan.trials
    seconds = trials.duration_s
    is_whole = seconds is None or outcome.plan.traffic.limit is not None or seconds >= outcome.traffic.duration_s
    span = "all traffic" if is_whole else f"{seconds:,.0f} s around the peak"
    seeds = ", ".join(map(str, trials.seeds))
    asked = " and ".join(map(str, targets_of(outcome.plan.slo))) or "no targets"
    return (
        f"{span[0].upper()}{span[1:]}, seeds {seeds}, all with the same traffic. Targets: {asked}, each on every seed and on "
        f"average with {trials.confidence * 100:.0f} % confidence; who is not served in time counts as a miss."
    )


def _search_section(outcome: Outcome, candidates: list[Candidate]) -> Section:
    head = ("layout", "bound", "closed form", "simulated", "GPUs", "$/hour", "gap", "tried", "decided by")
    rows = []
    for one in candidates:
        is_met = one.num_replicas is not None
        last = one.tried[one.num_replicas].why if one.num_replicas is not None else one.remark
        gap = f"{one.num_replicas / one.planned - 1:+.0%}".replace("%", " %") if one.num_replicas is not None else "-"
        rows.append((
            f"{one.fleet.layout.name} {one.fleet.hardware.gpu.name}", str(one.least), str(one.planned),
            str(one.num_replicas) if is_met else "-", str(one.num_gpus) if is_met else "-",
            f"${one.dollars_per_hour:,.2f}" if is_met else "-", gap, ", ".join(map(str, sorted(one.tried))) or "nothing", last,
        ))  # fmt: skip
    lines = [_answer(candidates), _traffic_line(outcome)]
    notes = [
        "bound: the mean rate if every step did the mean step's work, at all of its capacity; closed form: the peak at "
        f"{outcome.plan.max_utilization * 100:.0f} % of it. Simulated as shared pools, of replicas that are all ready.",
        *(f"{one.fleet.layout.name}: {one.remark}." for one in candidates if one.remark and one.num_replicas is not None),
    ]
    return Section("The fewest GPUs, by simulation", lines, [Table(head, rows, 0 if candidates else None)], notes=notes)


def _answer(candidates: list[Candidate]) -> str:
    if not candidates:
        return "no layout can run."
    best = candidates[0]
    if best.num_replicas is None:
        return f"no number of replicas that was tried is enough: {best.remark}."
    below = best.tried.get(best.num_replicas - 1)
    why = f"; {best.num_replicas - 1} are not enough ({below.why})" if below else ""
    which = "right" if best.num_replicas == best.planned else ("too few" if best.num_replicas > best.planned else "too many")
    where = f"{best.fleet.layout.name} on {best.fleet.hardware.gpu.name}"
    return f"{best.num_replicas} replicas of {where}, {best.num_gpus} GPUs{why}. The closed form said {best.planned}: {which}."


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
        "num_gpus": one.num_gpus,
        "remark": one.remark,
    }


def _verify_section(outcome: Outcome, found: Verification) -> Section:
    head = ("quantity", "closed form", "simulated", "+/-", "gap", "")
    rows = [
        (row.quantity, _number(row.closed_form), _number(row.simulated), _number(row.half_width), _percent(row.gap), _said(row))
        for row in found.rows
    ]
    shares = [
        f"{target}: " + ", ".join(f"{share * 100:.2f} %" for share in given) + " of the requests"
        for target, given in found.shares.items()
    ]
    traffic = outcome.traffic
    notes = [
        "TPOT is held against the mean time of a token, which all requests share: a request that meets more prompts than the "
        "mean is slower. Instances: the fewest with which the targets hold, one pool at a time, the other as planned.",
        f"The closed form counts {traffic.peak.context_tokens:,.0f} tokens of context for each request of a batch; as long "
        f"answers stay longer, a batch of this traffic holds {traffic.biased_context_tokens:,.0f} each.",
    ]
    if found.outside_share:
        notes.append(
            f"{found.outside_share:.1%} of the steps are larger than any that the calibration was fitted on.".replace("%", " %")
        )
    return Section(
        "Checked by simulation",
        [
            f"Simulated, {_verdict(found)}",
            _traffic_line(outcome),
            f"{found.num_requests:,} requests a seed, {found.num_refused} of all refused as no instance can hold them, "
            f"{found.num_preemptions:,} preemptions. " + "; ".join(shares) + ".",
        ],
        [Table(head, rows)],
        notes=notes,
    )


def _verdict(found: Verification) -> str:
    wanted = found.needed
    fewest = " and ".join(f"{number} {role}" for role, number in wanted.items() if number is not None)
    impossible = " or ".join(role for role, number in wanted.items() if number is None)
    answer = "is enough" if found.is_enough.is_enough else "is NOT enough"
    needs = f"; the fewest that meet the targets are {fewest} instances, one pool at a time" if fewest else ""
    never = f"; no number of {impossible} instances that was tried meets them" if impossible else ""
    return f"the planned fleet {answer} ({found.is_enough.why}){needs}{never}."


def _said(row: Row) -> str:
    if row.quantity.endswith("instances"):
        if math.isnan(row.gap):
            return "not to be met"
        if row.gap == 0:
            return "as planned"
        return "closed form optimistic" if row.gap > 0 else "closed form has room"
    return row.verdict


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.4g}"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value * 100:+.1f} %"
