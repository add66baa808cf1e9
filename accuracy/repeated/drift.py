"""How fast a machine was while a run was recorded: one scalar for the run, or its course, to tell drift from other errors."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from accuracy.measured.recordings import Recording
from experiments.wiring import Wiring
from replicas.calibration.file import Calibration
from replicas.calibration.fit import predicted_s
from sim.errors import TraceError
from sim.step_terms import TERMS

Floats = NDArray[np.float64]

_RATES = ("flops_per_s", "bytes_per_s")
_TIMES = (*(term.field for term in TERMS), "knot_s")


def drift_scales(recordings: Sequence[Recording], calibration: Calibration, drift: str) -> dict[str, float]:
    """Returns name -> the scalar for all step times: what the recorded steps took on the device over what the calibration says.

    Args:
        recordings: with their steps, unless `drift` is none.
        calibration: the step times.
        drift: none, one (the same scalar for all), or each.

    Raises:
        TraceError: a scalar is wanted and a recording has no steps.
    """
    if drift == "none":
        return {recording.name: 1.0 for recording in recordings}
    measured, said = {}, {}
    for recording in recordings:
        if not recording.steps_path.exists():
            raise TraceError(f"{recording.steps_path}: no such file; without recorded steps, drift must be none")
        measured[recording.name] = float(recording.steps["device_s"].sum())
        said[recording.name] = float(_said_s(recording, calibration).sum())
    if drift == "one":
        return dict.fromkeys(measured, sum(measured.values()) / sum(said.values()))
    return {name: measured[name] / said[name] for name in measured}


def course_of(recording: Recording, calibration: Calibration, window_s: float) -> Floats:
    """Returns the factor on step times in each window of a recording, from its first arrival on; idle ones as before them."""
    since_s = recording.steps["at_s"].to_numpy(np.float64) - float(recording.requests["arrival_s"].min())
    window = np.maximum(since_s // window_s, 0).astype(np.int64)
    measured = np.bincount(window, recording.steps["device_s"])
    said = np.bincount(window, _said_s(recording, calibration))
    factors = np.divide(measured, said, out=np.full(len(said), np.nan), where=said > 0)
    return pd.Series(factors).ffill().bfill().to_numpy(np.float64)


def follow(factors: Floats, window_s: float) -> Callable[[Wiring], None]:
    """Returns what makes a simulation's engines change their speed in each window, by a process of the control plane."""

    def prepare(wiring: Wiring) -> None:
        engines = wiring.plane.fleet.engines
        usual = {name: np.array(engines[name]) for name in (*_RATES, *_TIMES)}

        def course(env: Any) -> Generator[Any, Any, None]:
            for factor in factors:
                for name in _RATES:
                    engines[name] = usual[name] / factor
                for name in _TIMES:
                    engines[name] = usual[name] * factor
                yield env.timeout(window_s)

        wiring.simulation.env.process(course(wiring.simulation.env))

    return prepare


def _said_s(recording: Recording, calibration: Calibration) -> Floats:
    return predicted_s(
        recording.steps, calibration.device_time, recording.max_graph_tokens(calibration.gpu), calibration.mixture
    )
