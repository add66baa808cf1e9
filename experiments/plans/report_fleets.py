"""The page's sections on what to rent and why: fleets, pools, layouts."""

from collections.abc import Iterator

from experiments import calibrated
from experiments.plans.figures import duration, rate, share
from experiments.plans.fleets import Fleet
from experiments.plans.outcome import Outcome
from experiments.plans.page import Section, Table


def fleets(outcome: Outcome) -> Section:
    """Returns what could be rented, the plan first."""
    head = ("fleet", "pools", "GPUs", "$/hour", "$/M tokens at peak", "in", "out", "fullest pool", "with one lost")
    rows = []
    for fleet in outcome.alternatives:
        cost = fleet.cost(outcome.traffic.peak.requests_per_s)
        worst = max(pool.utilization_without() for pool in fleet.pools)
        rows.append((
            fleet.name, fleet.arrangement, f"{fleet.num_gpus:,}", f"${fleet.dollars_per_hour:,.2f}", f"${cost.per_million:.4f}",
            f"${cost.per_million_input:.4f}", f"${cost.per_million_output:.4f}", share(fleet.utilization), share(worst),
        ))  # fmt: skip
    unable = [one.hardware.gpu.name for one in outcome.options if one.separate is None and one.shared is None]
    rules = dict.fromkeys(f"{fleet.arrangement}: {fleet.cost(1.0).rule}" for fleet in outcome.alternatives)
    return Section(
        "What to rent",
        ["The first line is the plan, chosen for its price at the peak; the others are what else would carry the same load."],
        [Table(head, rows, chosen=0)],
        notes=[
            *(f"The model runs on no layout of {name}; see below." for name in unable),
            *_step_times(outcome),
            f"How dollars are allotted: {'; '.join(rules)}.",
            *_prices(outcome),
        ],
    )


def _step_times(outcome: Outcome) -> Iterator[str]:
    """Whose step times the plan stands on, and for each fleet what of them nobody measured."""
    if calibrated.step_times(outcome.plan.replicas) == calibrated.BOUND:
        yield f"Step times are a bound: {calibrated.BOUND_MEANS}."
    for fleet in outcome.alternatives:
        found = [*fleet.outside]
        if fleet.extrapolated:
            found.append(f"its calibration was fitted on smaller steps than {' and '.join(fleet.extrapolated)}")
        if found:
            yield f"{fleet.name}, {fleet.arrangement}, has step times that nobody measured: {'; '.join(found)}."


def _prices(outcome: Outcome) -> list[str]:
    dated = [f"{one.gpu.name} ${one.price_per_gpu_hour:g} ({one.price_as_of or 'undated'})" for one in outcome.plan.hardware]
    return [f"Dollars per GPU-hour: {', '.join(dated)}."]


def pools(outcome: Outcome) -> Section:
    """Returns the pools of the chosen GPU, apart and shared, and whether prefill answers in time."""
    head = ("pool", "instances", "GPUs", "asked", "one instance does", "bound by", "used", "with one lost")
    rows = []
    fleets = [fleet for fleet in outcome.alternatives if fleet.hardware is outcome.fleet.hardware]
    for fleet in fleets:
        for pool in fleet.pools:
            unit = "req/s" if pool.role == "shared" else "tokens/s"
            rows.append((
                f"{pool.role} ({fleet.layout_of(pool.role)})", str(pool.num_instances), str(pool.num_gpus),
                f"{rate(pool.load)} {unit}", f"{rate(pool.capacity)} {unit}", pool.binding.replace("_", " "),
                share(pool.utilization), share(pool.utilization_without()),
            ))  # fmt: skip
    lines = [
        "Apart, prefill is sized by arithmetic and decode by memory, each with its own slack. Shared, with chunked prefill, "
        "prompts use the arithmetic that decodes leave idle, where they share a step, but slow the tokens of everybody in it."
    ]
    return Section("Two pools or one", [*lines, *_ttft_lines(outcome)], [Table(head, rows)], notes=_shared_notes(fleets))


def _ttft_lines(outcome: Outcome) -> list[str]:
    found = outcome.ttft
    if found is None:
        return []
    enough = [
        f"{name} needs {count if count is not None else 'more than three times as many'}"
        for name, count in (("random routing", found.num_for_random), ("one line", found.num_for_one_line))
        if count != found.num_instances
    ]
    return [
        f"TTFT, by simulating the queues of {found.num_instances} prefill instances with the traffic's own prompts: "
        f"{found.percentile} is {found.random_s:.2f} s when requests are routed at random and {found.one_line_s:.2f} s when "
        f"they share one line, against a target of {found.limit_s:g} s. Met: {found.is_met}. With one "
        f"instance lost the one line has {duration(found.less_one_s)}."
        + (f" To meet it, {' and '.join(enough)} instances." if enough else ""),
        f"A mean prompt takes {duration(found.prefill_s)}, waits {duration(found.mean_wait_s)} on average at random (Pollaczek-"
        f"Khinchine), and its cache takes {duration(found.transfer_s)} to a decode instance.",
    ]


def _shared_notes(fleets: list[Fleet]) -> list[str]:
    notes = []
    for fleet in fleets:
        full, bound = fleet.balance, fleet.bound
        if full is None or bound is None:
            continue
        text = (
            f"A shared {fleet.layout.name} at its capacity of {full.requests_per_s:.4g} req/s: {full.batch:.0f} answers under "
            f"way at {duration(full.tpot_s)} a token, {full.prompt_share * 100:.0f} % of the time in steps with a prompt, "
            f"bound by {full.binding.replace('_', ' ')}."
        )
        if bound.requests_per_s > full.requests_per_s:
            text += f" If every step did the mean step's work it would be {bound.requests_per_s:.4g}: no engine does more."
        notes.append(f"{text} Means only; simulate before believing it.")
    return notes


def layouts(outcome: Outcome) -> Section:
    """Returns every layout, and why some cannot run."""
    head = ("GPU", "layout", "batch", "bound by", "full step", "tokens/s/user", "tokens/s/GPU", "token alone")
    rows: list[tuple[str, ...]] = []
    chosen, problems = None, []
    for one in outcome.options:
        for made in one.layouts:
            if made.problem:
                problems.append(f"{made.name}: {made.problem}.")
                continue
            if one.hardware is outcome.fleet.hardware and made.name == outcome.fleet.layout.name:
                chosen = len(rows)
            rows.append((
                made.gpu, made.name, f"{made.batch:,}", made.binding.replace("_", " "), duration(made.step_s),
                f"{made.tokens_per_s_per_user:,.0f}", f"{made.tokens_per_s_per_gpu:,.0f}", duration(made.alone_s),
            ))  # fmt: skip
    context = outcome.traffic.peak.context_tokens
    line = f"A decode instance full of requests of {context:,.0f} tokens, prompt and half the answer, within the TPOT target."
    return Section("Which layout", [line], [Table(head, rows, chosen)], "plots/pareto.png", problems)
