"""Several seeds of one experiment: means with confidence intervals, and differences between variants on the same traffic."""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.pages.figures import percent
from experiments.pages.tables import columns

CONFIDENCE = 0.95

Seeds = dict[int, dict[str, Any]]
"""Summary of each seed."""


class Interval(NamedTuple):
    """A mean and how far from it the true one may lie."""

    mean: float
    half_width: float


_ROWS: dict[str, tuple[Callable[[Mapping[str, Any]], float | None], str]] = {
    "TTFT p50, ms": (lambda run: _ms(run["ttft_s"]["p50"]), ",.1f"),
    "TTFT p99, ms": (lambda run: _ms(run["ttft_s"]["p99"]), ",.1f"),
    "TPOT p50, ms": (lambda run: _ms(run["tpot_s"]["p50"]), ",.2f"),
    "TPOT p99, ms": (lambda run: _ms(run["tpot_s"]["p99"]), ",.2f"),
    "E2E p99, ms": (lambda run: _ms(run["e2e_s"]["p99"]), ",.0f"),
    "requests within targets, %": (lambda run: None if run["attainment"] is None else run["attainment"] * 100, ".3f"),
    "dollars": (lambda run: run["cost"]["dollars"], ",.2f"),
}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def interval(values: Sequence[float]) -> Interval:
    """Returns the mean of independent replications and its confidence interval's half width (Student's t).

    >>> mean, half_width = interval([9.0, 10.0, 11.0])
    >>> round(mean, 3), round(half_width, 3)  # 4.303 * 1 / sqrt(3)
    (10.0, 2.484)
    """
    from scipy import stats  # here: most commands run one seed, and its import takes longer than a short run

    n = len(values)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
    return Interval(math.fsum(values) / n, quantile * statistics.stdev(values) / math.sqrt(n))


def table(folders: Sequence[Path], width: int | None = None) -> str:
    """Returns the variants that ran with two seeds or more side by side, or '' when there are none.

    Below the means stand the differences from the first variant, seed by seed on the same traffic, so that what the seeds
    have in common cancels. An interval around zero is "no difference": the seeds do not tell the two apart.
    """
    variants = {name: seeds for name, seeds in _variants(folders).items() if len(seeds) > 1}
    if not variants:
        return ""
    names = list(variants)
    rows = [("mean over seeds", [f"{name} (n={len(variants[name])})" for name in names])]
    rows += [(label, [_mean(variants[name], label) for name in names]) for label in _ROWS]
    if len(names) > 1:
        rows.append((f"against {names[0]}, same traffic", ["", *names[1:]]))
        first = variants[names[0]]
        rows += [(label, ["", *(_difference(first, variants[name], label) for name in names[1:])]) for label in _ROWS]
    return f"{percent(CONFIDENCE, 0)} confidence\n{columns(rows, width)}"


def _variants(folders: Sequence[Path]) -> dict[str, Seeds]:
    """Runs by what was swept besides the seed; a folder that does not say its seed is left out."""
    found: dict[str, Seeds] = {}
    for folder in (one for one in folders if (one / "manifest.json").exists()):
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        name = ",".join(label for axis, label in manifest["axes"].items() if axis not in ("seed", "seeds")) or "all seeds"
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        found.setdefault(name, {})[manifest["seed"]] = summary["all"]
    return found


def _values(seeds: Seeds, label: str) -> dict[int, float]:
    read = _ROWS[label][0]
    return {seed: value for seed, run in seeds.items() if (value := read(run)) is not None}


def _mean(seeds: Seeds, label: str) -> str:
    values = _values(seeds, label)
    if len(values) < max(2, len(seeds)):
        return "-"
    return _shown(interval(list(values.values())), _ROWS[label][1])


def _difference(first: Seeds, other: Seeds, label: str) -> str:
    mine, theirs = _values(first, label), _values(other, label)
    common = sorted(set(first) & set(other))
    if len(common) < 2 or not set(common) <= set(mine) & set(theirs):
        return "-"
    found = interval([theirs[seed] - mine[seed] for seed in common])
    verdict = "no difference" if abs(found.mean) <= found.half_width else ("lower" if found.mean < 0 else "higher")
    return f"{_shown(found, '+' + _ROWS[label][1])} {verdict}"


def _shown(found: Interval, form: str) -> str:
    return f"{found.mean:{form}} ± {found.half_width:{form.lstrip('+')}}"
