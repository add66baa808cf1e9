"""The page of a plan, in the order in which a reader asks: the answer, why, the day, the money, and how sure it is."""

import math
from collections.abc import Sequence

from experiments.plans.fleets import Fleet
from experiments.plans.outcome import Outcome
from experiments.plans.page import Page, Section, Table


def page(outcome: Outcome, simulated: Sequence[Section] = (), said: Sequence[str] = ()) -> Page:
    """Returns the whole page.

    Args:
        outcome: the plan in closed form.
        simulated: what trials have to say, right after the answer.
        said: the same in a sentence each, for the head of the page.
    """
    sections = [_fleets(outcome), *simulated, _pools(outcome), _layouts(outcome), _day(outcome), _hours(outcome)]
    if outcome.money:
        sections.append(_money(outcome))
    sections.append(_sensitivity(outcome))
    if outcome.plan.published is not None:
        sections.append(_published(outcome))
    sections.append(_assumptions(outcome))
    return Page(f"Plan: {outcome.plan.name}", [*_lead(outcome), *said], sections)


def _lead(outcome: Outcome) -> list[str]:
    fleet, traffic = outcome.fleet, outcome.traffic
    days = {one.policy: one for one in outcome.day.policies}
    kinds = " and ".join(f"{pool.num_instances} {pool.role}" for pool in fleet.pools)
    spare = f", {outcome.plan.num_spare} of each pool to spare" if outcome.plan.num_spare else ""
    return [
        f"{fleet.num_gpus:,} x {fleet.hardware.gpu.name} serve {outcome.plan.model.name} at the peak of "
        f"{traffic.peak.requests_per_s:,.4g} requests/s: {kinds} instances of {fleet.layout.name}{spare}, at most "
        f"{outcome.plan.max_utilization * 100:.0f} % full.",
        f"Kept at that size the fleet costs ${days['fixed'].dollars_per_day:,.0f} a day, ${days['fixed'].per_million:.3f} per "
        f"million tokens; scaled one cold start ahead of the load ${days['forecast'].dollars_per_day:,.0f} and "
        f"${days['forecast'].per_million:.3f}.",
    ]


def _fleets(outcome: Outcome) -> Section:
    head = ("fleet", "pools", "GPUs", "$/hour", "$/M tokens at peak", "in", "out", "fullest pool", "less one")
    rows = []
    for fleet in outcome.alternatives:
        cost = fleet.cost(outcome.traffic.peak.requests_per_s)
        worst = max(pool.utilization_without() for pool in fleet.pools)
        rows.append((
            fleet.name, fleet.arrangement, f"{fleet.num_gpus:,}", f"${fleet.dollars_per_hour:,.2f}", f"${cost.per_million:.4f}",
            f"${cost.per_million_input:.4f}", f"${cost.per_million_output:.4f}", _share(fleet.utilization), _share(worst),
        ))  # fmt: skip
    unable = [one.hardware.gpu.name for one in outcome.options if one.separate is None and one.shared is None]
    rules = dict.fromkeys(f"{fleet.arrangement}: {fleet.cost(1.0).rule}" for fleet in outcome.alternatives)
    return Section(
        "What to rent",
        ["The first line is the plan, chosen for its price at the peak; the others are what else would carry the same load."],
        [Table(head, rows, chosen=0)],
        notes=[
            *(f"The model runs on no layout of {name}; see below." for name in unable),
            f"How dollars are allotted: {'; '.join(rules)}.",
            *_prices(outcome),
        ],
    )


def _prices(outcome: Outcome) -> list[str]:
    dated = [f"{one.gpu.name} ${one.price_per_gpu_hour:g} ({one.price_as_of or 'undated'})" for one in outcome.plan.hardware]
    return [f"Dollars per GPU-hour: {', '.join(dated)}."]


