"""What a user reads when a config is wrong. The tables here are small stand-ins; the real ones are tried at the end."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError, model_validator

from experiments.settings.loading import load
from experiments.settings.mistakes import mistakes_in
from sim.errors import ConfigError
from sim.kinds import KindOf
from sim.params import Params


class Shape(Params):
    pass


class Wave(Shape):
    peak_per_s: float = Field(gt=0, description="Requests/s at the peak.")
    interval_s: float = Field(default=15.0, le=3600)
    target_utilization: float = Field(default=0.7, gt=0, le=1)
    is_noisy: bool = False
    style: Literal["cosine", "triangle"] = "cosine"
    offsets: tuple[int, ...] = ()


class Flat(Shape):
    rate_per_s: float


class Length(Params):
    pass


class Fixed(Length):
    tokens: int


class Uniform(Length):
    low: int
    high: int

    @model_validator(mode="after")
    def _in_order(self) -> "Uniform":
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self


class Spread(Params):
    mean_s: float
    std_s: float


class Machine(Params):
    name: str
    max_num_seqs: int = Field(default=8, ge=1)
    start_s: float | Spread = 1.0


class Stand(Params):
    shape: Annotated[Shape, KindOf("shape", {"wave": Wave, "flat": Flat}, Shape)]
    length: Annotated[Length, KindOf("length", {"fixed": Fixed, "uniform": Uniform}, Length)] = Fixed(tokens=1)
    machines: list[Machine] = Field(default=[])


def lines(data: dict[str, Any]) -> list[str]:
    """The lines that a user would read; none for a valid config."""
    import json

    try:
        Stand.model_validate_json(json.dumps(data))
    except ValidationError as error:
        return [str(mistake) for mistake in mistakes_in(Stand, data, error)]
    return []


WAVE = {"kind": "wave", "peak_per_s": 3}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            {"shape": {**WAVE, "kind": "wav"}},
            "shape.kind: no shape named 'wav'; did you mean 'wave'? known: flat, wave",
        ),
        ({"shape": {"peak_per_s": 3}}, "shape.kind: missing; it chooses the shape, one of: flat, wave"),
        ({"shape": "wave"}, "shape: must be a mapping such as {kind: wave, ...}, given 'wave'"),
        ({"shape": {**WAVE, "kind": 3}}, "shape.kind: must be a word, given 3; known: flat, wave"),
        ({"shape": {"kind": "wave"}}, "shape.peak_per_s: missing: Requests/s at the peak"),
        ({"shape": {**WAVE, "peak_per_s": 0}}, "shape.peak_per_s: must be more than 0, given 0 — Requests/s at the peak"),
        (
            {"shape": {**WAVE, "style": "cosin"}},
            "shape.style: must be one of cosine, triangle; did you mean 'cosine'? given 'cosin'",
        ),
        ({"shape": {**WAVE, "is_noisy": "no"}}, "shape.is_noisy: must be true or false, given 'no'"),
        ({"shape": WAVE, "machines": 3}, "machines: must be a list, given 3"),
        (
            {"shape": WAVE, "machines": [{"name": "main", "max_num_seqs": 0}]},
            "machines.main.max_num_seqs: must be at least 1, given 0",
        ),
        (
            {"shape": WAVE, "machines": [{"name": "a"}, {"name": "a", "max_num_seqs": 2.5}]},
            "machines[1].max_num_seqs: must be a whole number, given 2.5",
        ),
        (
            {"shape": WAVE, "length": {"kind": "fixd", "tokens": 1}},
            "no length named 'fixd'; did you mean 'fixed'? known: fixed, uniform",
        ),
        ({"shape": WAVE, "length": {"tokens": 1}}, "length.kind: missing; it chooses the length, one of: fixed, uniform"),
        ({"shape": WAVE, "length": {"kind": "uniform", "low": 3, "high": 1}}, "length: low 3 is above high 1"),
        (
            {"shape": WAVE, "machines": [{"name": "main", "start_s": "60s"}]},
            "machines.main.start_s: must be a number or a mapping, given '60s'; in this key's unit that is 60",
        ),
        (
            {"shape": WAVE, "machines": [{"name": "main", "start_s": {"mean_s": 3}}]},
            "machines.main.start_s.std_s: missing",
        ),
    ],
)
def test_says_where_what_was_given_and_what_is_allowed(data: dict[str, Any], expected: str) -> None:
    (line,) = lines(data)
    assert expected in line


def test_unknown_key_is_refused_with_the_nearest() -> None:
    (line,) = lines({"shape": WAVE, "machine": []})
    assert line == "machine: unknown key; did you mean 'machines'? known: shape, length, machines"


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("interval_ms", "did you mean 'interval_s' (in seconds)?"),
        ("interval", "did you mean 'interval_s' (in seconds)?"),
        ("peak_rps", "did you mean 'peak_per_s' (per second)?"),
        ("target-utilisation", "did you mean 'target_utilization'?"),
        ("tu", "did you mean 'target_utilization'?"),
        ("max_num_seqs", "it belongs at machines.main.max_num_seqs"),
        ("mns", "did you mean machines.main.max_num_seqs?"),
        ("zzz", "unknown key; known: kind, peak_per_s"),
    ],
)
def test_wrong_unit_or_name_of_a_key_leads_to_the_right_one(key: str, hint: str) -> None:
    (line,) = lines({"shape": {**WAVE, key: 1}, "machines": [{"name": "main"}]})
    assert line.startswith(f"shape.{key}: unknown key")
    assert hint in line


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("target_utilization", 70, "it is a fraction: 70 % would be 0.7"),
        ("target_utilization", "70%", "as a fraction that is 0.7"),
        ("interval_s", 5000, "the key is in seconds: 5000 ms would be 5"),
        ("interval_s", "2 min", "in this key's unit that is 120"),
        ("interval_s", "1,000", "write it without quotes or commas"),
        ("peak_per_s", "80 req/s", "the unit is in the key's name, write the number alone"),
    ],
)
def test_number_in_another_unit_is_refused_and_converted(key: str, value: Any, hint: str) -> None:
    (line,) = lines({"shape": {**WAVE, key: value}})
    assert hint in line


def test_all_errors_come_at_once_in_the_order_of_the_file() -> None:
    data = {
        "lenght": {},
        "machines": [{"max_num_seqs": 0}],
        "shape": {"kind": "wav", "peak": 3, "is_noisy": 1},  # the keys are checked against the nearest kind
    }
    places = [line.split(":")[0] for line in lines(data)]
    assert places == [
        "lenght",
        "machines[0].max_num_seqs",
        "machines[0].name",
        "shape.kind",
        "shape.peak",
        "shape.is_noisy",
        "shape.peak_per_s",
    ]


def test_lists_of_yaml_become_tuples() -> None:
    assert lines({"shape": {**WAVE, "offsets": [1, 2]}}) == []


def test_policy_from_outside_loads_by_module_and_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside_shapes.py").write_text(
        "from sim.params import Params\nclass Pulse(Params):\n    height: float\ndef plain(): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    kind = KindOf("shape", {"wave": Wave}, Params)
    value = kind.parse({"kind": "outside_shapes:Pulse", "height": 2})
    assert value.height == 2
    assert kind.write(value) == {"kind": "outside_shapes:Pulse", "height": 2.0}
    for name, complaint in [
        ("outside_shapes:Puls", "module 'outside_shapes' has no 'Puls'; did you mean 'Pulse'?"),
        ("outside_shapes:plain", "is not a subclass of sim.params.Params"),
        ("outside_shape:Pulse", "cannot import 'outside_shape'"),
    ]:
        with pytest.raises(ValidationError, match="kind") as caught:
            kind.parse({"kind": name, "height": 2})
        assert complaint in str(caught.value)


CONFIG = """
traffic:
  kind: poisson
  rate_per_s: 5
  duration_s: 60
  lengths: {prompt: {kind: fixed, tokens: 100}, output: {kind: fixed, tokens: 10}}
