"""Follows a live engine: how much longer its steps take than its calibration says, and whether that has changed for good."""

from collections.abc import Mapping
from math import exp, inf, log

import pandas as pd

from replicas.calibration.device_fit import MAD_TO_STANDARD_DEVIATION
from replicas.calibration.file import Calibration
from replicas.calibration.fit import predicted_s

SLACK = 0.5
"""Of the alarm, in standard deviations of a step: half of the shift that it is to find fastest."""
THRESHOLD = 12.0
"""Of the alarm, in standard deviations: with steps that stray independently, one false alarm in 500,000 steps.

Source: Siegmund (1985), Sequential Analysis: (exp(2 k (h + 1.166)) - 2 k (h + 1.166) - 1) / (2 k^2) steps, either way half.
"""
CLIP = 3.0
"""Standard deviations beyond which a step counts no more: a stall is not a drift."""
SETTLING_STEPS = 50
"""After an alarm, until the new scale is known to a seventh of a standard deviation."""
UNKNOWN_SIGMA, SMALLEST_SIGMA = 0.1, 0.01
"""Assumption: of a step, where a calibration does not say how far it is from its steps, and where it says nearly nothing."""


class DriftAlarm:
    """A two-sided cumulative sum over how far steps are from what they should take; O(1) a step, in time and memory.

    Source: Page (1954), Continuous Inspection Schemes.

    Args:
        sigma: standard deviation of log(measured / calibrated) of a step while nothing has changed.
    """

    def __init__(self, sigma: float) -> None:
        self.sigma, self.above, self.below, self.num_steps = sigma, 0.0, 0.0, 0

    def observe(self, log_ratio: float) -> bool:
        """Takes one step's log(measured / calibrated) in, and tells whether the alarm goes off: it then starts anew."""
        strayed = min(max(log_ratio / self.sigma, -CLIP), CLIP)
        self.above = max(0.0, self.above + strayed - SLACK)
        self.below = max(0.0, self.below - strayed - SLACK)
        self.num_steps += 1
        is_off = max(self.above, self.below) > THRESHOLD
        if is_off:
            self.above = self.below = 0.0
        return is_off


class OnlineCalibration:
    """A calibration that a live replica keeps up to date: a scale that follows its steps, and an alarm.

    The alarm goes off once for each lasting change: after it, the scale starts anew, and once it knows where it is, that is
    what the next change is measured from.

    Args:
        calibration: what the replica's steps should take.
        max_graph_tokens: tokens of the engine's largest CUDA graph; 0 = none.
        memory_steps: steps over which the scale averages, exponentially.
    """

    def __init__(self, calibration: Calibration, max_graph_tokens: int = 0, memory_steps: int = 1000) -> None:
        residuals = calibration.residuals
        sigma = UNKNOWN_SIGMA if residuals is None else max(MAD_TO_STANDARD_DEVIATION * residuals.p50, SMALLEST_SIGMA)
        self.max_graph_tokens, self.memory_steps = max_graph_tokens, memory_steps
        self.alarm = DriftAlarm(sigma)
        self.alarms_at_s: list[float] = []  # one for each lasting change
        self.changes: list[tuple[float, float]] = []  # the instant of an alarm, and the scale that was found after it
        self._time, self._mixture = calibration.device_time, calibration.mixture
        self._log_scale, self._log_reference, self._num_averaged = 0.0, 0.0, 0
        self._is_settled = True

    def observe(self, step: Mapping[str, float]) -> bool:
        """Takes a step in (`replicas.calibration.steps.COLUMNS`) and tells whether it made the alarm go off."""
        said_s = predicted_s(pd.DataFrame([step]), self._time, self.max_graph_tokens, self._mixture)
        log_ratio = log(step["device_s"] / float(said_s[0]))
        self._average(log_ratio)
        if not self._is_settled and self._num_averaged >= SETTLING_STEPS:
            self._is_settled, self._log_reference = True, self._log_scale
            self.changes.append((self.alarms_at_s[-1], self.scale))
        is_off = self._is_settled and self.alarm.observe(log_ratio - self._log_reference)
        if is_off:
            self._is_settled, self._num_averaged = False, 0
            self.alarms_at_s.append(step["at_s"])
        return is_off

    def _average(self, log_ratio: float) -> None:
        """Moves the scale: a plain mean at first, an exponential one when the memory is full; outliers are clipped."""
        bound = CLIP * self.alarm.sigma if self._num_averaged else inf
        self._num_averaged = min(self._num_averaged + 1, self.memory_steps)
        self._log_scale += min(max(log_ratio - self._log_scale, -bound), bound) / self._num_averaged

    @property
    def scale(self) -> float:
        """How much longer steps take than calibrated: what `step_time_scale` of a surrogate should be now."""
        return exp(self._log_scale)
