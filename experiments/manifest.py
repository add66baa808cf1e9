"""What a result folder says of its origin: manifest.json."""

from typing import Any

from experiments import provenance
from experiments.settings.loading import RunConfig


def manifest(run: RunConfig, counts: dict[str, Any], wall_s: dict[str, float]) -> dict[str, Any]:
    """Returns what a run of any kind says of its origin.

    Args:
        run: what was asked for.
        counts: of what it handled, by name.
        wall_s: seconds of real time, by what they were spent on; `all` is the whole.
    """
    return {
        "name": run.name,
        "config_hash": run.hash,
        "axes": dict(run.axes),
        "seed": run.seed,
        "code": provenance.code(),
        "packages": provenance.packages(),
        "machine": provenance.machine(),
        "counts": counts,
        "wall_s": wall_s,
        "peak_memory_bytes": provenance.peak_memory_bytes(),
    }