router: {kind: least_tokens}
pools:
  - name: main
    model: llama-3.1-8b
    gpu: h100-sxm
    replicas: {kind: surrogate, max_model_len: 8192}
    autoscaler: {kind: fixed, replicas: 1}
"""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("router.kind=power_of_choices", "router.kind: no router named 'power_of_choices'; did you mean 'power_of_d_choices'?"),
        (
            "pools.main.autoscaler.kind=forcast",
            "pools.main.autoscaler.kind: no autoscaler named 'forcast'; did you mean 'forecast'?",
        ),
        ("pools.main.gpu=h100", "pools.main.gpu: no GPU named 'h100'; did you mean 'h100-sxm'?"),
        ("pools.main.replicas.tensor_parallel_size=3", "pools.main: tensor_parallel_size 3 does not divide the 32 heads"),
        ("pools.main.model=llama-3.1-70b", "pools.main: llama-3.1-70b on 1 x h100-sxm does not fit"),
        ("slo.tpot_s.p90=50", "slo.tpot_s.p90: must be at most 10, given 50; the key is in seconds: 50 ms would be 0.05"),
        ("slo.ttft_s.99=1", "slo.ttft_s.99: must be a percentile such as p50, p99 or p99.9, given '99'"),
        ("slo.ttft_ms.p99=1000", "slo.ttft_ms: unknown key; did you mean 'ttft_s' (in seconds)?"),
        ("slo.classes.chat.ttft_s.p99=1", "slo.classes: the traffic has no class named 'chat'; known: default"),
        ("pools.main.tensor_parallel_size=4", "it belongs at pools.main.replicas.tensor_parallel_size"),
        ("router.kind=os:getcwd", "'os:getcwd': is neither a function (view) -> slot"),
        ("traffic.peak_per_s=3", "traffic.peak_per_s: unknown key"),
        ("measure={start_s: 9, end_s: 3}", "measure: end_s must be after start_s, given start_s 9 and end_s 3"),
        ("kind=simulat", "kind: no kind of config named 'simulat'; did you mean 'simulate'?"),
    ],
)
def test_the_real_tables_answer_typos(tmp_path: Path, change: str, expected: str) -> None:
    path = tmp_path / "day.yaml"
    path.write_text(CONFIG)
    assert load(path)
    with pytest.raises(ConfigError) as caught:
        load(path, [change])
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path}: ")
    assert expected in line


def test_engine_options_default_to_the_engines_own(tmp_path: Path) -> None:
    # vLLM 0.32's, of its API server on an 80 GB GPU
    path = tmp_path / "day.yaml"
    path.write_text(CONFIG)
    pool = load(path)[0].experiment.pools[0]
    engine = pool.replicas.engine(pool.model, pool.gpu)[0]
    assert (engine.max_num_seqs, engine.max_num_batched_tokens, engine.block_size) == (1024, 8192, 16)
    assert (engine.enable_chunked_prefill, engine.async_scheduling, engine.scheduler_reserve_full_isl) == (1, 1, 1)
    assert engine.watermark_blocks == 0