def _pools(outcome: Outcome) -> Section:
    head = ("pool", "instances", "GPUs", "asked", "one instance does", "bound by", "used", "with one lost")
    rows = []
    fleets = [fleet for fleet in outcome.alternatives if fleet.hardware is outcome.fleet.hardware]
    for fleet in fleets:
        for pool in fleet.pools:
            unit = "req/s" if pool.role == "shared" else "tokens/s"
            rows.append((
                f"{pool.role} ({fleet.layout.name})", str(pool.num_instances), str(pool.num_gpus), f"{_rate(pool.load)} {unit}",
                f"{_rate(pool.capacity)} {unit}", pool.binding.replace("_", " "), _share(pool.utilization),
                _share(pool.utilization_without()),
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
        f"they share one line, against a target of {found.limit_s:g} s. Met: {found.is_met}."
        + (f" To meet it, {' and '.join(enough)} instances." if enough else ""),
        f"A mean prompt takes {_time(found.prefill_s)}, waits {_time(found.mean_wait_s)} on average at random (Pollaczek-"
        f"Khinchine), and its cache takes {_time(found.transfer_s)} to a decode instance.",
    ]


def _shared_notes(fleets: list[Fleet]) -> list[str]:
    notes = []
    for fleet in fleets:
        full, bound = fleet.balance, fleet.bound
        if full is not None and bound is not None:
            notes.append(
                f"A shared {fleet.layout.name} at its capacity of {full.requests_per_s:.4g} req/s: {full.batch:.0f} answers "
                f"under way at {_time(full.tpot_s)} a token, {full.prompt_share * 100:.0f} % of the time in steps with a "
                f"prompt, bound by {full.binding.replace('_', ' ')}. If every step did the mean step's work it would be "
                f"{bound.requests_per_s:.4g}: no engine does more. Means only; simulate before believing either."
            )
    return notes


def _layouts(outcome: Outcome) -> Section:
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
                made.gpu, made.name, f"{made.batch:,}", made.binding.replace("_", " "), _time(made.step_s),
                f"{made.tokens_per_s_per_user:,.0f}", f"{made.tokens_per_s_per_gpu:,.0f}", _time(made.alone_s),
            ))  # fmt: skip
    context = outcome.traffic.peak.context_tokens
    line = f"A decode instance full of requests of {context:,.0f} tokens, prompt and half the answer, within the TPOT target."
    return Section("Which layout", [line], [Table(head, rows, chosen)], "plots/pareto.png", problems)


def _day(outcome: Outcome) -> Section:
    head = ("fleet", "GPU-hours/day", "$/day", "$/M tokens", "used", "short of capacity", "short of headroom")
    rows = [
        (
            one.policy, f"{one.gpu_hours_per_day:,.0f}", f"${one.dollars_per_day:,.0f}", f"${one.per_million:.4f}",
            _share(one.utilization), _minutes(one.short_s_per_day), _minutes(one.tight_s_per_day),
        )
        for one in outcome.day.policies
    ]  # fmt: skip
    cold = outcome.day.cold_start_s
    lines = [
        f"Mean {outcome.traffic.mean_per_s:,.4g} requests/s, peak {outcome.traffic.peak.requests_per_s:,.4g}. A new instance "
        f"takes {cold:,.0f} s to get ready, so a fleet that reacts is that far behind on a rise; one that asks a cold start "
        "ahead is not.",
    ]
    return Section("The day", lines, [Table(head, rows)], "plots/day.png")


def _hours(outcome: Outcome) -> Section:
    head = ("hour", "requests/s", "highest", "fixed", "reactive", "forecast")
    rows = [
        (
            str(row["hour"]), f"{row['demand_per_s']:,.1f}", f"{row['peak_per_s']:,.1f}", f"{row['fixed_gpus']:,.0f}",
            f"{row['reactive_gpus']:,.0f}", f"{row['forecast_gpus']:,.0f}",
        )
        for row in outcome.day.hours()
    ]  # fmt: skip
    return Section("GPUs by hour", ["Billed, mean over the hour."], [Table(head, rows[:48])])


def _money(outcome: Outcome) -> Section:
    head = (
        "API",
        "its $/M tokens",
        "ours when full",
        "ours is cheaper from",
        "as requests/s",
        "smallest fleet",
        "pays from",
        "today: fixed",
        "forecast",
    )
    rows = []
    for one in outcome.money:
        pays = f"{one.smallest_fleet_pays_from_per_s:,.3g} req/s"
        rows.append((
            one.api, f"${one.api_per_million:.4f}", f"${one.fleet_per_million_full:.4f}",
            "never" if one.never_pays else f"{_share(one.flips_at_utilization)} used",
            "-" if one.never_pays else f"{one.flips_at_per_s:,.3g}", f"{one.smallest_fleet_gpus} GPUs",
            pays if math.isfinite(one.smallest_fleet_pays_from_per_s) else "never",
            one.verdicts["fixed"], one.verdicts["forecast"],
        ))  # fmt: skip
    line = (
        "You pay for the fleet whether or not it is used: at a share u of its capacity a token costs 1/u times as much. The "
        "API's price is blended for the same prompts and answers. Engineers and evaluations come on top of ours."
    )
    notes = [f"{one.api}: {one.as_of or 'undated'}." for one in outcome.money]
    return Section("A fleet of one's own, or an API", [line], [Table(head, rows)], notes=notes)


