"""Calibrations that live replicas keep up to date while a run goes on."""

import sys
from collections.abc import Iterable
from math import exp, log
from typing import Any

from tqdm import tqdm

from experiments.results.step_trace import StepTrace
from experiments.settings.experiment import Experiment, Pool
from replicas.calibration.gpu import read_for
from replicas.calibration.online import SETTLING_STEPS, OnlineCalibration
from replicas.calibration.steps import batch_of
from replicas.live.interface import Step
from replicas.live.process import LiveReplica


class Recalibrations:
    """Follows how much longer than calibrated the steps of live replicas take, and tells it to the surrogates.

    All pools with the same calibration file run at the mean of the scales that its live replicas are found at, from
    SETTLING_STEPS steps on and then anew after as many. A lasting change is said on stderr, once, and kept.

    Args:
        experiment: the run's.
        engines: (num_pools,) ENGINE records; their step times are changed while the run goes on.
        followed: numbers of the live pools to follow.
    """

    def __init__(self, experiment: Experiment, engines: Any, followed: Iterable[int]) -> None:
        self._pools, self._engines, self._followed = experiment.pools, engines, set(followed)
        self._trace = StepTrace()
        self._last_output_at_s: dict[int, float] = {}
        self._found: dict[tuple[int, int], OnlineCalibration] = {}  # by pool and machine
        self._replicas: dict[tuple[int, int], LiveReplica] = {}
        self._num_steps = 0

    def __call__(self, replica: LiveReplica, began_at_s: float, step: Step) -> None:
        """Takes a step of a live replica in."""
        index, machine = int(replica.books.replica.pool), int(replica.books.replica.machine)
        if index not in self._followed:
            return
        pool = self._pools[index]
        online = self._found.get((index, machine))
        if online is None:
            online = self._found[index, machine] = OnlineCalibration(_calibration(pool), replica.engine.limits.max_graph_tokens)
            self._replicas[index, machine] = replica
        for row in self._trace.rows(replica, began_at_s, step):
            device_s = row["t2"] - max(row["t1"], self._last_output_at_s.get(machine, row["t1"]))
            self._last_output_at_s[machine] = row["t2"]
            if not row["reqs"] or device_s <= 0:
                continue
            measured = {
                "at_s": row["t0"],
                "device_s": device_s,
                "schedule_s": row["t1"] - row["t0"],
                "update_s": row["t3"] - row["t2"],
            }
            num_changes = len(online.changes)
            online.observe({**batch_of(row["reqs"]), **measured, "front_end_s": float("nan")})
            for at_s, scale in online.changes[num_changes:]:
                tqdm.write(
                    f"{pool.name}/{machine}: since about {at_s:.0f} s of the run steps take {scale:.2f} times what "
                    f"{pool.replicas.calibration} says",
                    file=sys.stderr,
                )
            self._num_steps += 1
            if self._num_steps % SETTLING_STEPS == 0:
                self._tell(str(pool.replicas.calibration))

    def scale(self, calibration: str) -> float:
        """Returns how much longer than in this file steps take now: the geometric mean over its live replicas.

        Those that are gone count no more, unless all are.
        """
        logs = {
            key: log(one.scale) for key, one in self._found.items() if self._pools[key[0]].replicas.calibration == calibration
        }
        here = [value for key, value in logs.items() if not self._replicas[key].is_over] or [*logs.values()]
        return exp(sum(here) / len(here)) if here else 1.0

    def _tell(self, calibration: str) -> None:
        for index, pool in enumerate(self._pools):
            if pool.replicas.calibration != calibration:
                continue
            scale = pool.replicas.step_time_scale * self.scale(calibration)
            fields = _calibration(pool).engine_fields(pool.replicas.own_weight_bytes(pool.model), scale)
            fields["overhead_s"] += pool.replicas.draft_s
            for name, value in fields.items():
                self._engines[index][name] = value

    def told(self) -> dict[str, Any]:
        """Returns for the manifest what was found of each live replica."""
        return {
            f"{self._pools[index].name}/{machine}": {
                "calibration": self._pools[index].replicas.calibration,
                "scale": one.scale,
                "alarms_at_s": one.alarms_at_s,
                "changes": [{"since_s": at_s, "scale": scale} for at_s, scale in one.changes],
            }
            for (index, machine), one in self._found.items()
        }


def _calibration(pool: Pool) -> Any:
    options = pool.replicas
    assert options.calibration is not None
    dtype, size = options.weight_dtype, options.tensor_parallel_size
    return read_for(options.calibration, pool.model, dtype, size, options.kv_element_bytes)
