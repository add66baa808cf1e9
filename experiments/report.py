"""What a person reads at the end: runs side by side, what to know before trusting them, and where the picture is."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml

from experiments import plots, replications
from experiments.calibrated import BOUND, BOUND_MEANS
from experiments.pages.figures import percent, share
from experiments.pages.tables import columns
from experiments.results.shortage import Rows, fleet_rows, measured, shortage
from experiments.results.summary_table import METRICS
from experiments.results.timeline import ALL

Summary = dict[str, Any]
_ABSENT, _UNMEASURABLE = "-", "not measurable"

PAGE_WIDTH = 120
"""Characters of a line of the page's tables; what does not fit beside each other stands below."""


def print_summary(folders: Sequence[Path], failed: Mapping[str, Mapping[str, str]] = MappingProxyType({})) -> None:
    """Prints each experiment's runs side by side, draws its picture, and leaves both as a page, report.md.

    Args:
        folders: result folders of finished runs; runs of one experiment stand together.
        failed: of each experiment, the runs that are not among them and why.
    """
    for root, ours in groupby(folders, key=experiment_folder):
        runs = list(ours)
        print(f"\n{root.name}\n")
        print(table(runs))
        over_seeds = replications.table(runs)
        if over_seeds:
            print(f"\n{over_seeds}")
        missing = failed.get(root.name, {}).items()
        notes = [*(f"{name} failed, and is not here: {why}" for name, why in missing), *warnings(runs)]
        for note in notes:
            print(f"! {note}")
        picture = plots.day(runs, root / "plots" / "day.png")
        left_out = f" (the first {plots.MAX_RUNS} of {len(runs)} runs)" if len(runs) > plots.MAX_RUNS else ""
        page = root / "report.md"
        page.write_text("\n".join(_page(root.name, runs, notes, left_out)) + "\n", encoding="utf-8")
        print(f"\ntables   {root}\npage     {page}\npicture  {picture}{left_out}")


def _page(name: str, runs: Sequence[Path], notes: Sequence[str], left_out: str) -> Iterator[str]:
    """The same, to be read later or by others."""
    yield f"# {name}\n"
    for text in (table(runs, PAGE_WIDTH), replications.table(runs, PAGE_WIDTH)):
        if text:
            yield f"```\n{text}\n```\n"
    yield from (f"! {note}\n" for note in notes)
    if any(BOUND in _summary(run)["step_times"].values() for run in runs):
        yield f"Step times: *bound* is {BOUND_MEANS}.\n"
    yield f"![The runs over time{left_out}](plots/day.png)"


def experiment_folder(folder: Path) -> Path:
    """Returns where an experiment's results lie: the run's folder, or the one above when it is one run of several."""
    config = folder / "config.yaml"
    name = yaml.safe_load(config.read_text(encoding="utf-8"))["name"] if config.exists() else folder.name
    return folder if folder.name == name else folder.parent


def warnings(folders: Sequence[Path]) -> list[str]:
    """Returns every run's warnings, with its name where there are several runs."""
    found = [(folder.name, warning) for folder in folders for warning in _summary(folder)["warnings"]]
    return [f"{name}: {warning}" if len(folders) > 1 else warning for name, warning in found]


def table(folders: Sequence[Path], width: int | None = None) -> str:
    """Returns the runs as plain text, one column each, as many beside each other as `width` characters hold.

    A percentile with `>` before it is too low: requests that were not served are missing from it.
    """
    summaries = [_summary(folder) for folder in folders]
    rows = [(label, [_safely(cell, run) for run in summaries]) for label, cell in _rows(summaries)]
    fleets = [fleet_rows(folder) for folder in folders]
    shortages = [shortage(measured(fleet, run["window"])) for fleet, run in zip(fleets, summaries, strict=True)]
    rows.append(("minutes over capacity", [_number(one.over_capacity_s / 60, ",.1f") for one in shortages]))
    if any(run["targets"] for run in summaries):
        out_of_target = [_number(one.out_of_target_s / 60, ",.1f") for one in shortages]
        rows.append((f"minutes out of target{_aside(summaries)}", out_of_target))
        worst = [_ABSENT if math.isnan(one.worst_hour) else share(one.worst_hour) for one in shortages]
        rows.append(("worst hour within targets", worst))
    rows.append(("replicas ready, mean / most", [_replicas(fleet) for fleet in fleets]))
    return columns([("", [folder.name for folder in folders]), *rows], width)


def _summary(folder: Path) -> Summary:
    summary: Summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary


