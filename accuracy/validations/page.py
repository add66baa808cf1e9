"""The page of a validation: one table of errors for each load band, what was allowed for, and sim-against-real pictures."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from accuracy.errors import LATENCIES, RATES, STATISTICS, Measures
from accuracy.validations.config import Validate
from experiments.pages.figures import percent
from experiments.pages.tables import markdown
from experiments.plots import INK, mark_1_2_5, style
from experiments.results.summary_table import METRICS
from replicas.calibration.file import Calibration

_REAL, _SIMULATED = "#1f2933", "#d64545"
_LABELS = {
    **METRICS,
    "requests_per_s": "requests/s",
    "output_tokens_per_s": "output tokens/s",
    "cached_token_share": "prompt tokens from the cache",
    "preemptions_per_request": "preemptions",
}


class Page(NamedTuple):
    """What the page is made of."""

    name: str
    config: Validate
    calibration: Calibration
    rows: list[dict[str, Any]]  # accuracy.errors.COLUMNS
    notes: list[str]


def write_page(page: Page, folder: Path) -> None:
    """Writes report.md."""
    (folder / "report.md").write_text("\n".join(_lines(page)) + "\n", encoding="utf-8")


def _lines(page: Page) -> Iterator[str]:
    table = pd.DataFrame(page.rows)
    one = page.calibration
    yield f"# {page.name}: simulated against real\n"
    engine = f"{one.engine} {one.engine_version or ''}, {one.model.name}, {one.dtype}, {one.gpu.name}"
    yield f"Step times: {page.config.calibration} ({engine};"
    yield f"{one.source}).\n"
    yield "Each cell is simulated / real - 1. A bold one is further off than both the tolerance of "
    yield f"{percent(page.config.tolerance, 0)} and what two real runs of the workload differ by.\n"
    yield "![TTFT, TPOT and E2E, real and simulated](plots/distributions.png)\n"
    yield from _drift(page, table)
    yield from _errors(table)
    yield from _mean_errors(table)
    if page.config.follow_drift_s is not None:
        yield f"The same when the simulated machine's speed follows the recorded one, every {page.config.follow_drift_s:g} s:"
        yield "no prediction, but what is left is not the machine's drift.\n"
        yield from _errors(table, "followed_error")
    for note in page.notes:
        yield f"! {note}"


def _drift(page: Page, table: pd.DataFrame) -> Iterator[str]:
    words = {"none": "No allowance for drift of the machine.", "one": "One scalar for the machine's drift in all recordings:",
             "each": "One scalar for the machine's drift in each recording, from its recorded steps:"}  # fmt: skip
    scales = table.drop_duplicates("recording")[["recording", "step_time_scale"]]
    given = ", ".join(f"{name} x {scale:.3f}" for name, scale in scales.itertuples(index=False))
    yield f"{words[page.config.drift]}{'' if page.config.drift == 'none' else ' ' + given + '.'}\n"


def _errors(table: pd.DataFrame, error: str = "error") -> Iterator[str]:
    """One table: a row for each metric and statistic, a column for each recording, and what real runs differ by."""
    once = table.drop_duplicates("recording").sort_values("busy_share")
    heads = [_head(name, busy_share) for name, busy_share in zip(once["recording"], once["busy_share"], strict=True)]
    lines = []
    for label, rows in _rows(table):
        by_name = rows.set_index("recording")
        cells = [_cell(by_name.loc[name], error) if name in by_name.index else "" for name in once["recording"]]
        spread = rows["repeat_spread"].max()
        lines.append([label, *cells, percent(spread) if np.isfinite(spread) else "not known"])
    yield markdown(["", *heads, "two real runs"], lines) + "\n"


def _head(name: str, busy_share: float) -> str:
    return f"{name} ({percent(busy_share, 0)} busy)" if np.isfinite(busy_share) else name


def _rows(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yields the rows of each metric and statistic that there are, with a label."""
    for metric in (*LATENCIES, *RATES):
        for statistic in STATISTICS:
            rows = table[(table["metric"] == metric) & (table["statistic"] == statistic)]
            if not rows.empty:
                yield (f"{_LABELS[metric]} {statistic}" if metric in LATENCIES else _LABELS[metric]), rows


def _cell(row: Any, error: str) -> str:
    if not np.isfinite(row[error]):
        return ""
    text = percent(row[error], sign="+")
    return text if error != "error" or row["is_within"] else f"**{text}**"


def _mean_errors(table: pd.DataFrame) -> Iterator[str]:
    """Mean absolute errors: of every band, of all recordings, and of all when the machine's speed is followed."""
    bands = [*table.sort_values("busy_share")["band"].drop_duplicates()]
    is_followed = table["followed_error"].notna().any()
    heads = [*bands, "all", *(["all, drift followed"] if is_followed else [])]
    lines = []
    for label, rows in _rows(table):
        cells = [rows[rows["band"] == band]["error"].abs().mean() for band in bands] + [rows["error"].abs().mean()]
        cells += [rows["followed_error"].astype(float).abs().mean()] if is_followed else []
        lines.append([label, *("" if np.isnan(cell) else percent(cell) for cell in cells)])
    yield markdown(["mean absolute error", *heads], lines) + "\n"


def draw(cases: Sequence[tuple[str, Measures, Measures]], folder: Path) -> None:
    """Draws, for each recording, how TTFT, TPOT and E2E are distributed, real and simulated."""
    folder.mkdir(parents=True, exist_ok=True)
    metrics = ("ttft_s", "tpot_s", "e2e_s")
    figure = Figure(figsize=(11.5, 0.7 + 2.3 * len(cases)), layout="constrained", facecolor="white")
    axes = figure.subplots(len(cases), len(metrics), squeeze=False)
    for row, (name, real, simulated) in enumerate(cases):
        for column, metric in enumerate(metrics):
            one = axes[row, column]
            _distribution(one, real.latencies.get(metric, np.empty(0)), _REAL, "real")
            _distribution(one, simulated.latencies.get(metric, np.empty(0)), _SIMULATED, "simulated")
            one.set_xscale("log")
            mark_1_2_5(one.xaxis)
            one.set_ylim(0, 1)
            style(one)
            if column == 0:
                one.set_ylabel(f"{name}\nshare of requests", color=INK)
            if row == 0:
                one.set_title(_LABELS[metric], loc="left", color=INK, fontweight="bold")
    axes[0, 0].legend(frameon=False, labelcolor=INK, loc="lower right")
    figure.savefig(folder / "distributions.png", dpi=110, metadata={"Software": None})


def _distribution(axes: Axes, values: Any, color: str, label: str) -> None:
    ordered = np.sort(values[np.isfinite(values)])
    if ordered.size:
        axes.step(ordered, np.arange(1, ordered.size + 1) / ordered.size, where="post", color=color, linewidth=1.3, label=label)
