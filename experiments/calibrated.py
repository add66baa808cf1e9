"""What a run leaned on in its calibrations: which file, and how many steps were larger than any that it was fitted on."""

from typing import Any

from experiments import provenance
from experiments.wiring import Wiring
from replicas.calibration.file import located


def extrapolated(wiring: Wiring) -> list[str]:
    """Returns what a run's calibrations do not vouch for, in lines for the report."""
    lines = []
    for index, pool in enumerate(wiring.experiment.pools):
        measured, (outside, steps) = pool.replicas.measured, _steps_outside_range(wiring, index)
        if measured is None:
            continue
        if outside:
            lines.append(
                f"pool {pool.name}: {outside:,} of {steps:,} steps ({outside / steps:.1%}) are larger than any that "
                f"{pool.replicas.calibration} was fitted on; their times are extrapolated"
            )
        version = pool.replicas.vllm_version
        if measured.engine_version is not None and not f"{measured.engine_version}.".startswith(f"{version}."):
            lines.append(
                f"pool {pool.name}: calibrated on {measured.engine} {measured.engine_version}, scheduled as vLLM {version}"
            )
    return lines


def _steps_outside_range(wiring: Wiring, pool: int) -> tuple[int, int]:
    """Returns the steps of a pool that were larger than any that was fitted, and all its steps."""
    replicas = wiring.plane.fleet.replicas
    mine = replicas[replicas["pool"] == pool]
    return int(mine["num_steps_outside_range"].sum()), int(mine["num_steps"].sum())


def calibration_used(wiring: Wiring, index: int) -> dict[str, Any] | None:
    """Returns what the manifest says of a pool's calibration; None for a roofline."""
    replicas = wiring.experiment.pools[index].replicas
    measured, (outside, steps) = replicas.measured, _steps_outside_range(wiring, index)
    if measured is None or replicas.calibration is None:
        return None
    return {
        "path": replicas.calibration,
        "sha256": provenance.file_hash(located(replicas.calibration)),
        "engine_version": measured.engine_version,
        "steps": steps,
        "steps_outside_range": outside,
    }
