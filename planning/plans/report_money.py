"""The page's sections on time and money: the day, the bill, an API instead, other assumptions, a published fleet."""

from collections.abc import Callable

from experiments.pages.figures import minutes, number, percent, utilization
from experiments.pages.page import Section, Table
from planning.plans.money import BreakEven
from planning.plans.outcome import Outcome


def day(outcome: Outcome) -> Section:
    """Returns what each policy costs over a day."""
    head = ("fleet", "GPU-hours/day", "$/day", "$/M tokens", "used", "short of capacity", "short of headroom")
    rows = [
        (
            one.policy, f"{one.gpu_hours_per_day:,.0f}", f"${one.dollars_per_day:,.0f}", f"${one.per_million:.4f}",
            utilization(one.utilization), minutes(one.short_s_per_day), minutes(one.tight_s_per_day),
        )
        for one in outcome.day.policies
    ]  # fmt: skip
    cold = outcome.day.cold_start_s
    lines = [
        f"Mean {number(outcome.traffic.mean_per_s)} requests/s, peak {number(outcome.traffic.peak.requests_per_s)}. A new "
        f"instance takes {cold:,.0f} s to get ready, so a fleet that reacts is that far behind on a rise; one that asks a cold "
        "start ahead is not.",
    ]
    return Section("The day", lines, [Table(head, rows)], "plots/day.png")


def hours(outcome: Outcome) -> Section:
    """Returns the GPUs hour by hour."""
    head = ("hour", "requests/s", "highest", "fixed", "reactive", "forecast")
    rows = [
        (
            str(row["hour"]), f"{row['demand_per_s']:,.1f}", f"{row['peak_per_s']:,.1f}", f"{row['fixed_gpus']:,.0f}",
            f"{row['reactive_gpus']:,.0f}", f"{row['forecast_gpus']:,.0f}",
        )
        for row in outcome.day.hours()
    ]  # fmt: skip
    return Section("GPUs by hour", ["Billed, mean over the hour."], [Table(head, rows[:48])])


def money(outcome: Outcome) -> Section:
    """Returns the fleet against each API."""
    lines: dict[str, Callable[[BreakEven], str]] = {
        "its dollars per million tokens": lambda one: f"${one.api_per_million:.4f}",
        "ours, when the fleet is full": lambda one: f"${one.fleet_per_million_full:.4f}",
        "ours is cheaper when used above": lambda one: "never" if one.never_pays else utilization(one.flips_at_utilization),
        "which is, in requests/s": lambda one: "never" if one.never_pays else number(one.flips_at_per_s),
        "smallest fleet, GPUs": lambda one: str(one.smallest_fleet_gpus),
        "it pays from, requests/s": lambda one: number(one.smallest_fleet_pays_from_per_s, 3),
        "cheaper over this day, fixed fleet": lambda one: one.verdicts["fixed"],
        "cheaper over this day, forecast": lambda one: one.verdicts["forecast"],
    }
    rows = [(name, *(cell(one) for one in outcome.money)) for name, cell in lines.items()]
    line = (
        "You pay for the fleet whether or not it is used: at a share u of its capacity a token costs 1/u times as much. The "
        "API's price is blended for the same prompts and answers. Engineers and evaluations come on top of ours."
    )
    notes = [f"{one.api}: {one.as_of or 'undated'}." for one in outcome.money]
    head = ("", *(one.api for one in outcome.money))
    return Section("A fleet of one's own, or an API", [line], [Table(head, rows)], notes=notes)


def sensitivity(outcome: Outcome) -> Section:
    """Returns what other assumptions would take."""
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
    if base.closed_form is not None:
        line += " The simulated number is changed in the proportion in which the closed form changes; not simulated again."
    return Section("What would change it", [line], [Table(("if", "instances", "GPUs", "more or less"), rows, chosen=0)])


def published(outcome: Outcome) -> Section:
    """Returns the published fleet beside what follows from its own numbers, and beside this plan."""
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
        name = f"nodes of this plan's {pool.role} instances, {fleet.layout_of(pool.role)}, full, on average"
        rows.append((name, f"{theirs:.1f}" if theirs else "", f"{mean:.1f}"))
    computed_per_s = given.fleet().computed_input_per_s
    if prefill is not None and computed_per_s is not None:
        demand, instance = traffic.peak, fleet.prefill
        per_token = instance.prefill_flops(demand.prompt_tokens, demand.cached_tokens)
        per_token /= demand.prompt_tokens - demand.cached_tokens
        peak_per_s = instance.peak_flops_per_s / instance.replicas.tensor_parallel_size
        reached = computed_per_s * per_token / (prefill * given.gpus_per_node * peak_per_s)
        rows.append(("share of peak arithmetic that its prefill nodes reach", "", percent(reached)))
    return rows
