"""The picture of a fit: what was measured against what the coefficients say, and what is left over time."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.plots import FAINT, GRID, INK, mark_1_2_5, style
from replicas.calibration.file import Calibration
from replicas.calibration.fit import predicted_s

_DECODES, _PREFILLS = "#2f7ed8", "#d64545"

LOWEST, HIGHEST = 0.5, 1.6
"""What the picture shows of fitted over measured; what is further off is drawn there."""


def draw_fit(steps: pd.DataFrame, calibration: Calibration, out: Path, max_graph_tokens: int = 0) -> None:
    """Draws fitted against measured device times, and their ratio in the order of the measurement."""
    fitted_s = predicted_s(steps, calibration.device_time, max_graph_tokens, calibration.mixture)
    measured_s = steps["device_s"].to_numpy(np.float64)
    is_prefill = steps["num_prefills"].to_numpy() > 0
    figure = Figure(figsize=(11, 4.6), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.4])
    _against(left, measured_s, fitted_s, is_prefill)
    _over_time(right, fitted_s / measured_s, is_prefill)
    figure.savefig(out, dpi=120, metadata={"Software": None})


def _against(axes: Axes, measured_s: np.ndarray, fitted_s: np.ndarray, is_prefill: np.ndarray) -> None:
    ends = (min(measured_s.min(), fitted_s.min()) / 1.2, max(measured_s.max(), fitted_s.max()) * 1.2)
    axes.plot(ends, ends, color=GRID, linewidth=1.2, zorder=1)
    for mask, color, label in ((~is_prefill, _DECODES, "decodes only"), (is_prefill, _PREFILLS, "with prefill")):
        axes.plot(measured_s[mask], fitted_s[mask], ".", color=color, markersize=3, alpha=0.6, label=label)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    mark_1_2_5(axes.xaxis, has_room=ends[1] < 30 * ends[0])
    mark_1_2_5(axes.yaxis)
    axes.set_xlabel("measured", color=INK)
    axes.set_ylabel("fitted", color=INK)
    axes.set_title("The device's time of a step", loc="left", color=INK, fontweight="bold")
    axes.legend(frameon=False, labelcolor=INK)
    style(axes)


def _over_time(axes: Axes, ratio: np.ndarray, is_prefill: np.ndarray) -> None:
    order = np.arange(len(ratio))
    axes.axhline(1, color=FAINT, linewidth=0.8)
    for mask, color in ((~is_prefill, _DECODES), (is_prefill, _PREFILLS)):
        axes.plot(order[mask], ratio[mask].clip(LOWEST, HIGHEST), ".", color=color, markersize=3, alpha=0.6)
    axes.set_ylim(0.98 * LOWEST, 1.01 * HIGHEST)
    axes.set_ylabel("fitted / measured, the furthest off at the edges", color=INK)
    axes.set_xlabel("step, in the order in which they were measured", color=INK)
    axes.set_title("What is left of it (waves are the machine's own drift)", loc="left", color=INK, fontweight="bold")
    style(axes)
