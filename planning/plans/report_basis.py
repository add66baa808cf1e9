"""The page's sections on what it stands on: the traffic as it was read, and where the step times come from."""

from experiments import calibrated
from experiments.pages.figures import number, percent
from experiments.pages.page import Section
from planning.plans.outcome import Outcome


def traffic(outcome: Outcome) -> Section:
    """Returns what arrives, what of it is cached, and what was dropped or can never be served."""
    found, demand = outcome.traffic, outcome.traffic.peak
    lines = [
        f"Mean {number(found.mean_per_s)} requests/s over {found.duration_s:,.6g} s, peak {number(demand.requests_per_s)}; "
        f"prompts of {demand.prompt_tokens:,.0f} and answers of {_tokens(demand.output_tokens)} on average. {_cached(outcome)}"
    ]
    return Section("The traffic", lines, notes=[*_left_out(outcome), *_counted(outcome)])


def _tokens(mean: float) -> str:
    return f"{mean:,.0f} token{'' if mean == 1 else 's'}" if mean == round(mean) or mean >= 10 else f"{mean:.3g} tokens"


def _cached(outcome: Outcome) -> str:
    found, plan = outcome.traffic, outcome.plan
    share = percent(found.peak.cached_share)
    if found.own_cached_share is None:
        stated = f"A prefix cache holds {share} of a prompt, as stated."
        return stated if plan.cached_share else "No part of a prompt is cached."
    own = f"{percent(found.own_cached_share)} of the prompt tokens begin like an earlier request"
    if found.uses_own_share:
        return (
            f"{own}: the share that one endless cache would find, and the closed forms count on. It is a bound: a router "
            "spreads requests that share, and caches are finite. Trials simulate the caches."
        )
    why = f"cached_share is {share}" if plan.cached_share is not None else "enable_prefix_caching is false"
    return f"{own}, which is not counted on: {why}."


def _left_out(outcome: Outcome) -> list[str]:
    """What can never be served, and so costs nothing."""
    lengths = outcome.traffic.lengths
    num_refused = lengths.num_looked_at - lengths.num_served
    if not num_refused:
        return []
    share = number(100 * num_refused / lengths.num_looked_at, 2)
    return [
        f"{num_refused:,} of {lengths.num_looked_at:,} requests looked at ({share} %) are longer than the "
        f"{lengths.longest:,} tokens that a replica holds of one: they are refused, and part of no rate and no mean above. "
        "Trials send them, and count them as missed."
    ]


def _counted(outcome: Outcome) -> list[str]:
    """Rows of the file that are not as they were read, and requests that a client would hold back."""
    counts, traffic = outcome.traffic.lengths.counts, outcome.plan.traffic
    told = "is not planned with: requests are taken to arrive when they are due."
    held_back = [] if traffic.max_concurrency is None else [f"max_concurrency {traffic.max_concurrency} {told}"]
    held_back += [f"Which request follows which {told}"] if traffic.max_follows else []
    rows = [
        f"{number:,} of the {counts['read']:,} rows read: {name.replace('_', ', ', 1).replace('_', ' ')}."
        for name, number in counts.items()
        if number and name.startswith(("dropped", "clipped"))
    ]
    return [*rows, *held_back]


def step_times_briefly(outcome: Outcome) -> list[str]:
    """Returns the sentence of the page's head on how far its step times can be trusted."""
    calibration = outcome.plan.replicas.calibration
    if calibration is not None:
        return [f"Step times are those of {calibration}, fitted to measurements."]
    return [f"Step times are a bound: {calibrated.BOUND_MEANS}."]


def assumptions(outcome: Outcome) -> Section:
    """Returns where the step times come from, the engine's options, and what to measure."""
    given = outcome.plan.replicas.model_dump(exclude_defaults=True)
    engine = ", ".join(f"{name} {value}" for name, value in given.items()) or "all defaults"
    is_measured = outcome.plan.replicas.calibration is not None
    doubts = "lengths" if is_measured else "kernels, lengths and overheads"
    return Section(
        "What this stands on",
        [
            _calibrated(outcome) if is_measured else _roofline(outcome),
            f"Engine: {engine}.",
            f"Means for lengths, and no queueing but where it says so. Measure {doubts} before the order is placed.",
        ],
    )


def _calibrated(outcome: Outcome) -> str:
    replicas = outcome.plan.replicas
    measured = replicas.measured
    assert measured is not None
    engine = measured.engine + (f" {measured.engine_version}" if measured.engine_version else "")
    scale = f" Multiplied by {replicas.step_time_scale:g}." if replicas.step_time_scale != 1.0 else ""
    reached = outcome.fleet.prefill.mfu(outcome.traffic.peak.prompt_tokens)
    return (
        f"Step times by {replicas.calibration}, {engine} on {measured.gpu.name}: {measured.source}.{scale} A mean prompt "
        f"reaches {percent(reached, 0)} of the data sheet's arithmetic."
    )


def _roofline(outcome: Outcome) -> str:
    plan, traffic = outcome.plan, outcome.traffic
    prefill = (
        f"prefill at {percent(plan.prefill_mfu, 0)} of the peak arithmetic, links included"
        if plan.prefill_mfu
        else f"prefill at {percent(plan.replicas.flops_efficiency, 0)} of the peak arithmetic, links on top"
    )
    reached = outcome.fleet.prefill.mfu(traffic.peak.prompt_tokens)
    return (
        f"Step times by the data sheet's roofline: {prefill} (reached: {reached:.2f}); decodes with "
        f"{percent(plan.replicas.bandwidth_efficiency, 0)} of the memory bandwidth. No engine is faster; real ones are slower."
    )
