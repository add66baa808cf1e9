"""The picture of a day: demand against ready capacity, and the latencies that follow from it; runs side by side."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, MultipleLocator, NullLocator

from experiments.calibrated import BOUND, BOUND_NOTE
from experiments.pages.figures import duration, share, span
from experiments.results import shortage
from experiments.results.summary_table import METRICS

MAX_RUNS = 4
"""Runs that fit side by side."""

_Array = np.ndarray[Any, Any]
_MAX_POINTS = 300
INK, FAINT, GRID = "#1f2933", "#7b8794", "#e4e7eb"
_DEMAND, _CAPACITY, _SHORTAGE, _TARGET = "#1f2933", "#2f7ed8", "#d64545", "#d64545"
_SHADES = {"p50": "#9fb3c8", "p90": "#486581", "p99": "#102a43"}
_ROWS = (("ttft", "Time to first token"), ("tpot", "Time per output token"))


@dataclass(frozen=True)
class _Day:
    """What is drawn of one run."""

    label: str
    timeline: shortage.Rows  # the rows of the whole fleet, at least one
    summary: dict[str, Any]

    @property
    def measured(self) -> shortage.Rows:
        """The rows of the window that the summary is about."""
        rows = shortage.measured(self.timeline, self.summary["window"])
        return rows if rows.size else self.timeline

    @property
    def edges(self) -> _Array:
        """(n + 1,) bounds of the intervals in the chosen unit of time."""
        seconds = [*self.timeline["start_s"], self.timeline["end_s"][-1]]
        return np.asarray(seconds) / _unit(self.timeline)[0]


def day(folders: Sequence[Path], out: Path, labels: Sequence[str] | None = None) -> Path:
    """Draws at most `MAX_RUNS` runs side by side on the same scales, and returns `out`.

    Args:
        folders: result folders, with timeline.parquet and summary.json.
        out: the PNG to write; its folder is made.
        labels: titles; the folders' names otherwise.
    """
    names = labels or [folder.name for folder in folders]
    days = [_read(folder, name) for folder, name in zip(folders, names, strict=True)][:MAX_RUNS]
    spacing = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.06, hspace=0.03)
    figure = Figure(figsize=(1.2 + 5.6 * len(days), 8.2), layout=spacing, facecolor="white")
    axes = figure.subplots(3, len(days), squeeze=False, sharex=True, sharey="row", height_ratios=[1.5, 1, 1])
    for column, one in enumerate(days):
        _draw_capacity(axes[0, column], one)
        for row, (metric, name) in enumerate(_ROWS, start=1):
            _draw_latency(axes[row, column], one, metric)
            if column == 0:
                axes[row, column].set_ylabel(f"{name}", color=INK)
        for row in range(3):
            _shade_unmeasured(axes[row, column], one, says_so=row == 0)
        axes[2, column].set_xlabel(_unit(one.timeline)[1], color=INK)
    axes[0, 0].set_ylabel("Requests/s", color=INK)
    _finish_scales(axes, days)
    figure.align_ylabels(axes[:, 0])
    footnote(figure, _bounds(days))
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130, metadata={"Software": None})
    return out


def footnote(figure: Figure, text: str) -> None:
    """Writes a line below the picture, on the left; nothing where there is nothing to say."""
    if text:
        figure.supxlabel(text, x=0.01, ha="left", fontsize=8.5, color=FAINT)


def _bounds(days: Sequence["_Day"]) -> str:
    """Says which of the runs have step times that are a bound."""
    bound = [one.label for one in days if BOUND in one.summary["step_times"].values()]
    if not bound:
        return ""
    whose = "Step times" if len(bound) == len(days) else f"Step times of {', '.join(bound)}"
    return f"{whose} are {BOUND_NOTE}."


def facts(folders: Sequence[Path]) -> list[str]:
    """Returns the lines below the title of each run in the picture."""
    return [_facts(_read(folder, folder.name)) for folder in folders]


def _read(folder: Path, label: str) -> _Day:
    whole = shortage.fleet_rows(folder)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    if not whole.size:  # the run ended as it began: drawn as a second of nothing
        whole, label = np.full(1, np.nan, shortage.ROW), f"{label}: nothing happened"
        for name, value in {"start_s": 0.0, "end_s": 1.0, "arrivals": 0, "demand_per_s": 0.0, "judged": 0}.items():
            whole[name] = value
    # Nothing arrives while a run drains, so its end is no part of the day.
    with_arrivals = np.flatnonzero(whole["arrivals"])
    return _Day(label, whole[: with_arrivals[-1] + 1] if with_arrivals.size else whole, summary)


def _unit(timeline: shortage.Rows) -> tuple[float, str]:
    """Seconds in the unit of the time axis, and its name."""
    span_s = timeline["end_s"][-1]
    if span_s > 3 * 86400:
        return 86400.0, "Day"
    if span_s > 3 * 3600:
        return 3600.0, "Hour"
    return (60.0, "Minute") if span_s > 180 else (1.0, "Second")


def _draw_capacity(axes: Axes, one: _Day) -> None:
    """Demand as a line, ready capacity as an area, and the shortage between them in red."""
    columns = np.column_stack([one.timeline["demand_per_s"], one.timeline["capacity_per_s"]])
    top, ready = np.vstack([columns, columns[-1:]]).T  # an area with steps wants the last value twice
    area = partial(axes.fill_between, one.edges, step="post", linewidth=0)
    area(ready, color=_CAPACITY, alpha=0.14)
    area(0, 1, where=top > ready, color=_SHORTAGE, alpha=0.08, transform=axes.get_xaxis_transform())
    area(ready, top, where=top > ready, color=_SHORTAGE, alpha=0.75, label="shortage", zorder=3)
    edges, (demand, capacity) = _coarser(one.edges, columns)
    axes.stairs(capacity, edges, color=_CAPACITY, linewidth=1.5, label="ready capacity", zorder=4, baseline=None)
    axes.stairs(demand, edges, color=_DEMAND, linewidth=1.1, label="demand", zorder=5, baseline=None)
    lines = _facts(one)
    axes.set_title(one.label, loc="left", fontsize=14, fontweight="bold", color=INK, pad=12 + 13 * (1 + lines.count("\n")))
    axes.text(0, 1.02, lines, transform=axes.transAxes, fontsize=9.5, color=FAINT, va="bottom")
    style(axes)


def _shade_unmeasured(axes: Axes, one: _Day, says_so: bool) -> None:
    """Greys out what the summary leaves out."""
    unit_s = _unit(one.timeline)[0]
    starts_at = one.measured["start_s"][0] / unit_s
    if starts_at > 0:
        axes.axvspan(0, starts_at, color=FAINT, alpha=0.12, linewidth=0, zorder=0)
    if starts_at > 0 and says_so:
        place = (starts_at, 0.86)
        axes.annotate("not measured ", place, xycoords=("data", "axes fraction"), ha="right", fontsize=8.5, color=FAINT)
    ends_at = one.measured["end_s"][-1] / unit_s
    axes.axvspan(ends_at, max(ends_at, one.edges[-1]), color=FAINT, alpha=0.12, linewidth=0, zorder=0)


def _coarser(edges: _Array, columns: _Array) -> tuple[_Array, _Array]:
    """Edges and columns, averaged over neighbours until a line of them is no longer a blur."""
    width = -(-len(columns) // _MAX_POINTS)
    starts = np.arange(0, len(columns), width)
    sizes = np.diff([*starts, len(columns)])
    return edges[[*starts, -1]], (np.add.reduceat(columns, starts) / sizes[:, None]).T


def _facts(one: _Day) -> str:
    """Lines that say what the measured part of the picture shows: capacity and cost, then the targets, if there are any."""
    found = shortage.shortage(one.measured)
    cost = one.summary["all"]["cost"]
    digits = 0 if max(cost["dollars"] or 0, cost["gpu_hours"]) >= 100 else 2
    has_price = cost["dollars"] is not None
    price = f"${cost['dollars']:,.{digits}f}" if has_price else f"{cost['gpu_hours']:,.{digits}f} GPU-hours"
    lines = [[_for_how_long(found.over_capacity_s, "demand {} over capacity"), price]]
    attainment = one.summary["all"]["attainment"]
    if attainment is not None:
        worst = "" if math.isnan(found.worst_hour) else f", worst hour {share(found.worst_hour, 1)}"
        within = f"{share(attainment, 1)} of requests within targets{worst}"
        lines.append([_for_how_long(found.out_of_target_s, "{} out of target"), within])
    lines.append([*_beside_requests(one.summary)])
    return "\n".join("   ·   ".join(facts) for facts in lines if facts)


def _beside_requests(summary: dict[str, Any]) -> Iterator[str]:
    """What became of the targets that no request was held to."""
    for target in summary["targets"]:
        if target["metric"] == "itl_s" and target["met"] is not None:
            yield f"ITL {target['percentile']} {'met' if target['met'] else 'missed'}"
    unknown = [f"{METRICS[target['metric']]} {target['percentile']}" for target in summary["targets"] if target["met"] is None]
    if unknown:
        yield f"{unknown[0] if len(unknown) == 1 else f'{len(unknown)} targets'} not measurable"


def _for_how_long(seconds: float, text: str) -> str:
    """Says how long something was so.

    >>> [_for_how_long(x, "{} out of target") for x in (0, 45, 5400, float("nan"))]
    ['never out of target', '45 s out of target', '90 min out of target', 'not known if ever out of target']
    """
    if math.isnan(seconds):
        return text.format("not known if ever")
    if seconds == 0:
        return text.format("never")
    return text.format(span(seconds))


def _draw_latency(axes: Axes, one: _Day, metric: str) -> None:
    """Percentiles of the requests that arrived in each interval, and the target's line."""
    for percentile, shade in _SHADES.items():
        values = one.timeline[f"{metric}_{percentile}_s"]
        axes.stairs(values, one.edges, color=shade, linewidth=1.0, label=percentile, baseline=None)
    for target in one.summary["targets"]:
        if target["metric"] == f"{metric}_s" and target["scope"] == "all":
            axes.axhline(target["limit_s"], color=_TARGET, linewidth=1.1, linestyle=(0, (5, 3)), zorder=1)
            axes.annotate(
                f"target {target['percentile']}", (1, target["limit_s"]), xycoords=("axes fraction", "data"),
                xytext=(-3, 3), textcoords="offset points", ha="right", fontsize=8.5, color=_TARGET, zorder=6,
                path_effects=[withStroke(linewidth=3, foreground="white")],
            )  # fmt: skip
    if metric == "ttft":  # a queue makes it a thousand times longer
        axes.set_yscale("log")
        mark_1_2_5(axes.yaxis)
    axes.yaxis.set_major_formatter(FuncFormatter(duration))
    style(axes)


