"""The page of a validation: one table of errors for each load band, what was allowed for, and sim-against-real pictures."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.errors import LATENCIES, RATES, STATISTICS, Measures
from experiments.plots import FAINT, INK, style
from experiments.summary_table import METRICS
from experiments.validate_config import Validate
from replicas.calibration.file import Calibration

_REAL, _SIMULATED = "#1f2933", "#d64545"
_LABELS = {**METRICS, "requests_per_s": "requests/s", "output_tokens_per_s": "output tokens/s"}


class Page(NamedTuple):
    """What the page is made of."""

    name: str
    config: Validate
    calibration: Calibration
    rows: list[dict[str, Any]]  # experiments.errors.COLUMNS
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
    yield f"{page.config.tolerance:.0%} and what two real runs of the workload differ by.\n"
    yield from _drift(page, table)
    yield from _errors(table)
    yield from _mean_errors(table)
    for note in page.notes:
        yield f"! {note}"


def _drift(page: Page, table: pd.DataFrame) -> Iterator[str]:
    words = {"none": "No allowance for drift of the machine.", "one": "One scalar for the machine's drift in all recordings:",
             "each": "One scalar for the machine's drift in each recording, from its recorded steps:"}  # fmt: skip
    scales = table.drop_duplicates("recording")[["recording", "step_time_scale"]]
    given = ", ".join(f"{name} x {scale:.3f}" for name, scale in scales.itertuples(index=False))
    yield f"{words[page.config.drift]}{'' if page.config.drift == 'none' else ' ' + given + '.'}\n"


def _errors(table: pd.DataFrame) -> Iterator[str]:
    """One table: a row for each metric and statistic, a column for each recording, and the spread of real runs."""
    names = [*table.drop_duplicates("recording").sort_values("busy_share")["recording"]]
    busy = table.drop_duplicates("recording").set_index("recording")["busy_share"]
    heads = [f"{name} ({busy[name]:.0%} busy)" if np.isfinite(busy[name]) else name for name in names]
    yield f"| | {' | '.join(heads)} | two real runs |"
    yield "|---|" + "---:|" * (len(names) + 1)
    for metric in (*LATENCIES, *RATES):
        for statistic in STATISTICS:
            rows = table[(table["metric"] == metric) & (table["statistic"] == statistic)].set_index("recording")
            if rows.empty:
                continue
            cells = [_cell(rows.loc[name]) if name in rows.index else "" for name in names]
            spread = rows["repeat_spread"].max()
            label = f"{_LABELS[metric]} {statistic}" if metric in LATENCIES else _LABELS[metric]
            yield f"| {label} | {' | '.join(cells)} | {f'{spread:.1%}' if np.isfinite(spread) else 'not known'} |"
    yield ""


def _cell(row: Any) -> str:
    text = f"{row['error']:+.1%}"
    return text if row["is_within"] else f"**{text}**"


def _mean_errors(table: pd.DataFrame) -> Iterator[str]:
    """Mean absolute errors: of every band, and of all recordings."""
    bands = [*table.sort_values("busy_share")["band"].drop_duplicates()]
    yield f"| mean absolute error | {' | '.join(bands)} | all |"
    yield "|---|" + "---:|" * (len(bands) + 1)
    for metric in (*LATENCIES, *RATES):
        for statistic in STATISTICS:
            rows = table[(table["metric"] == metric) & (table["statistic"] == statistic)]
            if rows.empty:
                continue
            cells = [rows[rows["band"] == band]["error"].abs().mean() for band in bands] + [rows["error"].abs().mean()]
            label = f"{_LABELS[metric]} {statistic}" if metric in LATENCIES else _LABELS[metric]
            yield f"| {label} | {' | '.join('' if np.isnan(cell) else f'{cell:.1%}' for cell in cells)} |"
    yield ""


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
            one.set_ylim(0, 1)
            style(one)
            if column == 0:
                one.set_ylabel(f"{name}\nshare of requests", color=INK)
            if row == 0:
                one.set_title(_LABELS[metric], loc="left", color=INK, fontweight="bold")
            if row == len(cases) - 1:
                one.set_xlabel("seconds", color=FAINT)
    axes[0, 0].legend(frameon=False, labelcolor=INK, loc="lower right")
    figure.savefig(folder / "distributions.png", dpi=110, metadata={"Software": None})


def _distribution(axes: Axes, values: Any, color: str, label: str) -> None:
    ordered = np.sort(values[np.isfinite(values)])
    if ordered.size:
        axes.step(ordered, np.arange(1, ordered.size + 1) / ordered.size, where="post", color=color, linewidth=1.3, label=label)
