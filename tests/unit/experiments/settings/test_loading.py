"""From a file to its runs: sweeps, seeds, --set, --smoke, hashes."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.settings.loading import RunConfig, load
from sim.errors import ConfigError

CONFIG = """
traffic:
  kind: poisson
  rate_per_s: 5
  duration_s: 600
  lengths: {prompt: {kind: fixed, tokens: 100}, output: {kind: fixed, tokens: 10}}
router: {kind: power_of_d_choices, d: 3, scrape_interval_s: 0.5}
measure: {start_s: 60}
pools:
  - name: main
    model: llama-3.1-8b
    gpu: h100-sxm
    replicas: {kind: surrogate, max_model_len: 8192}
    autoscaler: {kind: forecast, interval_s: 30, max_replicas: 9, season_s: 7200}
"""


@pytest.fixture
def config(tmp_path: Path) -> Any:
    """Writes a config with something added, and returns its path."""

    def write(added: str = "", text: str = CONFIG) -> Path:
        path = tmp_path / "day.yaml"
        path.write_text(text + added)
        return path

    return write


def test_the_name_is_the_files_unless_given(config: Any) -> None:
    assert load(config())[0].name == "day"
    assert load(config("name: night\n"))[0].name == "night"


def test_a_single_run_has_no_folder_of_its_own(config: Any) -> None:
    (run,) = load(config())
    assert (run.slug, run.axes, run.seed) == ("", (), 1)


def test_sweep_makes_every_combination_for_every_seed(config: Any) -> None:
    runs = load(config("seeds: [4, 5]\nsweep: {router.kind: [random, vllm], traffic.rate_per_s: [1, 2, 3]}\n"))
    assert len({run.slug for run in runs}) == len({run.hash for run in runs}) == len(runs) == 12
    assert runs[0].slug == "random,rate_per_s=1,seed=4"
    assert runs[-1].slug == "vllm,rate_per_s=3,seed=5"
    assert dict(runs[-1].axes) == {"router.kind": "vllm", "traffic.rate_per_s": "rate_per_s=3"}
    assert (runs[-1].experiment.router.kind, runs[-1].seed) == ("vllm", 5)


def test_another_kind_keeps_only_the_keys_it_has(config: Any) -> None:
    base, other = load(config("sweep: {pools.main.autoscaler: [{warm_buffer: 1, kind: queue_target}, {kind: forecast}]}\n"))
    queue_target, forecast = (run.experiment.pools[0].autoscaler for run in (base, other))
    assert (queue_target.interval_s, queue_target.max_replicas) == (30, 9)
    assert not hasattr(queue_target, "season_s")
    assert forecast.season_s == 7200  # type: ignore[attr-defined]


def test_another_router_keeps_the_scrape_interval_and_drops_d(config: Any) -> None:
    (run,) = load(config(), ["router.kind=least_tokens"])
    assert run.document["router"] == {"kind": "least_tokens", "scrape_interval_s": 0.5}


def test_mappings_are_laid_over_and_lists_replace(config: Any) -> None:
    (run,) = load(config(), ["traffic.lengths.prompt={kind: uniform, low: 1, high: 9}", "slo.ttft_s={p99.9: 2}"])
    assert run.document["traffic"]["lengths"]["prompt"] == {"kind": "uniform", "low": 1, "high": 9}
    assert run.document["slo"]["ttft_s"] == {"p99.9": 2.0}
    assert load(config(), ["slo.ttft_s.p99.9=2"])[0].document["slo"]["ttft_s"] == {"p99.9": 2.0}


def test_labels_name_what_differs(config: Any) -> None:
    sweep = "sweep: {pools.main.autoscaler: [{forecaster: naive}, {forecaster: oracle, horizon_s: 60}]}\n"
    assert [run.slug for run in load(config(sweep))] == ["forecaster=naive", "forecaster=oracle,horizon_s=60"]


def test_an_axis_may_name_its_values(config: Any) -> None:
    sweep = "sweep: {pools.main.autoscaler: {reactive: {forecaster: naive}, forecast: {forecaster: oracle}}}\n"
    runs = load(config(sweep))
    assert [run.slug for run in runs] == ["reactive", "forecast"]
    assert [run.document["pools"][0]["autoscaler"]["forecaster"] for run in runs] == ["naive", "oracle"]


def test_runs_with_the_same_label_get_different_folders(config: Any) -> None:
    twins = load(config("sweep: {traffic.lengths: [{correlation: 0}, {correlation: 0}]}\n"))
    assert len({run.slug for run in twins}) == 2


@pytest.mark.parametrize(
    ("added", "sets", "expected"),
    [
        ("sweep: {pools.mian.gpu: [l4]}\n", [], "sweep.pools.mian.gpu: no item of pools named 'mian'; did you mean 'main'?"),
        (
            "sweep: {router.kind: random}\n",
            [],
            "sweep.router.kind: must be a list of values, or a mapping of names to values, given 'random'",
        ),
        ("sweep: [1]\n", [], "sweep: must be a mapping of paths to lists of values, given [1]"),
        ("sweep: {seed: [1, 2]}\n", [], "sweep.seed: cannot be swept; use seeds: [...]"),
        ("sweep: {router.kind: [randm, vllm]}\n", [], "did you mean 'random'? known: "),
        ("seed: 1\nseeds: [1]\n", [], "seeds: give either seed or seeds"),
        ("seeds: [1, 1]\n", [], "seeds: each seed once, given [1, 1]"),
        ("seed: one\n", [], "seed: must be a whole number, given 'one'"),
        ("sweep: {router.kind: [random]}\n", ["router.kind=vllm"], "--set router.kind: has no effect, the sweep sets it"),
        ("", ["router"], "--set router: must be path=value"),
        ("", ["router.kind.d=3"], "--set router.kind.d=3: router.kind.d: router.kind is 'power_of_d_choices', not a mapping"),
        ("", ["pools.main.=3"], "is not a path such as"),
        ("", ["traffic.limit=[1"], "--set traffic.limit=[1: line 1"),
    ],
)
def test_wrong_sweeps_seeds_and_sets_are_refused(config: Any, added: str, sets: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(config(added), sets)
    (line,) = str(caught.value).splitlines()
    assert expected in line


def test_a_mistake_says_whether_the_sweep_or_a_set_made_it(config: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load(config("sweep: {traffic.rate_per_s: [1, -1]}\n"), ["pools.main.lifecycle.provision=9"])
    first, second = sorted(str(caught.value).splitlines())
    assert "pools.main.lifecycle.provision: unknown key; did you mean 'provision_s'" in first
    assert first.endswith("(from --set)")
    assert second.endswith("(from sweep) (in run rate_per_s=-1)")


def test_smoke_shrinks_traffic_seeds_and_window(config: Any) -> None:
    (run,) = load(config("seeds: [7, 8]\n"), smoke=True)
    assert (run.experiment.traffic.limit, run.seed, run.experiment.measure.start_s) == (2000, 7, 0)
    assert load(config(), ["traffic.limit=5"], smoke=True)[0].experiment.traffic.limit == 5


def test_seed_replaces_seeds(config: Any) -> None:
    (run,) = load(config("seeds: [7, 8]\n"), seed=3)
    assert run.seed == 3


def test_the_resolved_config_loads_as_the_same_run(config: Any, tmp_path: Path) -> None:
    for run in load(config("sweep: {router.kind: [random, vllm]}\n"), ["pools.main.lifecycle.start_s={mean_s: 9, std_s: 1}"]):
        again = tmp_path / "again.yaml"
        again.write_text(run.yaml)
        (loaded,) = load(again)
        assert loaded.document == run.document
        assert loaded.hash == run.hash


def test_runs_pickle_for_other_processes(config: Any) -> None:
    run = load(config())[0]
    again = pickle.loads(pickle.dumps(run))
    assert isinstance(again, RunConfig)
    assert again.hash == run.hash


def test_the_hash_is_the_same_in_any_process_and_for_any_order_of_keys(config: Any, tmp_path: Path) -> None:
    path = config()
    lines = CONFIG.strip().split("\n")
    shuffled = tmp_path / "shuffled"
    shuffled.mkdir()
    (shuffled / "day.yaml").write_text("\n".join([*lines[5:], *lines[:5]]))
    script = f"from experiments.settings.loading import load; print(load({str(path)!r})[0].hash)"
    hashes = {load(path)[0].hash, load(shuffled / "day.yaml")[0].hash}
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        hashes.add(subprocess.check_output([sys.executable, "-c", script], text=True, env=environment).strip())
    assert len(hashes) == 1


def test_inline_gpus_are_written_in_full_and_catalogued_ones_by_name(config: Any) -> None:
    assert load(config())[0].document["pools"][0]["gpu"] == "h100-sxm"
    gpu = "{bf16_flops_per_s: 1.0e15, memory_bytes: 80.0e9, bytes_per_s: 3.0e12, link_bytes_per_s: 4.0e11}"
    (run,) = load(config(), [f"pools.main.gpu={gpu}"])
    assert run.document["pools"][0]["gpu"]["bytes_per_s"] == 3e12
