"""The two pictures of a plan: what each layout gives a user and a GPU, and a day's demand against what is ready for it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MultipleLocator

from experiments.plots import footnote
from planning.layouts import Layout
from planning.plans.day import PlannedDay
from planning.plans.fleets import Fleet, Option

_INK, _FAINT, _GRID, _TARGET = "#1f2933", "#7b8794", "#e4e7eb", "#d64545"
_COLOURS = ("#2f7ed8", "#e8823a", "#3c9d6d", "#8a5cc2", "#b0413e", "#52606d", "#c2a11f", "#d36ba6")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">")
_POLICY_COLOURS = {"fixed": "#9fb3c8", "reactive": "#e8823a", "forecast": "#2f7ed8"}


def pareto(
    options: Sequence[Option],
    instances: dict[str, Any],
    tpot_s: float | None,
    chosen: Fleet,
    out: Path,
    note: str = "",
) -> None:
    """Draws tokens/s/user against tokens/s/GPU: for each layout a curve over its batches, from one request to a full cache.

    Args:
        options: the GPUs with their layouts.
        instances: of each layout that can run, by GPU and layout name.
        tpot_s: the target, drawn as the slowest user allowed.
        chosen: the plan's fleet, marked.
        out: the PNG to write.
        note: a line below it.
    """
    figure = Figure(figsize=(9.4, 5.0), layout="constrained", facecolor="white")
    axes = figure.subplots()
    able = {f"{made.gpu} {made.name}": made for option in options for made in option.layouts if not made.problem}
    for index, (name, made) in enumerate(able.items()):
        curve = _curve(instances[name], made, chosen.demand.context_tokens)
        is_chosen = name == f"{chosen.hardware.gpu.name} {chosen.layout.name}"
        colour, marker = look(index)
        width = 2.4 if is_chosen else 1.4
        axes.plot(*curve, color=colour, linewidth=width, marker=marker, markersize=5, markevery=8, label=name)
        axes.plot(curve[0][-1], curve[1][-1], marker=marker, color=colour, markersize=10 if is_chosen else 6)
        if is_chosen:
            _annotate(axes, f"the plan: {made.name}, {made.batch:,} requests", (curve[0][-1], curve[1][-1]))
    if tpot_s is not None:
        axes.axvline(1 / tpot_s, color=_TARGET, linewidth=1.1, linestyle=(0, (5, 3)))
        place = (1 / tpot_s, 1)
        axes.annotate(
            f" TPOT {tpot_s * 1000:g} ms", place, xycoords=("data", "axes fraction"), va="top", fontsize=9, color=_TARGET
        )
    axes.set_xlabel("output tokens/s of each user", color=_INK)
    axes.set_ylabel("output tokens/s of each GPU", color=_INK)
    axes.set_ylim(0, None)
    axes.set_xlim(0, None)
    num_columns = -(-len(able) // 24)
    figure.legend(loc="outside right center", frameon=False, fontsize=9, labelcolor=_INK, ncols=num_columns)
    _style(axes)
    footnote(figure, note)
    figure.savefig(out, dpi=130, metadata={"Software": None})


def look(index: int) -> tuple[str, Any]:
    """Returns the colour and the marker of the n-th of several curves; no two have both alike, however many there are.

    >>> len({look(index) for index in range(500)})
    500
    >>> look(0), look(8)
    (('#2f7ed8', 'o'), ('#2f7ed8', 's'))
    """
    row, column = divmod(index, len(_COLOURS))
    star = (row - len(_MARKERS) + 3, 1, 0)  # of more and more points
    return _COLOURS[column], _MARKERS[row] if row < len(_MARKERS) else star


def _annotate(axes: Axes, text: str, place: tuple[float, float]) -> None:
    halo = [withStroke(linewidth=3, foreground="white")]
    axes.annotate(text, place, (8, 10), textcoords="offset points", color=_INK, fontsize=9.5, path_effects=halo)


def _curve(instance: Any, made: Layout, context_tokens: float) -> tuple[Any, Any]:
    """Tokens/s of a user and of a GPU for batches from 1 to the layout's own."""
    batches = np.unique(np.geomspace(1, made.batch, 40).round().astype(int))
    steps_s = np.array([instance.step_s(int(batch), context_tokens) for batch in batches])
    return 1 / steps_s, batches / steps_s / made.num_gpus


def day(planned: PlannedDay, out: Path, note: str = "") -> None:
    """Draws demand against the capacity that is ready under each policy; shortage in red."""
    figure = Figure(figsize=(8.6, 4.6), layout="constrained", facecolor="white")
    axes = figure.subplots()
    unit_s, unit = (3600.0, "hour") if planned.edges_s[-1] > 7200 else (60.0, "minute")
    edges = planned.edges_s / unit_s
    for one in planned.policies:
        axes.stairs(
            one.capacity_per_s,
            edges,
            color=_POLICY_COLOURS[one.policy],
            linewidth=1.7,
            label=f"ready: {one.policy}",
            baseline=None,
        )
        short = planned.demand_per_s > one.capacity_per_s
        top, ready = (np.append(values, values[-1]) for values in (planned.demand_per_s, one.capacity_per_s))
        axes.fill_between(
            edges, ready, top, where=np.append(short, short[-1]), step="post", color=_TARGET, alpha=0.6, linewidth=0
        )
    axes.stairs(planned.demand_per_s, edges, color=_INK, linewidth=1.5, label="demand", baseline=None)
    axes.set_xlabel(unit, color=_INK)
    axes.set_ylabel("requests/s", color=_INK)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, 1.18 * max(float(one.capacity_per_s.max()) for one in planned.policies))
    if unit == "hour" and edges[-1] <= 48:
        axes.xaxis.set_major_locator(MultipleLocator(3))
    axes.legend(frameon=False, fontsize=9, ncols=4, loc="upper left", labelcolor=_INK)
    _style(axes)
    footnote(figure, note)
    figure.savefig(out, dpi=130, metadata={"Software": None})


def _style(axes: Axes) -> None:
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_FAINT)
    axes.tick_params(colors=_FAINT, length=0, labelcolor=_INK)