def mark_1_2_5(axis: Axis, *, has_room: bool = True) -> None:
    """Puts ticks at 1, 2 and 5 of every decade of a logarithmic axis, without room at 1 alone, and durations beside them."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if has_room else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(duration))


def style(axes: Axes) -> None:
    """Gives axes the look of all our pictures."""
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(colors=FAINT, length=0, labelcolor=INK)


def _finish_scales(axes: _Array, days: Sequence[_Day]) -> None:
    """Legends once, zero at the bottom of the capacity row, round hours below."""
    axes[0, 0].set_ylim(0, axes[0, 0].get_ylim()[1] * 1.14)  # room for the legend
    unit = _unit(days[0].timeline)[1]
    for one in axes[2]:
        one.xaxis.set_major_locator(MultipleLocator(3) if unit == "Hour" else MaxNLocator(8, integer=True))
    axes[0, 0].set_xlim(0, max(float(one.edges[-1]) for one in days))
    legend = {"frameon": False, "fontsize": 9, "ncols": 3, "labelcolor": INK, "loc": "upper left", "handlelength": 1.4}
    handles, names = axes[0, 0].get_legend_handles_labels()
    axes[0, 0].legend(handles[::-1], names[::-1], **legend)
    axes[1, 0].legend(**legend)
    limits = [t["limit_s"] for one in days for t in one.summary["targets"] if t["metric"] == "ttft_s"]
    bottom, top = axes[1, 0].get_ylim()
    axes[1, 0].set_ylim(min([bottom, *limits]) / 1.3, max([top, *limits]) * 3)
    axes[2, 0].set_ylim(0, axes[2, 0].get_ylim()[1] * 1.1)
