"""The page's sections on what to rent and why: fleets, pools, layouts."""

from collections.abc import Iterator

from experiments.pages.figures import duration, number, percent, utilization
from experiments.pages.page import Section, Table
from planning.plans.fleets import Fleet
from planning.plans.outcome import Outcome


def fleets(outcome: Outcome) -> Section:
    """Returns what could be rented, the plan first."""
    money = ("$/hour", "$/M tokens at peak", "in", "out")
    head = ("fleet", "pools", "sized by", "GPUs", *money, "fullest pool", "with one lost")
    rows = []
    for fleet in outcome.alternatives:
        cost = fleet.cost(outcome.traffic.peak.requests_per_s)
        worst = max(pool.utilization_without() for pool in fleet.pools)
        rows.append((
            fleet.name, fleet.arrangement, _sized_by(fleet), f"{fleet.num_gpus:,}", f"${fleet.dollars_per_hour:,.2f}",
            f"${cost.per_million:.4f}", f"${cost.per_million_input:.4f}", f"${cost.per_million_output:.4f}",
            utilization(fleet.utilization), utilization(worst),
        ))  # fmt: skip
    unable = [one.hardware.gpu.name for one in outcome.options if one.separate is None and one.shared is None]
    rules = dict.fromkeys(f"{fleet.arrangement}: {fleet.cost(1.0).rule}" for fleet in outcome.alternatives)
    return Section(
        "What to rent",
        [_first_line(outcome)],
        [Table(head, rows, chosen=None if outcome.bill is None else 0)],
        notes=[
            *(f"The model runs on no layout of {name}; see below." for name in unable),
            *_step_times(outcome),
            f"How dollars are allotted: {'; '.join(rules)}.",
            *_prices(outcome),
        ],
    )


def _step_times(outcome: Outcome) -> Iterator[str]:
    """What of a calibration's step times nobody measured, for each fleet."""
    for fleet in outcome.alternatives:
        found = [*fleet.outside]
        if fleet.extrapolated:
            found.append(f"its calibration was fitted on smaller steps than {' and '.join(fleet.extrapolated)}")
        if found:
            yield f"{fleet.name}, {fleet.arrangement}, has step times that nobody measured: {'; '.join(found)}."


def _sized_by(fleet: Fleet) -> str:
    return "closed form" if fleet.closed_form is None else "simulation"


def _first_line(outcome: Outcome) -> str:
    if outcome.bill is None:
        return "Nothing that was tried meets the targets. This is what closed forms would rent, which simulation has refused."
    if outcome.fleet.closed_form is None:
        asked = outcome.plan.pools
        among = "" if asked == "cheapest" else f" among {asked} pools, as `pools` asks"
        chosen = f"The first line is the plan, chosen for its price at the peak{among}"
        return f"{chosen}; the others are what else would carry the same load."
    return (
        "The first line is the plan, at the size that simulation found. The others are what closed forms say of the same load, "
        "not simulated."
    )


def _prices(outcome: Outcome) -> list[str]:
    dated = [f"{one.gpu.name} ${one.price_per_gpu_hour:g} ({one.price_as_of or 'undated'})" for one in outcome.plan.hardware]
    return [f"Dollars per GPU-hour: {', '.join(dated)}."]


def pools(outcome: Outcome) -> Section:
    """Returns the pools of the chosen GPU, apart and shared, and whether prefill answers in time."""
    head = ("pool", "instances", "GPUs", "asked", "one instance does", "bound by", "used", "with one lost")
    rows = []
    fleets = [fleet for fleet in outcome.alternatives if fleet.hardware is outcome.fleet.hardware]
    for fleet in fleets:
        by = "" if fleet.closed_form is None else ", simulated"
        for pool in fleet.pools:
            unit = "req/s" if pool.role == "shared" else "tokens/s"
            rows.append((
                f"{pool.role} ({fleet.layout_of(pool.role)}){by}", str(pool.num_instances), str(pool.num_gpus),
                f"{number(pool.load)} {unit}", f"{number(pool.capacity)} {unit}", pool.binding.replace("_", " "),
                utilization(pool.utilization), utilization(pool.utilization_without()),
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
        binding = full.binding.replace("_", " ")
        text = f"A shared {fleet.layout.name} at its closed-form capacity of {number(full.requests_per_s)} req/s: "
        if fleet.demand.has_decodes:
            batch = f"{full.batch:.0f}" if full.batch >= 10 else f"{full.batch:.2g}"
            text += (
                f"{batch} answers under way at {duration(full.tpot_s)} a token, {percent(full.prompt_share, 0)} of the time in "
                f"steps with a prompt, bound by {binding}."
            )
        else:
            text += f"prompts alone, as answers have one token, bound by {binding}."
        if bound.requests_per_s > 1.001 * full.requests_per_s:
            text += f" If every step did the mean step's work it would be {number(bound.requests_per_s)}: no engine does more."
        notes.append(f"{text} Means only; simulate before believing it.")
    return list(dict.fromkeys(notes))


def layouts(outcome: Outcome) -> Section:
    """Returns every layout, and why some cannot run."""
    able = [(one, made) for one in outcome.options for made in one.layouts if not made.problem]
    problems = [f"{made.name}: {made.problem}." for one in outcome.options for made in one.layouts if made.problem]
    fleet = outcome.fleet
    is_chosen = [one.hardware is fleet.hardware and made.name == fleet.layout.name for one, made in able]
    chosen = is_chosen.index(True) if any(is_chosen) and outcome.bill is not None else None
    demand = outcome.traffic.peak
    if not demand.has_decodes:
        line = "Answers have one token, which prefill makes: nothing is decoded, and no TPOT target binds."
        return Section("Which layout", [line], [Table(("GPU", "layout"), [(made.gpu, made.name) for _, made in able], chosen)],
                       notes=problems)  # fmt: skip
    head = ("GPU", "layout", "batch", "bound by", "full step", "tokens/s/user", "tokens/s/GPU", "token alone")
    rows = [
        (
            made.gpu, made.name, f"{made.batch:,}", made.binding.replace("_", " "), duration(made.step_s),
            f"{made.tokens_per_s_per_user:,.0f}", f"{made.tokens_per_s_per_gpu:,.0f}", duration(made.alone_s),
        )
        for _, made in able
    ]  # fmt: skip
    context = demand.context_tokens
    line = f"A decode instance full of requests of {context:,.0f} tokens, prompt and half the answer, within the TPOT target."
    return Section("Which layout", [line], [Table(head, rows, chosen)], "plots/pareto.png", problems)
