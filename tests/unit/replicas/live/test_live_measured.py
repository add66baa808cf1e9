"""`measure: {kind: vllm}` finds what a step of its engine takes; the engine is the naive one."""

import pytest

from accuracy.calibrations.config import Calibrate
from replicas.calibration.fit import fit
from replicas.calibration.measure import Patience, measure_all
from replicas.calibration.shapes import worth_measuring
from replicas.live.measured import ROOM_TOKENS, MeasuredVllm
from tests.live_engines import Naive
from tests.unit.replicas.live.test_live_shadow import CONFIG


def measured(**options: object) -> MeasuredVllm:
    from experiments.settings.loading import load

    (run,) = load(CONFIG, ["sweep=null", "pools.main.replicas.kind=surrogate"])
    pool = run.experiment.pools[0]  # type: ignore[union-attr]
    small = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "block_size": 16, "max_model_len": 300, "num_gpu_blocks": 400}
    engine = MeasuredVllm(engine=Naive(**{**small, **options}))  # type: ignore[arg-type]
    engine.take(pool.model, pool.gpu)
    return engine


def test_its_coefficients_are_found() -> None:
    """10 ms and 10 us a token, of which planning takes 1 ms and taking the output in 2 ms (tests/live_engines.py)."""
    engine = measured()
    shapes = worth_measuring(*engine.limits())
    found = measure_all(engine, shapes, seed=1, patience=Patience(min_repeats=2, max_repeats=3))
    assert found.loose == []
    assert len(found.steps) == 2 * len(shapes) > 20
    fitted = fit(found.steps, 0, None)
    # no noise in it; what is left is that the first of a batch's contexts are a few tokens longer than asked
    assert fitted.device_time.s_per_token == pytest.approx(1e-5, rel=0.02)
    assert fitted.device_time.weights_s + fitted.device_time.fixed_s == pytest.approx(0.007, rel=0.02)
    assert fitted.cpu_time is not None
    assert fitted.cpu_time.schedule.s == pytest.approx(0.001, rel=0.02)
    assert fitted.cpu_time.update.s == pytest.approx(0.002, rel=0.02)


def test_limits_leave_room_for_measuring() -> None:
    limits = measured().limits()
    assert limits.max_model_len == 300 - ROOM_TOKENS
    assert limits.num_kv_tokens == (399 - 8 * (1 + ROOM_TOKENS // 16)) * 16


def test_contexts_can_be_kept_short() -> None:
    engine = measured()
    short = MeasuredVllm(engine=engine.engine, max_kv_tokens=1000)
    short.take(*engine._subject)  # type: ignore[misc]
    assert short.limits().num_kv_tokens == 1000
    assert max(shape.kv_tokens for shape in worth_measuring(*short.limits())) <= 1000


def test_it_says_what_it_made_for_itself_and_not_what_it_was_told() -> None:
    told = measured()
    told.limits()
    assert (told.version, told.kv_cache) == ("naive", None)
    own = measured(num_gpu_blocks=None)
    own.limits()
    assert own.kv_cache == (1000, 16)
    own.end()
    assert own.version is None


def test_measuring_stops_when_its_time_is_over() -> None:
    engine = measured()
    shapes = worth_measuring(*engine.limits())
    found = measure_all(engine, shapes, seed=1, patience=Patience(max_s=1e-9))
    assert len(found.steps) == 0
    assert len(found.loose) == len(shapes)


def test_a_config_names_it() -> None:
    config = Calibrate.model_validate_json(
        '{"name": "x", "kind": "calibrate", "model": "qwen3-0.6b", "gpu": "l4", '
        '"measure": {"kind": "vllm", "engine": {"max_num_seqs": 8}}, "max_measure_s": 60}'
    )
    assert isinstance(config.measure, MeasuredVllm)
    assert config.measure.engine.max_num_seqs == 8
