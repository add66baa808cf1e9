"""`kind: calibrate` from a config: an engine that is measured now, recordings, and what is wrong with either."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from experiments import run
from experiments.cli import main
from replicas.calibration.file import Calibration, KvCache, Memory, read
from replicas.calibration.steps import COLUMNS
from replicas.surrogate import Surrogate
from sim.errors import ConfigError, TraceError
from tests.commands import ROOT
from tests.engines import truth
from tests.recordings import record, some_requests
from tests.shared import shared


def config(folder: Path, **keys: Any) -> Path:
    path = folder / "fit.yaml"
    path.write_text(yaml.safe_dump({"kind": "calibrate", "model": "llama-3.1-8b", "gpu": "h100-sxm", **keys}))
    return path


def test_an_engine_is_measured_and_its_file_drives_a_surrogate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, measure={"kind": "tests.engines:FakeEngine", "noise": 0.005})
    assert main([str(path), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    file = tmp_path / "fit" / "calibration.yaml"
    assert str(file) in printed
    found = read(file)
    assert (found.engine_version, found.kv_cache) == ("1.2.3", KvCache(num_gpu_blocks=5000, block_size=16))
    assert found.memory_bytes == Memory(weights=16 * 2**30, kv_cache=40 * 2**30)
    assert (
        "the engine made 5,000 KV blocks of 16 tokens for itself\non one device it holds: weights 16 GiB, kv cache 40 GiB"
        in printed
    )
    # 0.5 % noise, some 350 steps: a tenth of that on the large terms
    assert found.device_time.s_per_token == pytest.approx(truth().s_per_token, rel=0.01)
    assert found.device_time.weights_s == pytest.approx(truth().weights_s, rel=0.01)
    engine = Surrogate(calibration=str(file), enforce_eager=True).engine(found.model, found.gpu)[0]
    assert engine.num_usable_blocks == 5000 - 1
    steps = pd.read_parquet(tmp_path / "fit" / "steps.parquet")
    assert [*steps] == [*COLUMNS]
    assert found.residuals is not None
    assert len(steps) == found.residuals.num_steps
    assert (tmp_path / "fit" / "fit.png").stat().st_size > 10_000


def test_a_median_that_does_not_get_tight_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(
        tmp_path, measure={"kind": "tests.engines:FakeEngine", "noise": 0.001, "noise_of_decodes": 0.3, "max_num_seqs": 2}
    )
    assert main([str(path), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "! not tight after 50 repeats: 1 decode on 128 tokens +- " in printed


def test_the_same_recordings_give_the_same_file(tmp_path: Path) -> None:
    record(tmp_path, "some", some_requests(10))
    path = config(tmp_path, recordings=str(tmp_path))
    first = (run(path, out=tmp_path / "a", progress=False).folder / "calibration.yaml").read_bytes()
    assert (run(path, out=tmp_path / "b", progress=False).folder / "calibration.yaml").read_bytes() == first


def test_a_fit_states_which_engine_was_recorded(tmp_path: Path) -> None:
    record(tmp_path, "some", some_requests(10))
    path = config(tmp_path, recordings=str(tmp_path))

    def fitted(out: str) -> Calibration:
        return read(run(path, out=tmp_path / out, progress=False).folder / "calibration.yaml")

    first = fitted("plain")
    plain = {"kv_cache_dtypes": ["bfloat16"], "speculation": [False], "enforce_eager": [True], "adapters": [False]}
    assert first.fitted.model_dump(exclude_none=True) == plain
    assert (first.engines.models, first.engines.tensor_parallel_sizes) == (["llama-3.1-8b"], [1])
    meta = json.loads((tmp_path / "some_meta.json").read_text())
    meta["engine_args"] |= {"kv_cache_dtype": "fp8_e4m3", "enable_lora": True, "speculative_config": {"method": "ngram"}}
    (tmp_path / "some_meta.json").write_text(json.dumps(meta))
    again = fitted("rare").fitted
    assert (again.kv_cache_dtypes, again.speculation, again.adapters) == (["fp8"], [True], [True])


def test_recordings_of_a_slow_and_a_fast_hour_are_told_apart(tmp_path: Path) -> None:
    """The slow one has other shapes; clocks that both begin at 0 do not make it the same hour."""
    short = [(at_s, prompt[:60], num_output) for at_s, prompt, num_output in some_requests(15)]
    record(tmp_path, "fast", some_requests(15, seed=5) + [(400 + at_s, *rest) for at_s, *rest in short])
    record(tmp_path, "slow", short, slowness=lambda at_s: 1.4)
    found = read(run(config(tmp_path, recordings=str(tmp_path)), out=tmp_path, progress=False).folder / "calibration.yaml")
    assert found.drift is not None
    assert found.drift.slowest / found.drift.fastest == pytest.approx(1.4, rel=0.05)
    # one request in every step: its cost is one with the weights
    ours, true = (one.s_per_token / (one.weights_s + one.s_per_request) for one in (found.device_time, truth()))
    assert ours == pytest.approx(true, rel=0.03)


@pytest.mark.parametrize(
    ("keys", "error", "said"),
    [
        ({}, ConfigError, "give one of recordings, a folder of recorded steps, measure"),
        ({"recordings": "nowhere"}, TraceError, "recordings nowhere: no such folder"),
        (
            {"measure": {"kind": "tests.engines:truth"}},
            ConfigError,
            "is not a subclass of replicas.calibration.engines.MeasuredEngine",
        ),
        ({"recordings": ".", "dtype": "fp4"}, ConfigError, "dtype"),
        ({"recordings": ".", "modle": "x"}, ConfigError, "did you mean 'model'"),
    ],
)
def test_mistakes_are_told_in_a_line(keys: dict[str, Any], error: type[Exception], said: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=said):
        run(config(tmp_path, **keys), out=tmp_path, progress=False)


def test_an_unknown_kind_of_config_is_told_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("kind: calibrat\n")
    with pytest.raises(ConfigError, match="no kind of config named 'calibrat'; did you mean 'calibrate'"):
        run(path, out=tmp_path, progress=False)


def test_recorded_milliseconds_are_refused(tmp_path: Path) -> None:
    """Steps of some 20 ms, as 20 s, where an H100 reads the weights in 5 ms."""
    record(tmp_path, "some", some_requests(10), slowness=lambda at_s: 1000.0)
    with pytest.raises(ConfigError, match=r"the median step takes .* s on the device, where reading .*look like milliseconds"):
        run(config(tmp_path, recordings=str(tmp_path)), out=tmp_path, progress=False)


def test_too_few_recorded_steps_are_refused(tmp_path: Path) -> None:
    record(tmp_path, "short", [(0.0, [*range(10)], 3)])
    with pytest.raises(ConfigError, match="cannot fit: 3 steps are too few for 7 coefficients"):
        run(config(tmp_path, recordings=str(tmp_path)), out=tmp_path, progress=False)


def test_the_shipped_file_is_what_the_shipped_config_makes(tmp_path: Path) -> None:
    """calibrations/ holds no number that configs/calibrate_live_cpu.yaml does not give from the recordings."""
    sets = [f"recordings={shared('data/live_cpu')}"]
    made = read(
        run(ROOT / "configs" / "calibrate_live_cpu.yaml", out=tmp_path, sets=sets, progress=False).folder / "calibration.yaml"
    )
    shipped = read(ROOT / "calibrations" / "vllm-0.32.0_cpu-core_mid8_float32.yaml")
    found = made.device_time.model_dump(exclude_none=True)
    for name, value in found.items():  # to the solver's accuracy, which another platform's rounding can use up
        assert getattr(shipped.device_time, name) == pytest.approx(value, rel=1e-3), name
    assert shipped.range == made.range
    assert shipped.kv_cache == made.kv_cache
