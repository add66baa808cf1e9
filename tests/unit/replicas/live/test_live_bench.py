"""The bench has an engine run the shape that is asked for, and measures that step alone."""

from dataclasses import replace

import pytest

from replicas.live.bench import Bench
from replicas.live.interface import Step
from sim.errors import EngineError
from tests.live_engines import NaiveEngine, per_token
from tests.property.naive_request import Settings

SETTINGS = Settings(
    max_num_seqs=16,
    max_num_batched_tokens=256,
    block_size=16,
    num_usable_blocks=400,
    max_model_len=1024,
    enable_prefix_caching=True,
)


class Watched(NaiveEngine):
    """Keeps its steps."""

    steps: list[Step]

    def step(self) -> Step:
        self.steps = [*getattr(self, "steps", []), super().step()]
        return self.steps[-1]


def asked(num_decodes: int, context: int, chunk: int, cached: int) -> tuple[Watched, Step]:
    engine = Watched(SETTINGS, per_token)
    bench = Bench(engine)
    for _ in range(2):
        engine.steps = []
        parts = bench.measure(num_decodes, context, chunk, cached)
    num_tokens = num_decodes + chunk
    assert parts.device_s == pytest.approx(per_token({"num_tokens": num_tokens}) - 0.003)
    assert (parts.schedule_s, parts.update_s) == pytest.approx((0.001, 0.002))
    assert parts.front_end_s == pytest.approx(0.0, abs=1e-12)  # rounding
    assert not engine.has_work()
    return engine, engine.steps[-1]


@pytest.mark.parametrize("num_decodes", [1, 5, 16])
def test_decodes_each_have_the_context(num_decodes: int) -> None:
    engine, step = asked(num_decodes, 100, 0, 0)
    contexts = [one.num_computed_tokens for one in step.scheduled]
    assert len(contexts) == num_decodes
    assert min(contexts) >= 100
    # 16 x 100 tokens come from the cache but for each one's last block: one step for all of them
    assert max(contexts) == 100
    assert len(engine.steps) == 2
    assert len({one.request for one in step.scheduled}) == num_decodes


@pytest.mark.parametrize(("chunk", "cached"), [(40, 0), (256, 0), (40, 160), (1, 320)])
def test_a_chunk_has_its_cached_tokens(chunk: int, cached: int) -> None:
    step = asked(0, 0, chunk, cached)[1]
    assert [(one.num_new_tokens, one.num_computed_tokens) for one in step.scheduled] == [(chunk, cached)]


def test_both_together() -> None:
    step = asked(6, 200, 100, 32)[1]
    assert [(one.num_new_tokens, one.num_computed_tokens) for one in step.scheduled] == [(1, 200)] * 6 + [(100, 32)]


def test_a_shape_that_the_engine_cannot_run_is_said() -> None:
    bench = Bench(NaiveEngine(SETTINGS, per_token))
    with pytest.raises(
        EngineError, match="a chunk of 300 on 0 cached tokens was asked for, and the engine ran 256 on 0 cached"
    ):
        bench.measure(chunk=300)


def test_an_engine_without_a_cache_is_refused() -> None:
    with pytest.raises(EngineError, match="enable_prefix_caching true"):
        Bench(NaiveEngine(replace(SETTINGS, enable_prefix_caching=False), per_token))
