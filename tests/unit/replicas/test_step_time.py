"""The arithmetic of one step, by hand; run uncompiled as well."""

from typing import Any

import pytest

from replicas import step_time as module
from sim.records import BATCH, ENGINE, records


def a_batch(tokens: int = 10, attended: float = 100.0, kv: int = 50, requests: int = 4) -> Any:
    batch = records(BATCH, 1)[0]
    batch.num_tokens, batch.attended_tokens, batch.kv_tokens, batch.num_requests = tokens, attended, kv, requests
    return batch


def an_engine(**fields: float) -> Any:
    engine = records(ENGINE, 1)
    given = {
        "flops_per_token": 2.0,
        "flops_per_attended_token": 0.5,
        "flops_per_s": 1.0,
        "dense_weight_bytes": 30.0,
        "kv_bytes_per_token": 1.0,
        "bytes_per_s": 2.0,
        **fields,
    }
    for name, value in given.items():
        engine[name] = value
    return engine[0]


def python(function: Any) -> Any:
    return getattr(function, "py_func", function)


@pytest.fixture(params=["compiled", "python"])
def step_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "compiled":
        return module.step_time
    for name in ("weight_bytes_read", "padded_tokens", "measured_s", "gpu_time", "cpu_time", "step_time_among"):
        monkeypatch.setattr(module, name, python(getattr(module, name)))
    return python(module.step_time)


def test_slower_of_arithmetic_and_memory(step_time: Any) -> None:
    assert step_time(a_batch(), an_engine()) == 10 * 2 + 100 * 0.5  # 70 s of arithmetic, (30 + 50) / 2 s of reading
    assert step_time(a_batch(), an_engine(bytes_per_s=1.0)) == 80


def test_links_and_overhead_are_added(step_time: Any) -> None:
    assert step_time(a_batch(), an_engine(comm_s=3.0, comm_s_per_token=0.5, overhead_s=2.0)) == 70 + 3 + 5 + 2


def test_cpu_is_added_or_hidden_behind_the_gpu(step_time: Any) -> None:
    cpu = {"cpu_s": 10.0, "cpu_s_per_request": 5.0}
    assert step_time(a_batch(), an_engine(**cpu)) == 70 + 30
    assert step_time(a_batch(), an_engine(**cpu, async_scheduling=1)) == 70
    assert step_time(a_batch(requests=20), an_engine(**cpu, async_scheduling=1)) == 110


def test_a_step_reads_the_experts_that_its_tokens_hit(step_time: Any) -> None:
    """Two of eight experts a token: 1, 3 and very many tokens touch 1/4, 1 - (3/4)^3 and all of 64 bytes."""
    engine = an_engine(expert_weight_bytes=64.0, expert_hit_share=0.25, flops_per_token=0.0, flops_per_attended_token=0.0)
    for tokens, touched in ((1, 16), (3, 64 * (1 - 0.75**3)), (1000, 64)):
        assert step_time(a_batch(tokens, 0.0, 0), engine) == pytest.approx((30 + touched) / 2)


def test_calibrated_terms_are_added(step_time: Any) -> None:
    """70 s of arithmetic and 40 s of reading: a quarter of the shorter is not hidden; 3 s for each of four requests."""
    assert step_time(a_batch(), an_engine(serial_share=0.25, gpu_s_per_request=3.0)) == 70 + 10 + 12


def test_kv_takes_longer_in_a_step_with_prompt_tokens(step_time: Any) -> None:
    """50 tokens of KV at 2 s more each and 7 s, if some request has more than one new token; decodes alone have neither."""
    for requests, more in ((4, 107.0), (10, 0.0)):
        batch, engine = a_batch(tokens=10, kv=50, requests=requests), an_engine(mixed_kv_s_per_token=2.0, mixed_s=7.0)
        assert step_time(batch, engine) == step_time(batch, an_engine()) + more


