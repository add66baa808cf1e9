"""Simulates served results: the same load and engine; and what the simulated users saw."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from accuracy.errors import Measures
from accuracy.measured.arguments import options_of, with_defaults_of
from accuracy.measured.results import Served
from accuracy.repeated.traffic import is_random, is_whole, traffic_of
from experiments.settings.experiment import Experiment
from experiments.settings.mistakes import validated
from sim.errors import TraceError
from sim.records import FINISHED

WARM_UP = 0.1
"""Share of the requests that fill the engine and are not measured; the real stages are minutes long and follow each other.
Where a client limits the requests in flight, or sends all at once, or reports on all that it sent, all are simulated and
measured, as in its own figures."""


@dataclass(frozen=True)
class Outcome:
    """What came of one simulated result."""

    measures: Measures  # of all draws together
    largest: tuple[float, float, float, float]  # requests, tokens, attended tokens, KV tokens of a step, at most
    draws: Sequence[Measures] = ()  # of each draw of the arrivals
    num_refused: int = 0  # requests that were not served, in all draws

    def draw_spread(self, metric: str, statistic: str) -> float:
        """Returns the standard deviation between draws, over their mean; NaN of fewer than two."""
        values = np.array([one.value(metric, statistic) for one in self.draws])
        return float(values.std(ddof=1) / values.mean()) if len(values) > 1 else float("nan")


class _Kept:
    """A sink that keeps the requests and drops the rest."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def add_machine(self, machine: int, pool: int) -> None: ...

    def write_requests(self, first_id: int, rows: Any) -> None:
        self.rows.append(rows.copy())

    def write_interval(self, rows: list[dict[str, Any]]) -> None: ...


def experiment_of(
    served: Served,
    calibration: str,
    seed: int = 1,
    step_time_scale: float = 1.0,
    scratch: Path | None = None,
) -> Experiment:
    """Returns the simulation that repeats a served result.

    Args:
        served: what to repeat.
        calibration: the file with the step times.
        seed: of the run.
        step_time_scale: multiplies all step times.
        scratch: folder for a table of requests, as long as the simulation is needed.

    Raises:
        TraceError: the engine's arguments contradict each other or the calibration.
    """
    pool = {
        "name": "main",
        "model": served.own.get("model", served.model),
        "gpu": served.own.get("gpu", served.gpu),
        "replicas": {
            "kind": "surrogate",
            "calibration": calibration,
            "step_time_scale": step_time_scale,
            **engine_options(served)[0],
        },
        "autoscaler": {"kind": "fixed", "replicas": 1},
    }
    document = {
        "name": "served",
        "kind": "simulate",
        "seed": seed,
        "traffic": traffic_of(served, seed, scratch),
        "router": {"kind": "round_robin"},
        "pools": [pool],
    }
    return validated(Experiment, document, served.name)


def engine_options(served: Served) -> tuple[dict[str, Any], list[str]]:
    """Returns the surrogate's options for the engine that served, and the arguments that it does not know, in words."""
    given, unknown = options_of(served.arguments)
    options = with_defaults_of(served.engine_version, given)
    options |= {"tensor_parallel_size": served.tensor_parallel_size, "quantization": served.quantization}
    return {name: value for name, value in options.items() if value is not None}, unknown


def simulate(
    served: Served,
    calibration: str,
    client_s: float,
    seed: int = 1,
    draws: int = 1,
    step_time_scale: float = 1.0,
) -> Outcome:
    """Simulates a served result in memory.

    Args:
        served: what to repeat.
        calibration: the file with the step times.
        client_s: what the clients' clocks show on top of the engine's time: network, tokenizer.
        seed: of the first draw; the next have the next seeds.
        draws: how often to draw random arrivals; what is drawn once, as closed loops are, is simulated once.
        step_time_scale: multiplies all step times.
    """
    from experiments.wiring import Wiring  # here: compiled code

    outside_s = client_s + (served.num_requests * served.front_end_s if served.is_at_once else 0.0)
    outcomes = []
    for one in range(seed, seed + (draws if is_random(served) else 1)):
        sink = _Kept()
        with TemporaryDirectory() as scratch:
            experiment = experiment_of(served, calibration, one, step_time_scale, Path(scratch))
            wiring = Wiring(experiment, sink, lambda now_s, num_ended: None)
            wiring.simulation.run()
        outcomes.append(_outcome(served, np.concatenate(sink.rows), wiring.plane.fleet.replicas[0], outside_s))
    return _together(outcomes)


def _outcome(served: Served, everything: Any, replica: Any, outside_s: float) -> Outcome:
    num_warm_up = 0 if is_whole(served) else int(WARM_UP * len(everything))
    measured = everything[num_warm_up:]
    rows: Any = measured[measured["status"] == FINISHED].view(np.recarray)
    if not len(rows):
        raise TraceError(f"{served.name}: cannot be simulated: its requests are too long for the engine, which serves none")
    ttft_s = rows.first_token_at_s - rows.arrived_at_s + outside_s
    e2e_s = rows.finished_at_s - rows.arrived_at_s + outside_s
    num_gaps = rows.num_output_tokens - 1.0
    tpot_s = np.where(num_gaps > 0, (e2e_s - ttft_s) / np.maximum(num_gaps, 1), np.nan)
    latencies = {"ttft_s": ttft_s, "e2e_s": e2e_s, "tpot_s": tpot_s}
    span_s = float(rows.finished_at_s.max() - rows.arrived_at_s.min()) + (outside_s if served.is_at_once else 0.0)
    longest = int((rows.num_prompt_tokens + rows.num_output_tokens).max())
    context = max(longest, served.num_prompt_tokens + served.num_output_tokens)
    kv_tokens = float(replica.peak_running) * context
    attended = kv_tokens + float(replica.peak_batched_tokens) * served.num_prompt_tokens / 2
    largest = (float(replica.peak_running), float(replica.peak_batched_tokens), attended, kv_tokens)
    measures = Measures(latencies, rates={"requests_per_s": len(rows) / span_s})
    return Outcome(measures, largest, num_refused=len(measured) - len(rows))


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    """All requests of all draws, the mean of their rates, and the largest steps."""
    found = [one.measures for one in outcomes]
    latencies = {metric: np.concatenate([one.latencies[metric] for one in found]) for metric in found[0].latencies}
    rates = {name: float(np.mean([one.rates[name] for one in found])) for name in found[0].rates}
    a, b, c, d = np.max([one.largest for one in outcomes], axis=0).tolist()
    return Outcome(Measures(latencies, rates=rates), (a, b, c, d), found, sum(one.num_refused for one in outcomes))
