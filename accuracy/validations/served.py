"""Validates against served results: each one simulated again, and how far off its means and percentiles are."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from accuracy.errors import COLUMNS, RATES, Measures, errors
from accuracy.measured.results import Served, choose, not_included, what_is_left_out
from accuracy.measured.rows import read_served
from accuracy.repeated.repeats import Repeats, repeats
from accuracy.repeated.simulated import Outcome, engine_options, simulate
from accuracy.validations import served_plots
from accuracy.validations.config import Validate
from experiments.manifest import manifest
from experiments.pages.figures import percent
from experiments.pages.tables import markdown
from experiments.results.tables import write_json, write_rows
from experiments.settings.loading import RunConfig
from experiments.whole_folder import whole_folder
from replicas.calibration.gpu import GpuCalibration, read_any
from sim.errors import ConfigError

_SHOWN = (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "E2E"), ("requests_per_s", "requests/s"))
_STATISTICS = ("mean", "p50", "p90", "p99")


def run_one(run: RunConfig, folder: Path) -> None:
    """Simulates every served result that matches and leaves errors.parquet, the page, a picture and a manifest in `folder`.

    The picture also has the results that the calibration was fitted to, as far as they are among the recordings.

    Raises:
        ConfigError: the calibration cannot be read, or is of a GPU on which no result can be simulated.
        TraceError: the served results are wrong.
    """
    config = run.experiment
    assert isinstance(config, Validate), "only validations come here"
    started = time.perf_counter()
    try:
        calibration = read_any(config.calibration)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    results = read_served(config.recordings, config.reader)
    chosen, problems = choose(results, config.include, config.exclude)
    others = [one.name for one in chosen if one.gpu != calibration.gpu.name]
    chosen = [one for one in chosen if one.gpu == calibration.gpu.name]
    if others:
        problems[f"not on {calibration.gpu.name}"] = others
    if not chosen:
        raise ConfigError(
            f"{config.recordings}: none of the results that match was served by {calibration.gpu.name} and can be simulated: "
            f"{'; '.join(problems)}"
        )
    client_s = calibration.efficiencies.client_s if isinstance(calibration, GpuCalibration) else 0.0
    known = calibration.fitted_to if isinstance(calibration, GpuCalibration) else []
    fitted = [one for one in results if one.name in known and not one.problem and one not in chosen]  # for the picture

    def simulated(one: Served, step_time_scale: float = 1.0) -> Outcome:
        return simulate(one, config.calibration, client_s, config.seed, config.draws, step_time_scale)

    outcomes = [simulated(one) for one in [*chosen, *fitted]]
    rows = []
    for one, outcome in zip(chosen, outcomes, strict=False):
        change = config.step_time_change
        changed = [simulated(one, 1 + sign * change).measures for sign in (-1, 1)] if change else []
        rows += _rows(one, outcome, changed, config)
    with whole_folder(folder) as partial:
        (partial / "config.yaml").write_text(run.yaml, encoding="utf-8")
        write_rows(partial / "errors.parquet", __doc__ or "", COLUMNS, rows)
        points = zip([*chosen, *fitted], outcomes, strict=True)
        served_plots.draw(
            [served_plots.Point(one.real, outcome.measures, one.name in known) for one, outcome in points],
            partial / "plots" / "served.png",
        )
        pairs = repeats([*chosen, *fitted], outcomes)
        others_of_file = not_included(results, chosen, problems)
        page = _page(run.experiment.name, config, calibration.source, rows, chosen, pairs)
        notes = [*_notes(chosen, outcomes), *what_is_left_out(chosen, problems, others_of_file)]
        (partial / "report.md").write_text("\n".join([*page, *(f"! {note}" for note in notes)]) + "\n", encoding="utf-8")
        counts = {"results": len(chosen), "rows": len(rows)}
        left_out = {why: len(names) for why, names in problems.items()}
        about = {"left_out": left_out, "not_included": others_of_file}
        write_json(partial / "manifest.json", manifest(run, counts, {"all": time.perf_counter() - started}) | about)


def load_band(served: Served) -> str:
    """Names how full the real engine's batch was: requests in flight, by Little's law, over max_num_seqs."""
    in_flight = served.rate_per_s * served.real.value("e2e_s", "mean")
    if served.max_concurrency:
        return f"at most {served.max_concurrency} in flight"
    if served.is_at_once:
        return "all at once"
    if not served.rate_per_s:
        return "a rate that changes"
    most = served.arguments.get("max_num_seqs")
    if most is None or not np.isfinite(in_flight):
        return "load not known"
    share = in_flight / most
    return "batch under a quarter full" if share < 0.25 else "a quarter to half full" if share < 0.5 else "over half full"


def _rows(served: Served, outcome: Outcome, changed: Sequence[Measures], config: Validate) -> list[dict[str, Any]]:
    """The rows of one result; `changed`: what it is with shorter and with longer steps, or nothing."""
    about = {"recording": served.name, "band": load_band(served), "busy_share": float("nan"), "step_time_scale": 1.0}
    rows = errors(served.real, outcome.measures, {}, config.tolerance, **about)
    for row in rows:
        metric, statistic, simulated = row["metric"], row["statistic"], row["simulated"]
        if changed and config.step_time_change:
            shorter, longer = (one.value(metric, statistic) for one in changed)
            row["per_step_time"] = (longer - shorter) / simulated / (2 * config.step_time_change)
        row["draw_spread"] = outcome.draw_spread(metric, statistic)
    return rows


def _page(
    name: str,
    config: Validate,
    source: str,
    rows: Sequence[Mapping[str, Any]],
    chosen: Sequence[Served],
    pairs: Repeats,
) -> Iterator[str]:
    table = pd.DataFrame(rows)
    yield f"# {name}: simulated against served results\n"
    yield f"Step times: {config.calibration} ({source}).\n"
    yield "![Means, simulated against served](plots/served.png)\n"
    yield "Each cell is simulated / served - 1. The last columns say of TTFT's mean what it changes by where steps take 1 %"
    yield "longer, and by how much draws of random arrivals differ (standard deviation; a served run is one).\n"
    columns = [(metric, label, statistic) for metric, label in _SHOWN for statistic in _STATISTICS]
    columns = [one for one in columns if _picked(table, one[0], one[2]).any()]
    lines = []
    for one in chosen:
        mine = table[table["recording"] == one.name]
        cells = [_cell(mine[_picked(mine, metric, statistic)]["error"], percent, sign="+") for metric, _, statistic in columns]
        ttft = mine[_picked(mine, "ttft_s", "mean")]
        cells += [_cell(ttft["per_step_time"], "{:.1f}".format), _cell(ttft["draw_spread"], percent)]
        lines.append([one.name.partition("/")[2], load_band(one), *cells])
    head = ["result", "batch", *(_head(*one) for one in columns), "TTFT % for 1 % of step time", "TTFT of one draw"]
    yield markdown(head, lines, num_left=2) + "\n"
    yield from _means(table, columns)
    if pairs.num_pairs:
        yield (
            f"Real runs repeat to {percent(pairs.difference)} in TTFT: so far apart, beside what is simulated, are the means "
            f"of {pairs.num_pairs} pairs of closed loops of the same engine with the same prompts and concurrency and answers "
            "of other lengths. "
            f"A model that is right of the mean of many runs would be {percent(pairs.floor)} off.\n"
        )


def _notes(chosen: Sequence[Served], outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What is not simulated of an engine, and requests that it refuses."""
    for one, outcome in zip(chosen, outcomes, strict=False):
        unknown = engine_options(one)[1]
        if unknown:
            yield f"{one.name}: not simulated: {', '.join(unknown)}"
        if outcome.num_refused:
            yield f"{one.name}: {outcome.num_refused:,} simulated requests were not served, and are in no figure"


def _head(metric: str, label: str, statistic: str) -> str:
    return label if metric in RATES else f"{label} {statistic}"


def _picked(table: pd.DataFrame, metric: str, statistic: str) -> Any:
    return (table["metric"] == metric) & (table["statistic"] == statistic)


def _cell(found: Any, shown: Callable[..., str], **how: str) -> str:
    return shown(found.iloc[0], **how) if found.notna().any() else ""


def _means(table: pd.DataFrame, columns: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Mean absolute errors, by load band and of all."""
    lines = []
    for band in [*sorted(table["band"].unique()), None]:
        mine = table if band is None else table[table["band"] == band]
        found = [mine[_picked(mine, metric, statistic)]["error"].abs().dropna() for metric, _, statistic in columns]
        label = f"{band or 'all'} (n = {mine['recording'].nunique()})"
        lines.append([label, *(percent(one.mean()) if one.notna().any() else "" for one in found)])
    yield markdown(["mean absolute error", *(_head(*one) for one in columns)], lines) + "\n"
