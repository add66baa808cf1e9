"""Runs `kind: calibrate_gpu`: served results in, what engines reach of the GPU's peaks out."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from annotated_types import Le
from numpy.typing import NDArray
from scipy.optimize import least_squares

from accuracy.calibrations.gpu_config import CalibrateGpu
from accuracy.calibrations.gpu_kernels import kernel_times_of, start_of
from accuracy.measured.results import Served, choose, not_included, what_is_left_out
from accuracy.measured.rows import read_served
from accuracy.repeated.simulated import Outcome, experiment_of, simulate
from experiments.calibrated import traits
from experiments.manifest import manifest
from experiments.pages.figures import percent
from experiments.results.tables import write_json
from experiments.settings.loading import RunConfig
from experiments.whole_folder import whole_folder
from replicas.calibration.aiconfigurator import LeftOut
from replicas.calibration.file import FittedRange
from replicas.calibration.fitted import NOT_STATED, Fitted, fitted_to
from replicas.calibration.gpu import OF_PEAKS, Efficiencies, GpuCalibration, read_any, write_gpu
from replicas.calibration.kernel_times import KernelTimes
from sim.errors import ConfigError

Floats = NDArray[np.float64]

FILE = "calibration.yaml"

FITTED = (("ttft_s", 0.5), ("tpot_s", 1.0))
"""Metrics that are fitted, by their means, and their weights: targets for TTFT are twice as wide as those for TPOT. E2E
follows from both."""

OUTLIER = 0.05
"""Relative error from which on a result counts less and less (soft L1): means with stalls of the machine in them."""

STEP = 0.02
"""Relative step of the finite differences: above the ripple that whole steps of an engine put on a mean."""

LIMITS = {name: rule.le for name, field in Efficiencies.model_fields.items() for rule in field.metadata if isinstance(rule, Le)}
"""The most that a coefficient may be, by its field."""


def run_one(run: RunConfig, folder: Path, progress: bool = False, line: int = 0) -> None:
    """Fits the coefficients and leaves `calibration.yaml`, `results.txt` and `manifest.json` in `folder`.

    Raises:
        ConfigError: nothing to fit, or fewer results than coefficients.
        TraceError: the served results are wrong.
    """
    config = run.experiment
    assert isinstance(config, CalibrateGpu), "only fits to served results come here"
    started = time.perf_counter()
    results = read_served(config.served, config.reader)
    chosen, problems = choose(results, config.include, config.exclude)
    elsewhere = [one.name for one in chosen if one.gpu != config.gpu.name]
    without = [one.name for one in chosen if one.name not in elsewhere and not _num_fitted(one)]
    for reason, names in ((f"not on {config.gpu.name}", elsewhere), ("no mean of TTFT or TPOT, which are fitted", without)):
        problems |= {reason: names} if names else {}
    chosen = [one for one in chosen if one.name not in elsewhere + without]
    if sum(map(_num_fitted, chosen)) < len(config.free):
        reasons = "; ".join(f"{len(names)} {problem}" for problem, names in problems.items())
        raise ConfigError(
            f"{config.served}: {len(chosen)} usable results on {config.gpu.name} are too few for {len(config.free)} "
            f"coefficients{f'; left out: {reasons}' if reasons else ''}"
        )
    kernels_left_out = LeftOut()
    kernels = kernel_times_of(config, kernels_left_out)
    start = start_of(config, kernels_left_out)
    with whole_folder(folder) as partial:
        (partial / "config.yaml").write_text(run.yaml, encoding="utf-8")
        found, outcomes = fit(config, start, chosen, kernels, partial / FILE)
        with TemporaryDirectory() as scratch:
            pools = [experiment_of(one, str(partial / FILE), scratch=Path(scratch)).pools[0] for one in chosen]
        fitted = fitted_to(traits(pool.replicas, pool.model) for pool in pools)
        write_gpu(_calibration(config, found, kernels, chosen, outcomes, fitted), partial / FILE)
        others_of_file = not_included(results, chosen, problems)
        lines = what_is_left_out(chosen, problems, others_of_file)
        lines += [f"{num:,} rows of kernel tables left out: {why}" for why, num in kernels_left_out.items()]
        (partial / "results.txt").write_text("\n".join([*_table(chosen, outcomes), "", *lines]) + "\n", encoding="utf-8")
        about = {"left_out": {why: len(names) for why, names in problems.items()}, "not_included": others_of_file}
        about |= {"kernels_left_out": dict(kernels_left_out)} if kernels_left_out else {}
        origin = manifest(run, {"results": len(chosen)}, {"all": time.perf_counter() - started})
        write_json(partial / "manifest.json", origin | about)


def _num_fitted(served: Served) -> int:
    """Returns how many of its means the fit can use; an answer of one token has no TPOT."""
    return sum(bool(np.isfinite(served.real.value(metric, "mean"))) for metric, _ in FITTED)


def fit(
    config: CalibrateGpu, begin: Efficiencies, chosen: Sequence[Served], kernels: KernelTimes | None, scratch: Path
) -> tuple[Efficiencies, list[Outcome]]:
    """Fits `config.free` to the log of simulated over real means; returns the coefficients and the last simulations.

    Args:
        config: the free coefficients.
        begin: where the fit starts.
        chosen: the served results.
        kernels: what single kernels take, if that is known.
        scratch: a file to hold the coefficients that are tried.
    """
    start = begin.model_dump()
    scale = np.array([start[name] or _SMALL[name] for name in config.free])
    upper = np.array([LIMITS.get(name, np.inf) for name in config.free]) / scale

    def at(point: Floats) -> tuple[Efficiencies, list[Outcome]]:
        tried = Efficiencies(**{**start, **dict(zip(config.free, (point * scale).tolist(), strict=True))})
        write_gpu(_calibration(config, tried, kernels, [], []), scratch)
        return tried, [simulate(one, str(scratch), tried.client_s, config.seed, config.draws) for one in chosen]

    first = np.minimum(np.ones(len(scale)), 0.99 * upper)
    weights = np.array([_weight(outcome, metric, weight) for outcome in at(first)[1] for metric, weight in FITTED])

    def errors(point: Floats) -> Floats:
        pairs = zip(chosen, at(point)[1], strict=True)
        found = [_log_error(one, outcome, metric) for one, outcome in pairs for metric, _ in FITTED]
        return np.nan_to_num(weights * np.array(found))

    found = least_squares(
        errors,
        first,
        bounds=(1e-6, upper),
        loss="soft_l1",
        f_scale=OUTLIER,
        diff_step=np.full(len(scale), STEP),
        max_nfev=config.max_rounds,
    )
    return at(found.x)


_SMALL: Mapping[str, float] = {
    "link_latency_s": 2e-6,
    "all_reduce_s": 5e-6,
    "fixed_s": 1e-3,
    "mixed_s": 1e-3,
    "mixed_kv_share": 0.1,
    "eager_s": 1e-3,
    "launch_s": 3e-2,
    "s_per_request": 1e-5,
    "serial_share": 0.1,
    "client_s": 1e-3,
}
"""What a coefficient is measured in that starts at 0."""


def _weight(outcome: Outcome, metric: str, weight: float) -> float:
    """Of a result whose draws differ widely less: what was served is one draw, and says that much less of step times."""
    return weight / float(np.hypot(1.0, np.nan_to_num(outcome.draw_spread(metric, "mean")) / OUTLIER))


def _log_error(served: Served, outcome: Outcome, metric: str) -> float:
    """NaN where the result does not have the metric."""
    return float(np.log(outcome.measures.value(metric, "mean") / served.real.value(metric, "mean")))


def _calibration(
    config: CalibrateGpu,
    found: Efficiencies,
    kernels: KernelTimes | None,
    chosen: Sequence[Served],
    outcomes: Sequence[Outcome],
    fitted: Fitted = NOT_STATED,
) -> GpuCalibration:
    largest = np.max([outcome.largest for outcome in outcomes], axis=0).tolist() if outcomes else [np.finfo(float).max] * 4
    names = ("num_requests", "num_tokens", "attended_tokens", "kv_tokens")
    models = sorted({f"{one.model} x {one.tensor_parallel_size}" for one in chosen})
    metrics = " and ".join(metric.removesuffix("_s").upper() for metric, _ in FITTED)
    return GpuCalibration(
        engine_version=config.engine_version,
        gpu=config.gpu,
        source=f"means of {metrics} of {_counted(len(chosen))} ({', '.join(models)}), fitted by simulating them",
        fitted_to=[one.name for one in chosen],
        fitted=fitted,
        given=[name for name in Efficiencies.model_fields if name not in (*config.free, *(OF_PEAKS if kernels else ()))],
        efficiencies=found,
        kernel_times=kernels,
        range=FittedRange(**{name: [1.0, value] for name, value in zip(names, largest, strict=True)}),
    )


def _counted(num: int) -> str:
    return f"{num} served result{'' if num == 1 else 's'}"


def _table(chosen: Sequence[Served], outcomes: Sequence[Outcome]) -> list[str]:
    lines = [f"{'fitted':<100}{'TTFT':>9}{'TPOT':>9}{'E2E':>9}"]
    for one, outcome in zip(chosen, outcomes, strict=True):
        metrics = ("ttft_s", "tpot_s", "e2e_s")
        found = [np.expm1(_log_error(one, outcome, metric)) for metric in metrics]
        cells = "".join(f"{percent(error, sign='+') if np.isfinite(error) else '':>9}" for error in found)
        lines.append(f"{one.name:<100}{cells}")
    return lines


def print_summary(folders: Sequence[Path]) -> None:
    """Prints each fit's coefficients, how far off every fitted result is, and where the file is."""
    for folder in folders:
        calibration: Any = read_any(folder / FILE)
        print(f"\n{calibration.gpu.name}: {calibration.source}")
        for name, value in calibration.efficiencies:
            print(f"  {name:<24}{value:>12.4g}{'   given' if name in calibration.given else ''}")
        print(f"\n{(folder / 'results.txt').read_text(encoding='utf-8')}\nfile     {folder / FILE}")
