"""Random configs over all sections: small, tight and mostly valid, each made of nothing but its seed.

An option is left at its default as often as not, so that most options meet in pairs; limits are drawn tight enough to bind.
"""

from pathlib import Path
from random import Random

from tests.campaign.draws import Section, some
from tests.campaign.pools import HARDWARE, pool, seen_late_or_together
from tests.campaign.traffics import class_names, traffic


def config(seed: int, folder: Path) -> Section:
    """Returns the config of this seed; a file of traffic, if it needs one, is written into `folder`."""
    random = Random(seed)
    sent = traffic(random, folder)
    names = class_names(sent)
    several = random.choices(HARDWARE, k=random.choice([1, 1, 1, 2, 3]))
    hardware = several if random.random() < 0.4 else several[:1] * len(several)
    return {
        "name": f"campaign_{seed}",
        "seed": random.randrange(100),
        "traffic": sent,
        "classes": {name: kind_of_request(random, hardware[0][0]) for name in names if random.random() < 0.5},
        "slo": slo(random, names),
        "gateway": gateway(random, names),
        "router": router(random),
        "pools": seen_late_or_together(seed, [pool(random, number, one) for number, one in enumerate(hardware)]),
        "timeline_interval_s": random.choice([0.7, 5.0, 60.0]),
        "max_drain_s": random.choice([0.0, 5.0, 60.0, 600.0, 600.0]),
        **some(random, 0.3, measure=measure(random, sent)),
    }


def measure(random: Random, sent: Section) -> Section:
    """A window that mostly begins within the traffic."""
    is_over_at_once = sent["kind"] == "concurrent" and "max_concurrency" not in sent
    start_s = random.choice([0.0, 0.0 if is_over_at_once else 0.4])
    return {"start_s": start_s, "end_s": random.choice([None, 2.0, 8.0])}


def kind_of_request(random: Random, model: str) -> Section:
    """What the requests of a class ask of the engine, of one that serves this model perhaps."""
    return some(
        random,
        0.5,
        priority=random.randint(-1, 3),
        lora=random.choice(["x", "y", "z"]),
        model=model,
        max_tokens=random.choice([1, 30, 2000]),
        grammar_s=random.choice([0.3, 3.0]),
        num_free_tokens=random.randint(1, 5),
        num_forced_tokens=random.randint(0, 5),
        timeout_s=random.choice([0.2, 3.0, 30.0]),
    )


def slo(random: Random, names: list[str]) -> Section:
    """Targets of all requests and of some classes, none perhaps."""
    targets = {"ttft_s": {"p99": 1.0}, "tpot_s": {"p90": 0.05}, "itl_s": {"p99": 0.1}, "e2e_s": {"p50": 3.0}}
    own = {name: some(random, 0.5, **targets) for name in names if random.random() < 0.3}
    return some(random, 0.4, **targets) | ({"classes": own} if own else {})


def gateway(random: Random, names: list[str]) -> Section:
    """Limits that some requests reach."""
    limit = {"tokens_per_s": random.choice([100.0, 2000.0]), "capacity_tokens": random.choice([200.0, 5000.0])}
    limits = {name: limit for name in names if random.random() < 0.5}
    admission = {"ttft_s": random.choice([0.05, 1.0]), "prefill_tokens_per_s": 2000.0}
    return some(random, 0.25, rate_limits=limits, admission=admission)


def router(random: Random) -> Section:
    """Any router, on live loads or stale ones."""
    kinds: tuple[Section, ...] = (
        *({"kind": kind} for kind in ("least_loaded", "least_tokens", "random", "round_robin", "vllm_old")),
        {"kind": "power_of_d_choices", "d": 2},
        {"kind": "vllm", "num_clients": random.choice([1, 4])},
    )
    return random.choice(kinds) | some(random, 0.5, scrape_interval_s=random.choice([0.1, 1.5]))
