"""Runs `kind: calibrate`: steps in, a calibration file, the steps beside it and a picture of the fit out."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from accuracy.calibrations.config import Calibrate, Kernels
from accuracy.calibrations.plots import draw_fit
from accuracy.measured.recordings import find
from experiments.manifest import manifest
from experiments.pages.figures import percent
from experiments.results.tables import write_json
from experiments.settings.loading import RunConfig
from experiments.whole_folder import whole_folder
from replicas.calibration.device_fit import NAMES
from replicas.calibration.engines import MeasuredEngine
from replicas.calibration.file import Calibration, KvCache, Memory, read, write
from replicas.calibration.fit import Fit, fit, fit_kernels
from replicas.calibration.fitted import Fitted
from replicas.calibration.llmservingsim import ProfileError, read_profile, shapes_served, steps_of
from replicas.calibration.measure import Patience, measure_all
from replicas.calibration.mixture import mixture_of
from replicas.calibration.shapes import worth_measuring
from replicas.calibration.steps import write_steps
from replicas.links import Links, links_of
from replicas.memory import BF16_BYTES
from replicas.vllm.defaults import largest_graph_tokens
from sim.errors import ConfigError

FILE, STEPS = "calibration.yaml", "steps.parquet"


def run_one(run: RunConfig, folder: Path, progress: bool = False, line: int = 0) -> None:
    """Fits the step time and leaves `calibration.yaml`, `steps.parquet`, `fit.png` and `manifest.json` in `folder`.

    Raises:
        ConfigError: the steps cannot be fitted.
        TraceError: a recording is wrong.
    """
    config = run.experiment
    assert isinstance(config, Calibrate), "only calibrations come here"
    started = time.perf_counter()
    material = _material(config)
    try:
        if config.kernels:
            experts = mixture_of(config.model, config.data_parallel_size)
            between_s = config.kernels.between_s
            fitted = fit_kernels(material.steps, material.max_graph_tokens, experts, _links(config, config.kernels), between_s)
        else:
            fitted = fit(material.steps, material.max_graph_tokens, config.drift_window_s, mixture_of(config.model))
    except ValueError as error:
        raise ConfigError(f"cannot fit: {error}") from error
    calibration = _calibration(config, fitted, material)
    with whole_folder(folder) as partial:
        (partial / "config.yaml").write_text(run.yaml, encoding="utf-8")
        write(calibration, partial / FILE)
        write_steps(material.steps, partial / STEPS)
        draw_fit(material.steps, calibration, partial / "fit.png", material.max_graph_tokens)
        (partial / "warnings.txt").write_text("".join(f"{line}\n" for line in material.warnings), encoding="utf-8")
        counts = {"steps": len(material.steps)}
        write_json(partial / "manifest.json", manifest(run, counts, {"all": time.perf_counter() - started}))


@dataclass(frozen=True)
class _Material:
    """What a calibration is made of."""

    steps: pd.DataFrame
    kv_cache: KvCache | None
    source: str
    engine_version: str | None
    max_graph_tokens: int
    warnings: list[str]
    fitted: Fitted
    memory: Mapping[str, int] | None = None


def _material(config: Calibrate) -> _Material:
    if config.measure:
        return _measured(config, config.measure)
    return _from_kernels(config, config.kernels) if config.kernels else _recorded(config)


def _from_kernels(config: Calibrate, kernels: Kernels) -> _Material:
    limits = (kernels.max_num_seqs, kernels.max_num_batched_tokens, kernels.max_kv_tokens)
    max_graph_tokens = largest_graph_tokens(config.gpu, kernels.max_num_seqs)
    shapes = shapes_served(kernels.prompt_tokens, kernels.output_tokens, *limits)
    try:
        profile = read_profile(kernels.path, config.model)
        steps = steps_of(profile, shapes, max_graph_tokens, kernels.longest_context_tokens, _links(config, kernels))
    except ProfileError as error:
        raise ConfigError(f"kernels {error}") from error
    return _Material(
        steps=steps,
        kv_cache=None,
        source=f"{len(shapes)} steps with prompts of {kernels.prompt_tokens} and answers of {kernels.output_tokens} tokens, "
        "put together from a kernel profile",
        engine_version=config.engine_version,
        max_graph_tokens=max_graph_tokens,
        warnings=[f"{num:,} rows left out of {why}" for why, num in profile.left_out.items()],
        fitted=Fitted(speculation=[False], adapters=[False]),
    )


def _links(config: Calibrate, kernels: Kernels) -> Links:
    sizes = (config.tensor_parallel_size, config.data_parallel_size)
    return links_of(config.model, config.gpu, *sizes, kernels.link_latency_s, kernels.link_efficiency)


def _measured(config: Calibrate, engine: MeasuredEngine) -> _Material:
    engine.take(config.model, config.gpu)
    limits = engine.limits()
    shapes = worth_measuring(*limits)
    patience = Patience(max_s=config.max_measure_s or float("inf"))
    steps, loose = measure_all(engine, shapes, config.seed, patience)
    end = f"{patience.max_repeats} repeats" if config.max_measure_s is None else f"{patience.max_s:g} s of measuring"
    warnings = [
        f"not tight after {end}: {shape.described}"
        + (f" +- {percent(error)}" if error < float("inf") else ", not measured twice")
        for shape, error in loose
    ]
    blocks = engine.kv_cache
    material = _Material(
        steps=steps,
        kv_cache=KvCache(num_gpu_blocks=blocks[0], block_size=blocks[1]) if blocks else None,
        source=f"{len(shapes)} step shapes measured {len(steps):,} times",
        engine_version=engine.version,
        max_graph_tokens=limits.max_graph_tokens,
        warnings=warnings,
        fitted=engine.fitted,
        memory=engine.memory,
    )
    engine.end()
    return material


def _recorded(config: Calibrate) -> _Material:
    assert config.recordings is not None
    recordings = find(config.recordings, config.include, "_steps")
    steps = _in_a_row([recording.steps for recording in recordings], 2 * (config.drift_window_s or 0.0))
    metas = [recording.meta for recording in recordings]
    _refuse_milliseconds(config, steps)
    return _Material(
        steps=steps,
        kv_cache=_kv_cache(metas),
        source=f"{len(steps):,} recorded steps of {', '.join(recording.name for recording in recordings)}",
        engine_version=config.engine_version,
        max_graph_tokens=max(recording.max_graph_tokens(config.gpu) for recording in recordings),
        warnings=[],
        fitted=_recorded_engines(config, [meta["engine_args"] for meta in metas]),
    )


def _recorded_engines(config: Calibrate, arguments: Sequence[Mapping[str, Any]]) -> Fitted:
    """What vLLM's arguments say of the engines besides what the config does; arguments that are absent have its defaults."""
    caches = [str(one.get("kv_cache_dtype", "auto")) for one in arguments]
    unquantized = str(config.dtype) if config.dtype != "fp8" else "bfloat16"
    lists: dict[str, list[Any]] = {
        "kv_cache_dtypes": ["fp8" if cache.startswith("fp8") else unquantized for cache in caches],
        "speculation": [one.get("speculative_config") is not None for one in arguments],
        "enforce_eager": [bool(one.get("enforce_eager", False)) for one in arguments],
        "adapters": [bool(one.get("enable_lora", False)) for one in arguments],
    }
    return Fitted.model_validate({name: sorted(set(values)) for name, values in lists.items()})


