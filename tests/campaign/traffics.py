"""Random traffic: an open loop of any kind, a closed one, or a file.

Prompts and answers average at most 500 and 100 tokens, which every engine of the campaign can hold; the longest may not fit.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

from tests.campaign.draws import Section, some

LONGEST_PROMPT, LONGEST_OUTPUT = 1200, 360
RECORDED = ("azure", "mooncake", "table")


def traffic(random: Random, folder: Path) -> Section:
    """At most some 2,000 requests within 20 s, mostly far fewer."""
    kind = random.choice(["constant", "poisson", "gamma", "diurnal", "concurrent", "concurrent", *RECORDED])
    shared = some(random, 0.3, max_concurrency=random.choice([1, 2, 5, 20, 100]), limit=random.choice([1, 30, 300]))
    if kind in RECORDED:
        return {"kind": kind, **recorded(random, kind, folder), **shared}
    if kind == "concurrent":
        return {"kind": kind, "limit": random.choice([1, 20, 100, 300]), **shared, **what_is_asked(random)}
    rate_per_s = random.choice([0.5, 4.0, 12.0, 40.0])
    own: dict[str, Section] = {
        "constant": {"rate_per_s": rate_per_s},
        "poisson": {"rate_per_s": rate_per_s, **some(random, 0.3, fixed_count=True)},
        "gamma": {"rate_per_s": rate_per_s, "cv": random.choice([0.0, 0.5, 3.0])},
        "diurnal": {"peak_per_s": rate_per_s, "trough_per_s": 0.2, "peak_hour": 0.0, **ups_and_downs(random)},
    }
    shared |= {"duration_s": random.choice([1.0, 5.0, 20.0]), **some(random, 0.3, rate_scale=2.5)}
    return {"kind": kind, **own[kind], **shared, **what_is_asked(random)}


def class_names(sent: Section) -> list[str]:
    """Returns the classes of this traffic."""
    return [one["name"] for one in sent.get("classes", [])] or (["a", "b"] if sent["kind"] == "table" else ["default"])


def ups_and_downs(random: Random) -> Section:
    """What makes a day uneven."""
    return some(
        random,
        0.4,
        shape=random.choice(["triangle", "square"]),
        cv=random.choice([0.0, 2.0]),
        weekend_factor=random.choice([0.0, 0.5]),
        first_weekday=random.choice(["saturday", "tuesday"]),
        noise=0.5,
        noise_interval_s=1.0,
        flash_crowds=[{"at_s": 0.5, "height_per_s": 50.0, "width_s": 4.0}],
    )


def what_is_asked(random: Random) -> Section:
    """The lengths, of one class or several, and prefixes that they share."""
    found: Section = {"lengths": lengths(random)}
    if random.random() < 0.5:
        classes = [{"name": name, "share": random.choice([1, 3]), "lengths": lengths(random)} for name in "abcd"]
        found = {"classes": classes[: random.randint(1, 4)]}
    if random.random() < 0.4:
        tokens = random.choice([100, {"kind": "uniform", "low": 1, "high": 400}])
        found["prefixes"] = {"num": random.choice([1, 20]), "tokens": tokens, **some(random, 0.5, zipf=0.0, share=0.5)}
    return found


def lengths(random: Random) -> Section:
    """How many tokens come in and go out."""
    prompt, output = law(random, 500, LONGEST_PROMPT), law(random, 100, LONGEST_OUTPUT)
    return {"prompt": prompt, "output": output, **some(random, 0.3, correlation=random.choice([-1.0, 0.5]))}


def law(random: Random, largest_mean: int, longest: int) -> Section:
    """A law of lengths with a mean of at most `largest_mean` tokens."""
    mean = random.choice([1, 2, random.randint(3, largest_mean), random.randint(3, largest_mean)])
    return random.choice(
        [
            {"kind": "fixed", "tokens": mean},
            {"kind": "uniform", "low": 1, "high": 2 * mean - 1},
            {"kind": "lognormal", "mean": float(mean), "p99": 6.0 * mean, "max": longest},
            {"kind": "exponential", "mean": float(mean), "max": longest},
            {"kind": "empirical", "values": [1, mean, mean, 2 * mean - 1]},
        ]
    )


def recorded(random: Random, kind: str, folder: Path) -> Section:
    """A file with many rows at one instant and a few that are none, read with what a recording can be read with."""
    rows = {"azure": azure_row, "mooncake": mooncake_row, "table": table_row}[kind]
    now_s, written = 0.0, []
    for number in range(random.choice([2, 30, 120, 300])):
        now_s += random.choice([0.0, 0.0, 0.1, 0.5]) if number > 1 else 0.0
        prompt, output = random.randint(1, 500), random.randint(1, 100)
        written.append(rows(random, number, now_s, prompt, output))
    options = some(random, 0.3, bad_rows=random.choice(["drop", "clip"]), sort_rows=True)
    if "bad_rows" in options:
        written += [rows(random, 10_000, 0.0, 5, 0), rows(random, 10_001, now_s, 20, 10)]
    path = folder / f"{kind}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in written))
    own: Section = {"azure": {}, "mooncake": {"trace_block_tokens": 64, **some(random, 0.5, time_unit="ms")}, "table": TABLE}[
        kind
    ]
    window = some(random, 0.2, start_s=0.3, end_s=random.choice([1.0, 20.0]))
    scales = some(random, 0.3, time_scale=random.choice([0.1, 3.0]), rate_scale=random.choice([0.5, 2.5]), copies="same")
    return {"path": str(path), **own, **options, **window, **scales}


def azure_row(random: Random, number: int, now_s: float, prompt: int, output: int) -> dict[str, Any]:
    """A row as Azure published it."""
    stamp = f"2024-05-10 00:{int(now_s // 60):02}:{now_s % 60:06.3f}+00:00"
    return {"TIMESTAMP": stamp, "ContextTokens": prompt, "GeneratedTokens": output}


def mooncake_row(random: Random, number: int, now_s: float, prompt: int, output: int) -> dict[str, Any]:
    """A row as Mooncake published it; four prompts begin alike."""
    hashes = [random.randrange(4) if k < 2 else 10 * number + k for k in range(-(-prompt // 64))]
    return {"timestamp": int(1000 * now_s), "input_length": prompt, "output_length": output, "hash_ids": hashes}


TABLE = {
    "columns": {"class_name": "class", "prefix_id": "prefix", "num_prefix_tokens": "num_prefix", "session_id": "session"},
    "time_unit": "s",
}


def table_row(random: Random, number: int, now_s: float, prompt: int, output: int) -> dict[str, Any]:
    """A row with a class, and perhaps a prefix and a session."""
    name = random.choice("ab") if number > 1 else "ab"[number]  # both occur
    shared = {"prefix": random.choice([None, "p", "q"]), "num_prefix": min(prompt, 90), "session": random.choice([None, 1, 2])}
    return {"arrived_at_s": now_s, "num_prompt_tokens": prompt, "num_output_tokens": output, "class": name, **shared}