def test_a_step_that_no_graph_holds_takes_longer(step_time: Any) -> None:
    """Graphs of up to 8 tokens: 8 decodes, or 2 with a prompt of 6, are in one; 9 tokens are not, whatever they are."""
    for tokens, requests, more in ((8, 8, 0.0), (8, 3, 0.0), (9, 9, 5.0), (9, 3, 5.0)):
        batch = a_batch(tokens=tokens, kv=50, requests=requests)
        assert (
            step_time(batch, an_engine(max_graph_tokens=8, eager_s=5.0))
            == step_time(batch, an_engine(max_graph_tokens=8)) + more
        )


@pytest.mark.parametrize("field", ["fitted_requests", "fitted_tokens", "fitted_attended_tokens", "fitted_kv_tokens"])
def test_a_step_larger_than_those_fitted_is_outside_in_each_respect(field: str) -> None:
    batch = a_batch(tokens=10, kv=50, requests=4)
    largest = {"fitted_requests": 4.0, "fitted_tokens": 10.0, "fitted_attended_tokens": 100.0, "fitted_kv_tokens": 50.0}
    is_outside_range = python(module.is_outside_range)
    assert not is_outside_range(batch, an_engine(**largest))
    assert is_outside_range(batch, an_engine(**{**largest, field: largest[field] - 1}))


def test_shared_experts_serve_the_tokens_of_all(step_time: Any) -> None:
    """30 tokens on three engines: 10 each. Arithmetic 20 + 50 + 30 x 0.25; what each sends 10 x 0.5."""
    engine = an_engine(num_together=3, expert_flops_per_token=0.25, comm_s_per_token=0.5)
    assert step_time(a_batch(), engine) == 10 * 2 + 100 * 0.5 + 30 * 0.25 + 10 * 0.5


@pytest.mark.parametrize(("max_graph_tokens", "own", "together"), [(0, 10, 30), (16, 10, 30), (32, 24, 48)])
def test_steps_that_are_taken_together_are_padded_to_the_longest_if_all_fit_graphs(
    max_graph_tokens: int, own: int, together: int
) -> None:
    """10 tokens here and 20 there: in graphs of up to 32, 24 each; else as they are. Messages take as long as the longest's."""
    engine = an_engine(num_together=2, expert_flops_per_token=0.25, comm_s_per_token=0.5, max_graph_tokens=max_graph_tokens)
    longest = 24 if max_graph_tokens == 32 else 20
    seconds = python(module.step_time_among)(a_batch(), engine, 20, 30)
    assert seconds == own * 2 + 100 * 0.5 + together * 0.25 + longest * 0.5


def test_scaling_every_rate_scales_every_step(step_time: Any) -> None:
    slow = an_engine(comm_s=4.0, overhead_s=2.0, cpu_s=8.0, gpu_s_per_request=0.5)
    fast = an_engine(flops_per_s=2.0, bytes_per_s=4.0, comm_s=2.0, overhead_s=1.0, cpu_s=4.0, gpu_s_per_request=0.25)
    assert step_time(a_batch(), slow) == 2 * step_time(a_batch(), fast)


def test_what_was_measured_is_looked_up(step_time: Any) -> None:
    """Measured at 4, 8 and 16 tokens: 1, 3 and 4 s more; on lines between them, and on the last one beyond."""
    engine = an_engine(num_knots=3, flops_per_token=0.0)
    engine.knot_tokens[:3], engine.knot_s[:3] = (4, 8, 16), (1, 3, 4)
    for tokens, more in ((4, 1), (5, 1.5), (8, 3), (12, 3.5), (16, 4), (32, 6)):
        assert step_time(a_batch(tokens, requests=tokens), engine) == 50 + more


def test_a_step_with_prompt_tokens_has_a_least_time(step_time: Any) -> None:
    assert step_time(a_batch(requests=4), an_engine(launch_s=99.0)) == 99
    assert step_time(a_batch(requests=4), an_engine(launch_s=60.0)) == 70
    assert step_time(a_batch(requests=10), an_engine(launch_s=99.0)) == 70