def _rows(summaries: list[Summary]) -> Iterator[tuple[str, Callable[[Summary], str]]]:
    """Labels, and how to fill the cell of a run."""
    yield "requests arrived", lambda run: f"{run['all']['requests']['arrived']:,}"
    yield "  finished", lambda run: f"{run['all']['requests']['finished']:,}"
    for status in ("rejected", "timed_out", "failed", "in_flight"):
        if any(run["all"]["requests"][status] for run in summaries):
            yield f"  {status.replace('_', ' ')}", lambda run, s=status: f"{run['all']['requests'][s]:,}"  # type: ignore[misc]
    if any(run["all"]["requests"]["never_sent"] for run in summaries):
        yield "requests never sent", lambda run: f"{run['all']['requests']['never_sent']:,}"
    yield "requests/s finished", lambda run: f"{run['all']['requests_per_s']:,.2f}"
    yield "output tokens/s", lambda run: f"{run['all']['output_tokens_per_s']:,.0f}"
    for metric, label in METRICS.items():
        for percentile in ("p50", "p99"):
            yield f"{label} {percentile}, ms", lambda run, m=metric, p=percentile: _latency(run["all"][m], p)  # type: ignore[misc]
        if metric == "itl_s":
            yield "ITL max, ms", lambda run: _latency(run["all"]["itl_s"], "max")
        yield "  of n", lambda run, m=metric: f"{run['all'][m]['n']:,}"  # type: ignore[misc]
    if any(run["step_times"] for run in summaries):
        yield "step times", lambda run: ", ".join(dict.fromkeys(run["step_times"].values()))
    yield from _target_rows(summaries)
    if any(run["all"]["cached_token_share"] is not None for run in summaries):
        yield "prompt tokens from the cache", lambda run: percent(run["all"]["cached_token_share"])
        yield "  of an endless cache for all", lambda run: percent(run["ideal_cached_token_share"])
    yield "preemptions", lambda run: f"{run['all']['num_preemptions']:,}"
    yield "GPU-hours", lambda run: f"{run['all']['cost']['gpu_hours']:,.1f}"
    yield "dollars", lambda run: f"${run['all']['cost']['dollars']:,.2f}"
    yield "$ per 1M output tokens", lambda run: f"${run['all']['cost']['dollars_per_1m_output_tokens']:,.3f}"
    yield "$ per 1M tokens in and out", lambda run: f"${run['all']['cost']['dollars_per_1m_total_tokens']:,.3f}"


def _target_rows(summaries: list[Summary]) -> Iterator[tuple[str, Callable[[Summary], str]]]:
    """One row for each target that any run has, and what they come to together."""
    keys = {_target_key(target): None for run in summaries for target in run["targets"]}
    for key in keys:
        yield _target_label(key), lambda run, k=key: _verdict(run, k)  # type: ignore[misc]
    if keys:
        yield f"requests within targets{_aside(summaries)}", lambda run: _attained(run, "attainment", share)
        yield "goodput, requests/s", lambda run: _attained(run, "goodput_per_s", "{:,.2f}".format)


def _aside(summaries: list[Summary]) -> str:
    """What no request can be held to, nor the requests of a minute: gaps are pooled over the tokens of the whole run."""
    return ", ITL aside" if any(target["metric"] == "itl_s" for run in summaries for target in run["targets"]) else ""


def _attained(run: Summary, name: str, shown: Callable[[float], str]) -> str:
    """What its requests attained of a run's targets; that no request can be held to any is not 0, and not all."""
    value = run["all"][name]
    return shown(value) if value is not None else _UNMEASURABLE if run["targets"] else _ABSENT


def _number(value: float, layout: str) -> str:
    return _ABSENT if math.isnan(value) else f"{value:{layout}}"


def _target_key(target: Summary) -> tuple[str, str, str, float]:
    return target["scope"], target["metric"], target["percentile"], target["limit_s"]


def _target_label(key: tuple[str, str, str, float]) -> str:
    scope, metric, percentile, limit_s = key
    return f"{'' if scope == ALL else scope + ': '}{METRICS[metric]} {percentile} <= {limit_s * 1000:,g} ms"


def _verdict(run: Summary, key: tuple[str, str, str, float]) -> str:
    for target in run["targets"]:
        if _target_key(target) == key:
            if target["met"] is None:
                return _UNMEASURABLE
            value = "never" if target["value_s"] is None else f"{target['value_s'] * 1000:,.1f}"
            return f"{value} {'ok' if target['met'] else 'MISSED'}"
    return _ABSENT


def _latency(metric: Summary, percentile: str) -> str:
    return f"{'>' if metric['missing'] else ''}{metric[percentile] * 1000:,.1f}"


def _safely(cell: Callable[[Summary], str], run: Summary) -> str:
    """A cell, or a dash where the value does not exist."""
    try:
        return cell(run)
    except TypeError:  # null * 1000, or null in a number's format
        return _ABSENT


def _replicas(fleet: Rows) -> str:
    whole = fleet[~np.isnan(fleet["num_ready"])]
    if not whole.size:
        return _ABSENT
    lengths_s = whole["end_s"] - whole["start_s"]
    mean = float((whole["num_ready"] * lengths_s).sum() / lengths_s.sum())
    return f"{mean:.1f} / {whole['num_ready'].max():.0f}"
