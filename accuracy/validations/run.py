"""Runs `kind: validate`: recorded runs simulated again, and how far off every metric is."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from accuracy.errors import COLUMNS, STATISTICS, Measures, band_of, errors, spread_between
from accuracy.measured.llmservingsim import find_runs
from accuracy.measured.recordings import Recording, check_folder, find
from accuracy.repeated.drift import course_of, drift_scales, follow
from accuracy.repeated.replay import engine_options, simulation_of
from accuracy.validations import served as validate_served
from accuracy.validations.config import Validate
from accuracy.validations.page import Page, draw, write_page
from experiments.manifest import manifest
from experiments.results.tables import write_json, write_rows
from experiments.runner import run_one as simulate
from experiments.settings.loading import RunConfig, load
from experiments.whole_folder import whole_folder
from replicas.calibration.file import Calibration
from replicas.calibration.gpu import read_any
from sim.errors import ConfigError, TraceError

MOST_APART = 100.0
"""How many times longer the requests of a recording may take than its steps, or these than those: milliseconds are 1,000."""


@dataclass(frozen=True)
class Case:
    """A recorded run and its simulated twin."""

    recording: Recording
    scale: float  # of the step times: the declared drift
    real: Measures
    simulated: Measures
    followed: Measures | None  # simulated with the machine's speed as it was recorded, window by window
    notes: list[str]


def run_one(run: RunConfig, folder: Path, progress: bool = False, line: int = 0) -> None:
    """Simulates every recording and leaves errors.parquet, the page and pictures in `folder`, the runs below `runs/`.

    Raises:
        ConfigError: the calibration cannot be read.
        TraceError: a recording is wrong.
    """
    config = run.experiment
    assert isinstance(config, Validate), "only validations come here"
    if Path(config.recordings).is_file():
        validate_served.run_one(run, folder)
        return
    started = time.perf_counter()
    check_folder(Path(config.recordings))
    calibration = _calibration_of(config)
    recordings = find_runs(config.recordings, config.include, calibration.model.name) or find(
        config.recordings, config.include, "_requests.csv"
    )
    scales = drift_scales(recordings, calibration, config.drift)
    with whole_folder(folder) as partial:
        (partial / "config.yaml").write_text(run.yaml, encoding="utf-8")
        cases = [_case(recording, calibration, config, scales[recording.name], partial) for recording in recordings]
        for one in sorted((partial / "runs").iterdir()):
            _move_paths(one, partial, folder)
        rows = _rows(cases, config)
        write_rows(partial / "errors.parquet", __doc__ or "", COLUMNS, rows)
        write_page(
            Page(run.experiment.name, config, calibration, rows, [note for case in cases for note in case.notes]), partial
        )
        draw([(case.recording.name, case.real, case.simulated) for case in cases], partial / "plots")
        counts = {"recordings": len(cases), "requests": sum(len(case.recording.requests) for case in cases)}
        write_json(partial / "manifest.json", manifest(run, counts, {"all": time.perf_counter() - started}))


def _calibration_of(config: Validate) -> Calibration:
    try:
        found = read_any(config.calibration)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if not isinstance(found, Calibration):
        raise ConfigError(
            f"calibration {config.calibration}: is of a GPU and any model, from served results; a folder of recordings needs "
            "one of its own model, as `kind: calibrate` makes it"
        )
    return found


def _check_units(recording: Recording) -> None:
    """Refuses stamps of steps and requests that cannot both be seconds."""
    if not recording.steps_path.exists():
        return
    at_s = recording.steps["at_s"]
    span_s = float(at_s.max() - at_s.min())
    if len(at_s) > 1 and not recording.duration_s / MOST_APART < span_s < MOST_APART * recording.duration_s:
        raise TraceError(
            f"{recording.steps_path}: its steps begin within {span_s:g} s and {recording.requests_path.name} takes "
            f"{recording.duration_s:g} s; all stamps must be in seconds"
        )


def _case(recording: Recording, calibration: Calibration, config: Validate, scale: float, folder: Path) -> Case:
    _check_units(recording)
    scratch = folder / "traffic"
    scratch.mkdir(exist_ok=True)
    _, unknown = engine_options(recording)
    notes = [f"{recording.name}: not simulated: {', '.join(unknown)}"] if unknown else []
    run = simulation_of(recording, calibration, config.calibration, scale, config.seed, scratch)
    simulate(run, folder / "runs" / recording.name)
    simulated, warnings = simulated_measures(folder / "runs" / recording.name)
    notes += [f"{recording.name}: {warning}" for warning in warnings]
    followed = None
    if config.follow_drift_s is not None:
        as_usual = simulation_of(recording, calibration, config.calibration, 1.0, config.seed, scratch)
        course = follow(course_of(recording, calibration, config.follow_drift_s), config.follow_drift_s)
        simulate(as_usual, folder / "runs" / f"{recording.name}_followed", prepare=course)
        followed, _ = simulated_measures(folder / "runs" / f"{recording.name}_followed")
    return Case(recording, scale, real_measures(recording), simulated, followed, notes)


def _move_paths(run_folder: Path, partial: Path, folder: Path) -> None:
    """Lets a run's config name its traffic where that will lie, so that it can be run again."""
    config = run_folder / "config.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace(str(partial), str(folder)), encoding="utf-8")
    manifest = json.loads((run_folder / "manifest.json").read_text(encoding="utf-8"))
    write_json(run_folder / "manifest.json", {**manifest, "config_hash": load(config)[0].hash})


