"""The picture of a validation on served results: simulated against served means, and how far off each is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter
from numpy.typing import NDArray

from accuracy.errors import Measures
from experiments.pages.figures import percent
from experiments.plots import FAINT, GRID, INK, mark_1_2_5, style

METRICS = (("ttft_s", "Time to first token", 0.10), ("tpot_s", "Time per output token", 0.05), ("e2e_s", "End to end", 0.05))
"""What is drawn of each result, by its mean, and the error within which it should be."""

_MOST_SHOWN = 0.5
"""Errors beyond this are drawn at the edge."""

_LEAST_RATIO, _MOST_TICKS_RATIO = 6.0, 120.0
"""Axes span no less than this, and are marked at decades alone where they span more than that."""

_MARKS: tuple[tuple[bool, str, dict[str, Any]], ...] = (
    (False, "held out", {"color": "#2f7ed8"}),
    (True, "fitted", {"markerfacecolor": "none", "markeredgecolor": FAINT}),
)
Floats = NDArray[np.float64]


class Point(NamedTuple):
    """One result."""

    real: Measures
    simulated: Measures
    is_fitted: bool


def draw(points: Sequence[Point], out: Path) -> None:
    """Draws the results' means of TTFT, TPOT and E2E; those to which the step times were fitted are hollow."""
    figure = Figure(figsize=(12.5, 6.4), layout="constrained", facecolor="white")
    axes = figure.subplots(2, len(METRICS), sharex="col", height_ratios=[2.2, 1])
    for column, (metric, label, target) in enumerate(METRICS):
        values = np.array([(one.real.value(metric, "mean"), one.simulated.value(metric, "mean")) for one in points])
        is_there = np.isfinite(values).all(axis=1)
        real, simulated = values[is_there].T
        is_fitted = np.array([one.is_fitted for one in points])[is_there]
        axes[0, column].set_title(label, loc="left", color=INK, fontweight="bold")
        if real.size:
            _against(axes[0, column], real, simulated, is_fitted)
            _errors(axes[1, column], real, simulated / real - 1, is_fitted, target)
    axes[0, 0].set_ylabel("simulated, mean", color=INK)
    axes[1, 0].set_ylabel("simulated / served - 1", color=INK)
    filled = [one for one in axes[0] if one.get_legend_handles_labels()[0]]
    for one in filled[:1]:  # a report may lack a metric
        one.legend(frameon=False, labelcolor=INK, loc="upper left")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120, metadata={"Software": None})


def _against(axes: Axes, real: Floats, simulated: Floats, is_fitted: NDArray[np.bool_]) -> None:
    smallest, largest = min(real.min(), simulated.min()), max(real.max(), simulated.max())
    margin = max(1.25, float(np.sqrt(_LEAST_RATIO * smallest / largest)))
    ends = (smallest / margin, largest * margin)
    axes.plot(ends, ends, color=GRID, linewidth=1.5, zorder=1)
    for is_it, label, mark in _MARKS:
        mask = is_fitted == is_it
        if mask.any():
            axes.plot(real[mask], simulated[mask], "o", markersize=5, alpha=0.8, label=f"{label}, n = {mask.sum()}", **mark)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        _mark(axis, ends[1] / ends[0])
    style(axes)


def _errors(axes: Axes, real: Floats, error: Floats, is_fitted: NDArray[np.bool_], target: float) -> None:
    axes.axhspan(-target, target, color=GRID, alpha=0.6, linewidth=0, zorder=0)
    axes.axhline(0, color=FAINT, linewidth=0.8)
    for is_it, _, mark in _MARKS:
        mask = is_fitted == is_it
        axes.plot(real[mask], np.clip(error[mask], -_MOST_SHOWN, _MOST_SHOWN), "o", markersize=5, alpha=0.8, **mark)
    largest = min(_MOST_SHOWN, max(2 * target, float(np.abs(error).max())))
    axes.set_ylim(-1.1 * largest, 1.1 * largest)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("served, mean", color=INK)
    style(axes)
    held_out = np.abs(error[~is_fitted])
    if held_out.size:
        text = f"held out: {percent(held_out.mean())} on average, {percent(np.median(held_out))} in the median"
        axes.set_title(text, loc="left", fontsize=9.5, color=FAINT)


def _mark(axis: Axis, ratio: float) -> None:
    mark_1_2_5(axis)
    if ratio > _MOST_TICKS_RATIO:
        axis.set_major_locator(LogLocator(subs=(1,)))
        axis.set_minor_locator(NullLocator())
