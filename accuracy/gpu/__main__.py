"""Measures an engine on the device that is at hand, records it serving, and says how far off its simulation is.

    python -m accuracy.gpu configs/live_8b.yaml --out OUT --minutes 12      # on a GPU; no network is needed
    python -m accuracy.gpu configs/live_smoke.yaml --out OUT --minutes 4    # the rehearsal, on a CPU

The config's first pool is the engine (`kind: vllm`). In OUT, in this order: `calibration/` (its step times), `recordings/` (it
serves the config's traffic at 30, 60 and 85 % of what the calibration says it sustains, in real time), `virtual/` (one of these
again in virtual time), `validation/` (errors of the surrogate against the recordings). Each part has a share of the minutes;
what comes when they are over is left out, but for the validation, which takes seconds. If one fails, a line says so, and the
next one does what it can.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from accuracy.measured.recordings import Recording
from accuracy.repeated.replay import traffic_of
from experiments.cli import main as run_command
from experiments.settings.experiment import Experiment, Pool
from experiments.settings.loading import load
from replicas.capacity import capacity
from replicas.live.config import Vllm
from replicas.live.record import record
from replicas.live.tokens import TokenStreams
from replicas.surrogate import Surrogate
from sim.errors import ConfigError, EngineError

MEASURE_SHARE, RECORD_SHARE = 0.3, 0.12
"""Shares of the time: of measuring, and of each recording. What is left is for three starts of the engine and the rest."""
MAX_KV_TOKENS = 1 << 17
"""Contexts of a measured step, together: some seconds of prefill on a GPU. 256 decodes of 512, or 16 of 8,192."""
SCHEDULING = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "num_gpu_blocks", "tensor_parallel_size",
    "async_scheduling", "enforce_eager",
)  # fmt: skip
"""Options that the engine's capacity depends on, besides its step times."""
LOADS = {"low": 0.3, "mid": 0.6, "high": 0.85}
"""Shares of the capacity at which it is recorded."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts and returns how many failed."""
    parser = argparse.ArgumentParser(prog="python -m accuracy.gpu", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=12.0)
    options = parser.parse_args(arguments)
    try:
        session = Session(options.config, options.out, 60.0 * options.minutes)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    parts: list[tuple[str, Callable[[], None]]] = [
        ("calibrate", session.calibrate),
        ("record", session.record),
        ("validate", session.validate),
        ("virtual", session.virtual),
    ]
    num_failed = 0
    for name, part in parts:
        began = time.monotonic()
        if name == "virtual" and session.left_s() <= 0:
            print("== virtual: left out, no time is left", flush=True)
            continue
        try:
            part()
            ending = ""
        except (ConfigError, EngineError, OSError, ValueError) as error:
            num_failed += 1
            ending = f": FAILED, {error}"
        print(f"== {name}: {time.monotonic() - began:.0f} s, {session.left_s():.0f} s left{ending}", flush=True)
    return num_failed