def _refuse_milliseconds(config: Calibrate, steps: pd.DataFrame) -> None:
    """Raises ConfigError if steps take a second and hundreds of times what reading the weights takes: no engine's do."""
    median_s = float(steps["device_s"].median())
    bytes_per_s = config.tensor_parallel_size * config.gpu.bytes_per_s
    reading_s = config.model.num_active_params * (1.0 if config.dtype == "fp8" else BF16_BYTES) / bytes_per_s
    if median_s > 1.0 and median_s > 300 * reading_s:
        raise ConfigError(
            f"{config.recordings}: the median step takes {median_s:,.3g} s on the device, where reading the weights takes "
            f"{reading_s:.2g} s; times must be in seconds, and these look like milliseconds"
        )


def _in_a_row(tables: Sequence[pd.DataFrame], gap_s: float) -> pd.DataFrame:
    """Puts recordings, each with a clock of its own, one after the other: its speed in one says nothing of the next."""
    moved, begins_s = [], 0.0
    for table in tables:
        moved.append(table.assign(at_s=table["at_s"] - table["at_s"].min() + begins_s))
        begins_s = float(moved[-1]["at_s"].max()) + gap_s
    return pd.concat(moved, ignore_index=True)


def _kv_cache(metas: Sequence[Mapping[str, Any]]) -> KvCache | None:
    """The blocks that the engine made for itself, in the first recording in which it was not told how many to make."""
    for meta in metas:
        arguments = meta["engine_args"]
        if "num_gpu_blocks" in meta and "block_size" in arguments and "num_gpu_blocks_override" not in arguments:
            return KvCache(num_gpu_blocks=meta["num_gpu_blocks"], block_size=arguments["block_size"])
    return None


