"""vLLM itself as a replica, on this machine's device. `make test-live` runs these in an interpreter that has vLLM 0.32.0."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import run
from experiments.cli import main
from experiments.contracts.fleets import arrivals, engine
from experiments.contracts.fleets import run as run_fleet
from replicas import catalog
from replicas.live.bench import Bench
from replicas.live.config import Vllm
from replicas.live.interface import Step
from replicas.live.plane import EngineSource
from sim.errors import EngineError
from tests.live_engines import per_token

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed in this interpreter"),
]

CONFIG = Path(__file__).parents[2] / "configs" / "live_smoke.yaml"
LIVE = ["sweep=null", "traffic.limit=40"]
MODEL = catalog.model(
    {
        "layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 32, "intermediate": 128, "vocab": 1000,
        "num_params": 137_000, "max_model_len": 1024,
    }
)  # fmt: skip
GPU = catalog.gpu({"bf16_flops_per_s": 1e10, "memory_bytes": 8e9, "bytes_per_s": 1e10, "link_bytes_per_s": 1e10})
SMALL: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "block_size": 32,
    "max_model_len": 512,
    "num_gpu_blocks": 24,
    "async_scheduling": False,
    "enforce_eager": True,
    "engine_args": {"dtype": "float32"},
}


def start(**options: Any) -> Any:
    return Vllm(**(SMALL | options)).start(MODEL, GPU, enable_prefix_caching=True)


def steps(live: Any) -> list[Step]:
    done = []
    while live.has_work():
        done.append(live.step())
    return done


class Timed:
    """A real engine whose steps count as long as `per_token` says: what is left to compare are its decisions."""

    def __init__(self) -> None:
        self.engine = start()
        self.limits, self.start_s = self.engine.limits, self.engine.start_s
        self.add, self.has_work = self.engine.add, self.engine.has_work
        self.count_blocks, self.shut_down = self.engine.count_blocks, self.engine.shut_down
        self.follow, self.abort = self.engine.follow, self.engine.abort

    def step(self) -> Step:
        step: Step = self.engine.step()
        step.lasted_s = per_token({"num_tokens": sum(one.num_new_tokens for one in step.scheduled)})
        return step


@pytest.mark.parametrize("seed", range(3))
def test_with_equal_step_times_vllm_serves_every_request_when_its_surrogate_does(seed: int) -> None:
    """Two replicas, clumps, shared beginnings, preemptions: the same instants and cache hits, request by request."""
    rng = np.random.default_rng(seed)
    num = 60
    at_s = np.cumsum(rng.exponential(0.05, num) * (rng.random(num) < 0.7))
    prompts, outputs = rng.integers(1, 250, num), rng.integers(1, 120, num)
    arriving = arrivals(list(zip(at_s.tolist(), prompts.tolist(), outputs.tolist(), strict=True)))
    segments = [[(int(rng.integers(3)), int(rng.integers(1, 1 + prompt)))] for prompt in prompts.tolist()]
    simulated_engine = engine(
        max_num_seqs=4, max_num_batched_tokens=64, block_size=32, num_usable_blocks=23, max_model_len=512,
        enable_prefix_caching=1, flops_per_token=1e-5, flops_per_s=1.0,
    )  # fmt: skip
    options: dict[str, Any] = {"replicas": 2, "segments": segments}
    simulated = run_fleet(arriving, simulated_engine, **options).requests
    live = run_fleet(arriving, simulated_engine, source=EngineSource(Timed), **options).requests
    for name in ("scheduled_at_s", "first_token_at_s", "finished_at_s"):
        np.testing.assert_allclose(live[name], simulated[name], atol=1e-9, err_msg=name)
    for name in ("num_generated_tokens", "num_cached_tokens", "num_preemptions", "replica"):
        np.testing.assert_array_equal(live[name], simulated[name], err_msg=name)
    assert live["num_cached_tokens"].sum() > 0
    assert live["num_preemptions"].sum() > 0


def test_answers_have_the_length_that_is_asked_and_prefixes_are_hit() -> None:
    live = start()
    prompt = list(range(1, 151))
    live.add(0, prompt, 7)
    first = steps(live)
    live.add(1, [*prompt[:100], *range(500, 550)], 3)
    second = steps(live)
    assert sum(len(step.tokens.get(0, [])) for step in first) == 7
    assert sum(len(step.tokens.get(1, [])) for step in second) == 3
    assert first[0].scheduled[0].num_computed_tokens == 0
    assert second[0].scheduled[0].num_computed_tokens == 96  # three full blocks of 32
    assert all(step.lasted_s > 0 and step.cpu_s > 0 for step in first + second)
    rows = [row for step in first for row in step.done]
    assert [len(row["reqs"]) for row in rows] == [1] * len(rows)
    assert all(row["t0"] <= row["t1"] and row["t2"] <= row["t3"] <= 0 for row in rows)
    live.shut_down()


def test_engines_live_side_by_side_and_one_may_go() -> None:
    one, other = start(), start()
    one.add(0, [1, 2, 3], 4)
    other.add(0, [1, 2, 3], 4)
    one.step()
    one.shut_down()
    assert sum(len(step.tokens.get(0, [])) for step in steps(other)) == 4
    held, free = other.count_blocks()
    assert (held, free) == (0, 23)
    other.shut_down()


def test_two_replicas_behind_a_router_with_an_autoscaler(tmp_path: Path) -> None:
    autoscaler = (
        "pools.main.autoscaler={kind: queue_target, min_replicas: 1, max_replicas: 2, warm_buffer: 0, interval_s: 1, "
        "replica_token_capacity: 300, scale_down_stabilization_s: 2}"
    )
    sets = [*LIVE, autoscaler, "pools.main.lifecycle={provision_s: 0.5, image_s: 0}", "pools.main.replicas.record_steps=true"]
    result = run(CONFIG, out=tmp_path, sets=sets, progress=False)
    assert (result.requests["status"] == "finished").all()
    assert set(result.requests["replica"]) >= {0, 1}
    assert len(result.manifest["invariants_checked"]) == 12
    second = result.replicas.loc[1]
    assert second["started_at_s"] > second["weights_loaded_at_s"] > second["provisioned_at_s"] > second["requested_at_s"]
    assert result.manifest["live"]["main"]["version"].startswith("0.32")
    rows = [json.loads(line) for line in (result.folder / "steps" / "0_steps.jsonl").read_text().splitlines()]
    assert sum(len(row["finished"]) for row in rows) == (result.requests["replica"] == 0).sum()


def test_the_same_file_runs_on_both_kinds_and_finds_the_same_prefixes(tmp_path: Path) -> None:
    live = run(CONFIG, out=tmp_path / "live", sets=LIVE, progress=False)
    simulated = run(CONFIG, out=tmp_path / "sim", sets=[*LIVE, "pools.main.replicas.kind=surrogate"], progress=False)
    assert (live.requests["status"] == "finished").all()
    for name in ("num_prompt_tokens", "num_output_tokens", "arrived_at_s"):
        assert live.requests[name].tolist() == simulated.requests[name].tolist()
    shares = [one.requests["num_cached_tokens"].sum() / one.requests["num_prompt_tokens"].sum() for one in (live, simulated)]
    # which replica a request meets depends on step times, so a few prefixes are found on one side only
    assert shares[0] > 0.1
    assert shares[0] == pytest.approx(shares[1], abs=0.1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("pools.main.replicas.required_version='0.1'", "required_version: 0.1 is asked for, and vLLM 0.32.0 is installed"),
        ("pools.main.replicas.engine_args={dtype: float32, max_num_seq: 4}", "did you mean 'max_num_seqs'?"),
        ("pools.main.replicas.engine_args={dtype: float33}", "vLLM did not start: "),
        ("pools.main.replicas.num_gpu_blocks=200000000", "vLLM did not start: "),
        ("pools.main.replicas.model=/no/such/folder", "vLLM did not start: "),
    ],
)
def test_what_keeps_it_from_starting_is_one_line(
    change: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [word for one in (*LIVE, change) for word in ("--set", one)]
    assert main([str(CONFIG), "--out", str(tmp_path), *sets]) == 1
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert text in line


def test_an_engine_that_crashes_ends_the_run_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    real, calls = GPUModelRunner.execute_model, []

    def fails(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > 100:
            raise RuntimeError("CUDA out of memory")
        return real(*args, **kwargs)

    monkeypatch.setattr(GPUModelRunner, "execute_model", fails)
    sets = [word for one in LIVE for word in ("--set", one)]
    assert main([str(CONFIG), "--out", str(tmp_path), *sets]) == 1
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "vLLM failed in a step: RuntimeError: CUDA out of memory; the results so far are in" in line
    assert 0 < json.loads((tmp_path / "live_smoke" / "manifest.json").read_text())["counts"]["requests"] <= 40


def test_a_prompt_that_vllm_refuses_is_one_line() -> None:
    live = start()
    with pytest.raises(EngineError, match="vLLM did not take request 0: "):
        live.add(0, list(range(1, 600)), 1)
    live.shut_down()


@pytest.mark.parametrize("shape", [(4, 130, 0, 0), (0, 0, 50, 96), (2, 64, 40, 32), (1, 500, 0, 0)])
def test_the_bench_runs_the_shape_that_is_asked(shape: tuple[int, int, int, int]) -> None:
    live = start(num_gpu_blocks=64)
    bench = Bench(live)
    measured = np.array([bench.measure(*shape) for _ in range(5)])
    assert (measured > 0).all()
    device_s, schedule_s, *_ = measured.min(axis=0)  # the least: what else runs here only ever adds
    assert device_s > 5 * schedule_s  # planning is a tenth of a millisecond, the model some of them
    assert live.count_blocks() == (0, 63)
    live.shut_down()