class Session:
    """One engine, one device, one allowance of time.

    Raises:
        ConfigError: the config has no live pool, or does not simulate.
    """

    def __init__(self, config: Path, out: Path, limit_s: float) -> None:
        kind = (yaml.safe_load(config.read_text(encoding="utf-8")) or {}).get("kind", "simulate") if config.is_file() else ""
        if kind not in ("", "simulate"):
            raise ConfigError(f"{config}: kind: must be simulate here, given {kind!r}")
        (run, *_) = load(config, ["sweep=null"])
        assert isinstance(run.experiment, Experiment)
        self.experiment: Experiment = run.experiment
        self.pool: Pool = self.experiment.pools[0]
        if not isinstance(self.pool.replicas, Vllm):
            raise ConfigError(f"{config}: pools.{self.pool.name}.replicas.kind: must be vllm here")
        self.engine: Vllm = self.pool.replicas
        self.config, self.out, self.limit_s, self.began = config, out, limit_s, time.monotonic()
        out.mkdir(parents=True, exist_ok=True)

    def left_s(self) -> float:
        """Returns the seconds that are left."""
        return self.limit_s - (time.monotonic() - self.began)

    def calibrate(self) -> None:
        """Measures step shapes and fits the step time."""
        document = {
            "name": "calibration",
            "kind": "calibrate",
            "model": self.pool.model.model_dump(mode="json"),
            "gpu": self.pool.gpu.model_dump(mode="json"),
            "dtype": self.engine.engine_dtype,
            "tensor_parallel_size": self.engine.tensor_parallel_size,
            "measure": {
                "kind": "vllm",
                "engine": self.engine.model_dump(mode="json", exclude_none=True),
                "max_kv_tokens": MAX_KV_TOKENS,
            },
            "max_measure_s": MEASURE_SHARE * self.limit_s,
        }
        self._command("calibrate", document)

    def record(self) -> None:
        """Has a free-running engine serve the traffic at several loads, in real time."""
        rate_per_s = self._capacity_per_s()
        live: Any = self.engine.start(self.pool.model, self.pool.gpu, self.experiment.traffic.shares_tokens)
        live.runs_free = True
        meta = {
            "engine_args": {
                "max_num_seqs": live.limits.max_num_seqs,
                "max_num_batched_tokens": live.limits.max_num_batched_tokens,
                "max_model_len": live.limits.max_model_len,
                "block_size": live.limits.block_size,
                "enable_prefix_caching": live.limits.enable_prefix_caching,
                "enforce_eager": self.engine.enforce_eager,
                "dtype": self.engine.engine_dtype,
            },
            "num_gpu_blocks": live.limits.num_gpu_blocks,
            "scheduler_config": {"async_scheduling": live.limits.async_scheduling},
            "start_s": live.start_s,
            "version": live.limits.version,
        }
        for number, (name, share) in enumerate(LOADS.items()):
            if self.left_s() <= 0:
                print(f"   {name}: left out, no time is left", flush=True)
                continue
            served_s = min(RECORD_SHARE * self.limit_s, self.left_s() / 2)
            arriving, prompts = self._workload(share * rate_per_s, served_s, number)
            recording = record(live, arriving, prompts, served_s)
            shared = prompts if self.experiment.traffic.shares_tokens else None
            about = {**meta, "rate_per_s": share * rate_per_s}
            recording.write(self.out / "recordings", name, about, shared)
            print(f"   {name}: {share * rate_per_s:.3g} requests/s, {len(recording.requests)} requests", flush=True)
        live.shut_down()

    def virtual(self) -> None:
        """Serves the low load again in virtual time: is what `kind: vllm` says of an engine what the free engine did?"""
        recording = Recording(self.out / "recordings", "low")
        traffic = traffic_of(recording, self.out / "recordings")
        document = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        document |= {"name": "virtual", "traffic": traffic}
        document.pop("sweep", None)
        document["pools"] = document["pools"][:1]
        document["pools"][0]["autoscaler"] = {"kind": "fixed", "replicas": 1}
        self._command("virtual", document)
        recorded, virtual = recording.requests, pd.read_parquet(self.out / "virtual" / "requests.parquet")
        for metric, last in (("ttft_s", "first_token_s"), ("e2e_s", "last_token_s")):
            real_s, ours_s = (recorded[last] - recorded["arrival_s"]).median(), virtual[metric].median()
            print(f"   {metric} p50: {real_s:.4f} running free, {ours_s:.4f} in virtual time ({ours_s / real_s - 1:+.1%})")

    def validate(self) -> None:
        """Simulates the recordings with the calibration."""
        document = {
            "name": "validation",
            "kind": "validate",
            "recordings": str(self.out / "recordings"),
            "calibration": str(self._calibration()),
            "drift": "each",
        }
        self._command("validate", document)

    def _calibration(self) -> Path:
        return self.out / "calibration" / "calibration.yaml"

    def _capacity_per_s(self) -> float:
        """What one replica sustains by its calibration."""
        options = {name: getattr(self.engine, name) for name in SCHEDULING}
        own = {"calibration": str(self._calibration()), "dtype": self.engine.engine_dtype}
        calibrated = Surrogate.model_validate(options | own)
        record = calibrated.engine(self.pool.model, self.pool.gpu)
        traffic = self.experiment.traffic
        return capacity(record, traffic.mean_prompt_tokens, traffic.mean_output_tokens).requests_per_s

    def _workload(self, rate_per_s: float, duration_s: float, seed: int) -> tuple[list[tuple[float, int]], list[list[int]]]:
        """Poisson arrivals with the lengths and shared tokens of the config's traffic."""
        stream = self.experiment.traffic.stream(self.experiment.seed + seed)
        rows = next(iter(stream.chunks()))
        segments = stream.segments_of(rows)
        num = min(len(rows), max(1, int(rate_per_s * duration_s)))
        at_s = np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate_per_s, num))
        streams = TokenStreams(self.pool.model.vocab)
        ends = np.cumsum(rows["num_segments"])
        prompts = [
            streams.prompt(k, segments[ends[k] - rows["num_segments"][k] : ends[k]], int(rows["num_prompt_tokens"][k]))
            for k in range(num)
        ]
        return list(zip(at_s.tolist(), rows["num_output_tokens"][:num].tolist(), strict=True)), prompts

    def _command(self, name: str, document: dict[str, Any]) -> None:
        path = self.out / f"{name}.yaml"
        path.write_text(yaml.safe_dump(json.loads(json.dumps(document)), sort_keys=False), encoding="utf-8")
        if run_command([str(path), "--out", str(self.out), "--force"]) != 0:
            raise ConfigError(f"{path} failed, see above")


if __name__ == "__main__":
    sys.exit(main())
