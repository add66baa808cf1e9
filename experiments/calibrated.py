"""Whose step times a pool has: a bound, a real engine's, or a calibration's; and what of them nobody measured."""

from pathlib import Path
from typing import Any

from experiments import provenance
from experiments.pages.figures import percent
from replicas.calibration.file import located
from replicas.calibration.fitted import Traits
from replicas.catalog import Gpu, Model
from replicas.engine import Engine

BOUND, MEASURED = "bound", "measured"

BOUND_MEANS = "what data sheets allow at the efficiencies stated, and nobody measured: calibrate before you order"

BOUND_NOTE = "a bound, not a measurement"


def step_times(options: Engine) -> str:
    """Returns in a word whose step times an engine has: `bound`, `measured`, or the name of its calibration."""
    if options.is_live:
        return MEASURED
    if options.calibration is None:
        return BOUND
    path = Path(options.calibration)
    return path.parent.name if path.stem == "calibration" and path.parent.name else path.stem


def outside(
    options: Engine, model: Model, gpu: Gpu, num_requests: float | None = None, uses_adapters: bool = False
) -> list[str]:
    """Returns what an engine's step times stand on that nobody measured, each with the value used and those fitted.

    Args:
        options: the engine's.
        model: that it serves.
        gpu: that it runs on.
        num_requests: most in a step; None = as many as max_num_seqs allows.
        uses_adapters: whether some requests use LoRA adapters.
    """
    if options.is_live:
        return []
    found = []
    if options.measured is not None:
        found = options.measured.engines.outside(traits(options, model, uses_adapters))
        most = options.limits(model, gpu)[1] if num_requests is None else num_requests
        fitted = options.measured.range.num_requests[1]
        if most > fitted:
            found.append(f"up to {most:,.0f} requests in a step, fitted: {fitted:,.0f}")
    return [*found, *_links(options, model, gpu)]


def traits(options: Engine, model: Model, uses_adapters: bool = False) -> Traits:
    """Returns what of an engine a calibration has to have seen."""
    return Traits(
        model=model.name,
        architecture=model.architecture,
        tensor_parallel_size=options.tensor_parallel_size,
        dtype=options.weight_dtype,
        kv_cache_dtype=options.kv_dtype,
        speculation=options.num_speculative_tokens > 0,
        enforce_eager=options.enforce_eager,
        adapters=uses_adapters,
    )


def _links(options: Engine, model: Model, gpu: Gpu) -> list[str]:
    """What the messages of every layer are taken to go over, unless a calibration was fitted to so many GPUs."""
    num_gpus = options.tensor_parallel_size * options.num_sharing(model)
    sizes = options.measured.engines.tensor_parallel_sizes if options.measured is not None else None
    if num_gpus == 1 or (sizes and options.tensor_parallel_size <= max(sizes)):
        return []
    gb_per_s = gpu.link_bytes_per_s / 1e9
    if gpu.gpus_per_node is not None and num_gpus > gpu.gpus_per_node:
        node = f"a node has {gpu.gpus_per_node}: messages between nodes are timed as within one"
        return [f"{num_gpus} x {gpu.name} in an engine and {node}, {gpu.link or 'links'} at {gb_per_s:g} GB/s"]
    if gpu.link == "PCIe":
        return [f"{num_gpus} x {gpu.name} without NVLink: messages are timed at PCIe's peak, {gb_per_s:g} GB/s"]
    return []


def described(
    options: Engine, model: Model, gpu: Gpu, num_requests: float | None = None, uses_adapters: bool = False
) -> list[str]:
    """Returns whose step times an engine has, and what of them nobody measured, in lines for `--dry-run`.

    Takes what `outside` does.
    """
    whose = step_times(options)
    if whose == BOUND:
        whose = f"{BOUND}, {BOUND_MEANS}"
    elif whose != MEASURED:
        whose = str(options.calibration)
    found = outside(options, model, gpu, num_requests, uses_adapters)
    return [f"step times: {whose}", *([f"! {_outside_said(options, found)}"] if found else [])]


def warning(pool: str, options: Engine, model: Model, gpu: Gpu, ran: Any, uses_adapters: bool = False) -> str:
    """Returns what a run's step times stood on that nobody measured, in one line; "" where there is nothing.

    Args:
        pool: its name.
        options: its engines'.
        model: that it serves.
        gpu: that it runs on.
        ran: (n,) the pool's REPLICA records, after the run.
        uses_adapters: whether some requests use LoRA adapters.
    """
    found = outside(options, model, gpu, float(ran["peak_running"].max(initial=0)), uses_adapters)
    num_outside, num_steps = num_steps_outside(ran)
    if num_outside:
        share = f"{num_outside:,} of {num_steps:,} steps ({percent(num_outside / num_steps)})"
        found.append(f"{share} are larger than any that was fitted, and extrapolated")
    measured = options.measured
    if measured is not None and not f"{measured.engine_version}.".startswith(f"{options.vllm_version}."):
        version = measured.engine_version or "(version not stated)"
        found.append(f"calibrated on {measured.engine} {version}, scheduled as vLLM {options.vllm_version}")
    return f"pool {pool}: {_outside_said(options, found)}" if found else ""


def _outside_said(options: Engine, found: list[str]) -> str:
    whose = "step times" if options.calibration is None else f"step times of {options.calibration} outside its fit"
    return f"{whose}: {'; '.join(found)}"


def num_steps_outside(ran: Any) -> tuple[int, int]:
    """Returns how many steps of a pool's REPLICA records were larger than any that was fitted, and all of them."""
    return int(ran["num_steps_outside_range"].sum()), int(ran["num_steps"].sum())


def calibration_used(options: Engine, ran: Any) -> dict[str, Any] | None:
    """Returns what the manifest says of a pool's calibration; None for a roofline."""
    measured = options.measured
    if measured is None or options.calibration is None:
        return None
    num_outside, num_steps = num_steps_outside(ran)
    return {
        "path": options.calibration,
        "sha256": provenance.file_hash(located(options.calibration)),
        "engine_version": measured.engine_version,
        "fitted": measured.engines.model_dump(),
        "steps": num_steps,
        "steps_outside_range": num_outside,
    }