def _calibration(config: Calibrate, fitted: Fit, material: _Material) -> Calibration:
    return Calibration(
        engine_version=config.engine_version or material.engine_version,
        gpu=config.gpu,
        model=config.model,
        dtype=config.dtype,
        tensor_parallel_size=config.tensor_parallel_size,
        data_parallel_size=config.data_parallel_size,
        source=material.source,
        fitted=material.fitted,
        device_time=fitted.device_time,
        cpu_time=fitted.cpu_time,
        relative_errors=fitted.relative_errors,
        not_identified=fitted.not_identified,
        range=fitted.range,
        residuals=fitted.residuals,
        repeat_spread=fitted.repeat_spread,
        drift=fitted.drift,
        kv_cache=material.kv_cache,
        memory_bytes=Memory(**material.memory) if material.memory else None,
        steps=STEPS,
    )


def print_summary(folders: Sequence[Path]) -> None:
    """Prints each calibration's coefficients and how good they are, and where the file is."""
    for folder in folders:
        print(f"\n{folder.name}\n")
        print(described(read(folder / FILE)))
        for warning in (folder / "warnings.txt").read_text(encoding="utf-8").splitlines():
            print(f"! {warning}")
        print(f"\nfile     {folder / FILE}\npicture  {folder / 'fit.png'}")


def described(calibration: Calibration) -> str:
    """Returns a calibration as a page of plain text."""
    one, cpu = calibration, calibration.cpu_time
    times = [
        (name, value, one.relative_errors.get(name))
        for name, value in one.device_time
        if isinstance(value, float) and name != "serial_share" and (value or name in NAMES)  # others only where they were found
    ]
    lines = [f"{one.engine} {one.engine_version or '(unknown version)'}, {one.model.name} in {one.dtype} on "
             f"{one.tensor_parallel_size} x {one.gpu.name}: {one.source}", "", "the device's time of a step"]  # fmt: skip
    for name, value, error in times:
        lines.append(f"  {name:<22}{value * 1e6:>14,.4f} us" + (f"   +- {percent(error)}" if error is not None else ""))
    lines.append(f"  {'serial_share':<22}{one.device_time.serial_share:>14.2f}")
    lines.append("the CPU's time around it")
    for name, part in cpu:
        lines.append(f"  {name:<22}{part.s * 1e6:>14,.1f} us   and {part.s_per_request * 1e6:,.1f} us a request")
    if one.residuals:
        r = one.residuals
        within = f"{percent(r.p50)} (p50), {percent(r.p90)} (p90), {percent(r.p99)} (p99)"
        lines.append(f"steps are within {within} of the fit, n = {r.num_steps:,}")
    s = one.repeat_spread
    if s and s.p50 is not None and s.p90 is not None:
        within = f"{percent(s.p50)} (p50), {percent(s.p90)} (p90)"
        lines.append(f"the same step measured again is within {within}, of {s.num_shapes} shapes")
    if one.drift:
        lines.append(
            f"the machine's own drift meanwhile: x {one.drift.fastest:.2f} to x {one.drift.slowest:.2f}, fitted with the rest"
        )
    if one.kv_cache:
        lines.append(
            f"the engine made {one.kv_cache.num_gpu_blocks:,} KV blocks of {one.kv_cache.block_size} tokens for itself"
        )
    if one.memory_bytes:
        parts = [f"{name.replace('_', ' ')} {num / 2**30:,.3g} GiB" for name, num in one.memory_bytes if num is not None]
        lines.append(f"on one device it holds: {', '.join(parts)}")
    lines += [f"not identified: {line}" for line in one.not_identified]
    return "\n".join(lines)