def real_measures(recording: Recording) -> Measures:
    """Returns what a recorded run's users saw."""
    table = recording.requests
    e2e_s = (table["last_token_s"] - table["arrival_s"]).to_numpy(np.float64)
    ttft_s = (table["first_token_s"] - table["arrival_s"]).to_numpy(np.float64)
    num_gaps = table["output_len"].to_numpy(np.float64) - 1
    latencies = {
        "ttft_s": ttft_s,
        "tpot_s": np.where(num_gaps > 0, (e2e_s - ttft_s) / np.maximum(num_gaps, 1), np.nan),
        "itl_s": recording.gaps_s,
        "e2e_s": e2e_s,
    }
    if "first_sched_s" in table:
        latencies["queue_s"] = (table["first_sched_s"] - table["arrival_s"]).to_numpy(np.float64)
    rates = {
        "requests_per_s": len(table) / recording.duration_s,
        "output_tokens_per_s": float(table["output_len"].sum()) / recording.duration_s,
    }
    if "cached_tokens" in table:
        rates["cached_token_share"] = float(table["cached_tokens"].sum() / table["prompt_len"].sum())
    if "num_preemptions" in table:
        rates["preemptions_per_request"] = float(table["num_preemptions"].mean())
    return Measures(latencies, rates=rates)


def simulated_measures(folder: Path) -> tuple[Measures, list[str]]:
    """Returns what a simulated run's users saw, and the run's warnings."""
    table = pd.read_parquet(folder / "requests.parquet")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    finished = table[table["status"] == "finished"]
    duration_s = float(finished["finished_at_s"].max() - table["arrived_at_s"].min())
    rates = {
        "requests_per_s": len(finished) / duration_s,
        "output_tokens_per_s": float(finished["num_output_tokens"].sum()) / duration_s,
        "cached_token_share": float(finished["num_cached_tokens"].sum() / finished["num_prompt_tokens"].sum()),
        "preemptions_per_request": float(table["num_preemptions"].mean()),
    }
    latencies = {metric: table[metric].to_numpy(np.float64) for metric in ("ttft_s", "tpot_s", "e2e_s", "queue_s")}
    gaps = {("itl_s", statistic): summary["all"]["itl_s"][statistic] for statistic in STATISTICS}
    return Measures(latencies, {key: value for key, value in gaps.items() if value is not None}, rates), summary["warnings"]


def _rows(cases: Sequence[Case], config: Validate) -> list[dict[str, Any]]:
    rows = []
    for case in cases:
        repeats = [other.real for other in cases if is_repeat(case.recording, other.recording)]
        spread = {metric: dict(values) for metric, values in config.repeat_spread.items()}
        for metric, values in spread_between(repeats).items():
            spread.setdefault(metric, {}).update(values)
        busy_share = case.recording.busy_share
        about = {"recording": case.recording.name, "band": band_of(busy_share), "busy_share": busy_share}
        about["step_time_scale"] = case.scale
        followed = {} if case.followed is None else followed_errors(case.real, case.followed)
        for row in errors(case.real, case.simulated, spread, config.tolerance, **about):
            rows.append({**row, "followed_error": followed.get((row["metric"], row["statistic"]))})
    return rows


def followed_errors(real: Measures, followed: Measures) -> dict[tuple[str, str], float]:
    """Returns (metric, statistic) -> error of the run that followed the machine's speed."""
    return {(row["metric"], row["statistic"]): row["error"] for row in errors(real, followed, {}, 1.0)}


def is_repeat(one: Recording, other: Recording) -> bool:
    """Tells whether two recordings are runs of one engine under the same load: all that their meta files say of the engine,
    lengths and shared tokens are the same, and stamps differ by under a millisecond.
    """
    if one.engine != other.engine or one.shared_blocks != other.shared_blocks:
        return False
    a, b = one.requests, other.requests
    lengths = ["prompt_len", "output_len"]
    if len(a) != len(b) or not (a[lengths].to_numpy() == b[lengths].to_numpy()).all():
        return False
    apart_s = (a["arrival_s"] - a["arrival_s"].min()) - (b["arrival_s"] - b["arrival_s"].min())
    return bool(apart_s.abs().max() < 1e-3)


def print_summary(folders: Sequence[Path]) -> None:
    """Prints each validation's page and where its tables and pictures are."""
    for folder in folders:
        print(f"\n{(folder / 'report.md').read_text(encoding='utf-8')}")
        print(f"tables   {folder / 'errors.parquet'}")
        if (folder / "plots").exists():
            print(f"pictures {folder / 'plots'}")