def _sensitivity(outcome: Outcome) -> Section:
    base = outcome.fleet
    counts = " + ".join(str(pool.num_instances) for pool in base.pools)
    rows = [("as planned", counts, f"{base.num_gpus:,}", "")]
    for one in outcome.variants:
        row = one.row(base)
        is_built = row["num_gpus"] is not None
        rows.append(
            (
                one.change,
                str(row["instances"]),
                f"{row['num_gpus']:,}" if is_built else "-",
                f"{row['difference']:+,}" if is_built else "-",
            )
        )
    line = "One thing changed at a time, the layout kept."
    return Section("What would change it", [line], [Table(("if", "instances", "GPUs", "more or less"), rows, chosen=0)])


def _published(outcome: Outcome) -> Section:
    given = outcome.plan.published
    assert given is not None
    fleet = given.fleet()
    price = outcome.fleet.hardware.price_per_gpu_hour
    rows = [
        ("nodes at the peak / on average", f"{fleet.peak_nodes:g} / {fleet.mean_nodes:g}", f"{fleet.peak_to_mean:.3f} to 1"),
        (f"dollars a day at ${price:g} per GPU-hour", "", f"${fleet.dollars_per_day(price):,.0f}"),
    ]
    prefill, decode = fleet.prefill_nodes, fleet.decode_nodes
    if prefill is not None and decode is not None:
        rows += [
            ("nodes that its input takes at its own rate", "", f"{prefill:.1f}"),
            ("nodes that its output takes at its own rate", "", f"{decode:.1f}"),
            ("together, against what it published", f"{fleet.mean_nodes:g}", f"{prefill + decode:.1f}"),
        ]
    rows += _our_nodes(outcome, prefill, decode)
    lines = [f"{given.name}, run backwards: do its tokens, its rates and its nodes fit, and what does this plan make of them?"]
    return Section("A published fleet, checked", lines, [Table(("", "published", "computed"), rows)], notes=[given.source])


def _our_nodes(outcome: Outcome, prefill: float | None, decode: float | None) -> list[tuple[str, str, str]]:
    """What the plan's own fleet would have for the same day, on average and full, and what the published one reaches."""
    given, traffic, fleet = outcome.plan.published, outcome.traffic, outcome.fleet
    assert given is not None
    share = traffic.mean_per_s / traffic.peak.requests_per_s
    published = {"prefill": prefill, "decode": decode}
    rows = []
    for pool in fleet.pools:
        mean = pool.load / pool.capacity * pool.gpus_per_instance / given.gpus_per_node * share
        theirs = published.get(pool.role)
        name = f"nodes of this plan's {pool.role} instances, {fleet.layout.name}, full, on average"
        rows.append((name, f"{theirs:.1f}" if theirs else "", f"{mean:.1f}"))
    computed_per_s = given.fleet().computed_input_per_s
    if prefill is not None and computed_per_s is not None:
        demand, engine = traffic.peak, fleet.instance.engine
        per_token = fleet.instance.prefill_flops(demand.prompt_tokens, demand.cached_tokens)
        per_token /= demand.prompt_tokens - demand.cached_tokens
        peak_per_s = (
            engine.flops_per_s / fleet.instance.replicas.flops_efficiency / fleet.instance.replicas.tensor_parallel_size
        )
        reached = computed_per_s * per_token / (prefill * given.gpus_per_node * peak_per_s)
        rows.append(("share of peak arithmetic that its prefill nodes reach", "", f"{reached * 100:.1f} %"))
    return rows


def _assumptions(outcome: Outcome) -> Section:
    plan, traffic = outcome.plan, outcome.traffic
    mfu = (
        f"prefill at {plan.prefill_mfu * 100:.0f} % of the peak arithmetic, links included"
        if plan.prefill_mfu
        else (f"prefill at {plan.replicas.flops_efficiency * 100:.0f} % of the peak arithmetic, links on top")
    )
    reached = outcome.fleet.instance.mfu(traffic.peak.prompt_tokens)
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


def _rate(value: float) -> str:
    """Four digits, and whole from 1,000 on.

    >>> [_rate(x) for x in (5.6618, 27_537.9, 400_000)]
    ['5.662', '27,538', '400,000']
    """
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _share(value: float) -> str:
    return f"{value * 100:.1f} %" if math.isfinite(value) else "nothing left"


def _time(seconds: float) -> str:
    """Writes a short time in the unit that reads best.

    >>> [_time(x) for x in (0.0000131, 0.0131, 1.25, float("inf"))]
    ['0.013 ms', '13.1 ms', '1.25 s', 'for ever']
    """
    if not math.isfinite(seconds):
        return "for ever"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.{1 if seconds >= 0.001 else 3}f} ms"


def _minutes(seconds: float) -> str:
    return "never" if seconds == 0 else f"{seconds / 60:,.0f} min/day"
