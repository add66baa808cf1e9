"""Holds percentiles to a baseline: what moved, by how much, and whether another seed would have moved it as far.

A baseline is a JSON file that `run_experiment.py CONFIG --write-baseline FILE` makes and a person may edit: for each
experiment (and point of its sweep) the mean over seeds of every percentile, and its standard deviation from seed to
seed. `--check FILE` allows the largest of three tolerances, declared at the top of the file.
"""

import contextlib
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.pages.figures import percent
from experiments.report import experiment_folder
from experiments.results.summary_table import METRICS
from experiments.results.tables import write_json
from sim.errors import ConfigError

TOLERANCE = {"relative": 0.02, "spreads": 3.0, "absolute_s": 1e-4}
"""Assumption: 2 % is less than anyone would act on, 3 standard deviations are seldom chance, 0.1 ms matters to nobody."""

_SHARES = ("attainment", "finished")
Values = dict[str, dict[str, Any]]


def write_baseline(folders: Sequence[Path], baseline: Path) -> None:
    """Writes `baseline` from result folders; runs that differ by nothing but their seed become one entry.

    The tolerance of a baseline that is there already was declared by a person, and stays.
    """
    tolerance = TOLERANCE
    with contextlib.suppress(ConfigError):
        tolerance = _read(baseline)["tolerance"]
    document = {"tolerance": tolerance, "experiments": measured(folders)}
    baseline.parent.mkdir(parents=True, exist_ok=True)
    write_json(baseline, document)


def check(folders: Sequence[Path], baseline: Path) -> list[str]:
    """Returns one line for every percentile that moved further than allowed; an empty list when none did.

    Args:
        folders: result folders of finished runs.
        baseline: a file of `write_baseline`.

    Raises:
        ConfigError: the baseline cannot be read, or knows none of these experiments.
    """
    document = _read(baseline)
    now, lines = measured(folders), []
    for name, values in now.items():
        if name not in document["experiments"]:
            known = ", ".join(document["experiments"]) or "nothing"
            raise ConfigError(f"{baseline}: has no '{name}'; it has: {known}. Write it anew with --write-baseline")
        was = document["experiments"][name]
        for key in dict.fromkeys([*was, *values]):
            line = _moved(key, was.get(key), values.get(key), document["tolerance"])
            lines += [f"{name}: {line}"] if line else []
    return lines


def measured(folders: Sequence[Path]) -> dict[str, Values]:
    """Returns experiment -> quantity -> mean, standard deviation and number of seeds, of the runs in `folders`."""
    samples: dict[str, dict[str, list[float | None]]] = {}
    for folder in folders:
        mine = samples.setdefault(_name(folder), {})
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        for key, value in _quantities(summary):
            mine.setdefault(key, []).append(value)
    return {name: {key: _entry(values) for key, values in mine.items()} for name, mine in samples.items()}


def _name(folder: Path) -> str:
    """Experiment and point of the sweep, without the seed."""
    root = experiment_folder(folder)
    parts = [] if root == folder else [part for part in folder.name.split(",") if not part.startswith("seed=")]
    return "/".join([root.name, ",".join(parts)]) if parts else root.name


def _quantities(summary: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Every value held to the baseline: `ttft_s p99`, `chat: ttft_s p99`, `attainment`, `finished` (a share)."""
    for prefix, scope in [("", summary["all"]), *((f"{name}: ", part) for name, part in summary["classes"].items())]:
        for metric in METRICS:
            for statistic, value in scope[metric].items():
                if statistic.startswith("p"):
                    yield f"{prefix}{metric} {statistic}", value
        yield f"{prefix}attainment", scope["attainment"]
        arrived = scope["requests"]["arrived"]
        yield f"{prefix}finished", scope["requests"]["finished"] / arrived if arrived else None


def _entry(values: list[float | None]) -> dict[str, Any]:
    """Mean and standard deviation; both null as soon as one seed has no value."""
    present = [value for value in values if value is not None]
    if len(present) < len(values):
        return {"mean": None, "spread": None, "seeds": len(values)}
    spread = statistics.stdev(present) if len(present) > 1 else None
    return {"mean": math.fsum(present) / len(present), "spread": spread, "seeds": len(present)}


def _moved(
    key: str, was: Mapping[str, Any] | None, now: Mapping[str, Any] | None, tolerance: Mapping[str, float]
) -> str | None:
    """Says that a quantity moved, or returns None."""
    if was is None or now is None:
        return f"{key} is {'new' if was is None else 'gone'}"
    before, after, spread = was["mean"], now["mean"], was["spread"]
    if before is None or after is None:
        return None if before == after else f"{key} moved from {_shown(key, before)} to {_shown(key, after)}"
    is_share = key.endswith(_SHARES)
    least = 0.0 if is_share else tolerance["absolute_s"]
    allowed = max(tolerance["relative"] * abs(before), tolerance["spreads"] * (spread or 0.0), least)
    if abs(after - before) <= allowed:
        return None
    size = percent((after - before) / before, sign="+") if before else f"{_shown(key, after - before)} more"
    return (
        f"{key} moved from {_shown(key, before)} to {_shown(key, after)} ({size}; "
        f"{_against(key, after - before, spread, was['seeds'])}; allowed: {_shown(key, allowed)})"
    )


def _against(key: str, change: float, spread: float | None, seeds: int) -> str:
    if spread is None:
        return "its spread is unknown, the baseline has one seed"
    if spread == 0:
        return f"it was the same in all {seeds} seeds"
    return f"{abs(change) / spread:.1f} times its spread of {_shown(key, spread)} over {seeds} seeds"


def _shown(key: str, value: float | None) -> str:
    if value is None:
        return "nothing"
    return percent(value, 3) if key.endswith(_SHARES) else f"{value * 1000:,.3f} ms"


def _read(baseline: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(baseline.read_text(encoding="utf-8"))
        document = {"tolerance": TOLERANCE | document["tolerance"], "experiments": document["experiments"]}
    except FileNotFoundError:
        raise ConfigError(f"{baseline}: no such file; write it with --write-baseline {baseline}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{baseline}: is no baseline ({error!r}); write one with --write-baseline") from None
    return document
