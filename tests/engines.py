"""An engine whose step times are known: what a calibration has to find."""

from typing import Any

import numpy as np
from pydantic import PrivateAttr

from replicas.calibration.device_fit import NAMES, device_s
from replicas.calibration.engines import Limits, MeasuredEngine, StepTimes
from replicas.calibration.file import DeviceTime
from replicas.calibration.shapes import Shape

COEFFICIENTS = {"s_per_token": 4e-5, "s_per_attended_token": 2e-9, "weights_s": 6e-3, "s_per_kv_token": 3e-8, "fixed_s": 0.0,
                "s_per_request": 2e-5, "serial_share": 1.0}  # fmt: skip
SCHEDULE_S, SCHEDULE_S_PER_REQUEST = 1e-4, 1e-5


def truth(**changes: float) -> DeviceTime:
    return DeviceTime(**{**COEFFICIENTS, **changes})


def true_s(shapes: list[Shape], device: DeviceTime) -> Any:
    features = np.array([[s.num_tokens, s.attended_tokens, s.kv_tokens, s.num_requests, 1] for s in shapes], np.float64)
    return device_s(features, [getattr(device, name) for name in NAMES])


class FakeEngine(MeasuredEngine):
    """Takes what `COEFFICIENTS` say, times lognormal noise, and on a bad day times an outlier now and then."""

    noise: float = 0.02
    noise_of_decodes: float | None = None
    outlier_share: float = 0.0
    max_num_seqs: int = 64
    _rng: Any = PrivateAttr(default_factory=lambda: np.random.default_rng(7))
    _asked: list[Shape] = PrivateAttr(default_factory=list)

    def limits(self) -> Limits:
        return Limits(max_num_seqs=self.max_num_seqs, max_num_batched_tokens=2048, max_model_len=4096, num_kv_tokens=200_000)

    @property
    def version(self) -> str | None:
        return "1.2.3"

    @property
    def kv_cache(self) -> tuple[int, int] | None:
        return 5000, 16

    @property
    def memory(self) -> dict[str, int]:
        return {"weights": 16 * 2**30, "kv_cache": 40 * 2**30}

    def measure(self, shape: Shape) -> StepTimes:
        self._asked.append(shape)
        noise = self.noise if shape.chunk or self.noise_of_decodes is None else self.noise_of_decodes
        seconds = float(true_s([shape], truth())[0]) * float(np.exp(self._rng.normal(0.0, noise)))
        if self._rng.random() < self.outlier_share:
            seconds *= 2
        return StepTimes(seconds, SCHEDULE_S + SCHEDULE_S_PER_REQUEST * shape.num_requests)
