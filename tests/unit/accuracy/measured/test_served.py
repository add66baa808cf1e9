"""Served results: what an index and its reports say of them, and how they are simulated."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from accuracy.errors import Measures
from accuracy.measured.results import Served
from accuracy.measured.rows import read_served
from accuracy.repeated.repeats import repeats
from accuracy.repeated.simulated import Outcome, engine_options, experiment_of, simulate
from replicas import catalog
from sim.errors import ConfigError, TraceError
from tests.accuracy.made_up import row, write_indices
from tests.shared import shared
from tests.unit.replicas.calibration.test_gpu_calibration import of_a_gpu, write_gpu


def read(folder: Path, *rows: dict[str, Any]) -> list[Any]:
    return read_served(write_indices(folder / "served.jsonl", rows))


def test_answers_of_one_token_have_no_tpot_rather_than_0(tmp_path: Path) -> None:
    """A request in three answers with one token: TPOT is that of the others, and of one-token answers alone there is none."""
    write_gpu(of_a_gpu(), tmp_path / "gpu.yaml")
    (one,) = read(tmp_path, row(2.0, out_len={"requested": 1}))
    alone = simulate(one, str(tmp_path / "gpu.yaml"), 0.0).measures
    assert alone.count("tpot_s") == 0
    assert np.isnan(alone.value("tpot_s", "mean"))
    mixed = simulate(replace(one, num_output_tokens=3, shortest_share=0.4), str(tmp_path / "gpu.yaml"), 0.0).measures
    assert 0 < mixed.count("tpot_s") < mixed.count("ttft_s")
    assert mixed.latencies["tpot_s"][np.isfinite(mixed.latencies["tpot_s"])].min() > 0.001


def test_arrivals_are_spaced_as_the_load_generator_spaced_them(tmp_path: Path) -> None:
    write_gpu(of_a_gpu(), tmp_path / "gpu.yaml")
    even, poisson = read(tmp_path, row(2.0), row(2.0, arrival="Poisson at request_rate"))
    kinds = [type(experiment_of(one, str(tmp_path / "gpu.yaml")).traffic).__name__ for one in (even, poisson)]
    assert kinds == ["Constant", "Poisson"]


def test_draws_of_the_arrivals_are_taken_together(tmp_path: Path) -> None:
    write_gpu(of_a_gpu(), tmp_path / "gpu.yaml")
    even, random = read(tmp_path, row(2.0), row(2.0, arrival="Poisson"))
    args = (str(tmp_path / "gpu.yaml"), 0.0)
    apart = [simulate(random, *args, seed=seed).measures for seed in (1, 2, 3)]
    together = simulate(random, *args, seed=1, draws=3)
    assert together.measures.count("ttft_s") == 3 * 54  # all but the first tenth
    assert together.measures.value("ttft_s", "mean") == pytest.approx(np.mean([one.value("ttft_s", "mean") for one in apart]))
    assert len({one.value("ttft_s", "mean") for one in apart}) == 3
    assert len(simulate(even, *args, draws=3).draws) == 1


def test_old_engines_chunk_prompts_whatever_they_are_told(tmp_path: Path) -> None:
    told = {"server_args": {"enable_chunked_prefill": False}}
    versions = ("v0.11.0", "0.15.0", "not known")
    options = [engine_options(one)[0] for one in read(tmp_path, *(row(2.0, engine_version=one, **told) for one in versions))]
    assert [one.get("enable_chunked_prefill", True) for one in options] == [True, False, False]


def test_engines_before_async_scheduling_do_without(tmp_path: Path) -> None:
    old, new = read(tmp_path, row(2.0, engine_version="v0.11.0"), row(2.0, engine_version="v0.15.1-era fork"))
    assert [engine_options(one)[0]["async_scheduling"] for one in (old, new)] == [False, True]


def test_an_argument_that_is_not_simulated_is_said_unless_it_is_off(tmp_path: Path) -> None:
    off, on = (read(tmp_path, row(2.0, server_args={"cpu_offload_gb": value}))[0] for value in (False, 4))
    assert [engine_options(one)[1] for one in (off, on)] == [[], ["cpu_offload_gb=4"]]


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    path = write_indices(tmp_path / "bad.jsonl", [row(1.0)])
    with path.open("a") as lines:
        lines.write(json.dumps({"about": ABOUT, "reports": [{"rate": -1.0, "prompt_token": 9}]}) + "\n")
    with pytest.raises(TraceError, match=r"bad\.jsonl:2: reports: .*prompt_token.*did you mean 'prompt_tokens'"):
        read_served(path)
    with pytest.raises(TraceError, match=r"bad\.jsonl:2: reports: .*rate"):
        read_served(path)


ABOUT = {"model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "H100 SXM 80GB", "tp": 1, "server_args": {"max_num_seqs": 64}}


def indexed(folder: Path, report: Any, **about: Any) -> Any:
    (folder / "report.json").write_text(report if isinstance(report, str) else json.dumps(report))
    (folder / "index.yaml").write_text(yaml.safe_dump({"about": {**ABOUT, **about}, "reports": ["report.json"]}))
    return read_served(folder / "index.yaml")[0]


def test_a_model_and_a_gpu_that_the_catalogue_has_not_are_spelled_out(tmp_path: Path) -> None:
    report = {"request_rate": 4.0, "completed": 10, "num_prompts": 10, "total_input_tokens": 600, "total_output_tokens": 210,
              "request_throughput": 3.97, "mean_ttft_ms": 20.0, "mean_tpot_ms": 5.0, "mean_e2el_ms": 120.0}  # fmt: skip
    model = {"name": "mine", "layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 32, "intermediate": 128,
             "vocab": 1000, "num_params": 137_000, "max_model_len": 1024}  # fmt: skip
    gpu = {"name": "ours", "bf16_flops_per_s": 1e14, "memory_bytes": 8e9, "bytes_per_s": 1e12, "link_bytes_per_s": 1e10}
    one = indexed(tmp_path, report, model=model, gpu=gpu)
    assert (one.model, one.gpu, one.problem) == ("mine", "ours", "")
    write_gpu(of_a_gpu().model_copy(update={"gpu": catalog.gpu(gpu)}), tmp_path / "gpu.yaml")
    (pool,) = experiment_of(one, str(tmp_path / "gpu.yaml")).pools
    assert (pool.model.layers, pool.gpu.bytes_per_s) == (2, 1e12)
    del model["layers"]
    with pytest.raises(TraceError, match=r"index\.yaml:1: is not a served result .*layers") as error:
        indexed(tmp_path, report, model=model, gpu=gpu)
    assert "\n" not in str(error.value)


def test_vllm_bench_serve(tmp_path: Path) -> None:
    report = {"request_rate": 4.0, "burstiness": 1.0, "completed": 10, "num_prompts": 10, "total_input_tokens": 600,
              "total_output_tokens": 210, "request_throughput": 3.97, "mean_ttft_ms": 20.0, "p99_ttft_ms": 36.0,
              "mean_tpot_ms": 5.0, "mean_e2el_ms": 120.0}  # fmt: skip
    one = indexed(tmp_path, report)
    assert (one.rate_per_s, one.is_even, one.num_prompt_tokens, one.num_output_tokens) == (4.0, False, 60, 21)
    assert one.real.value("ttft_s", "p99") == 0.036
    assert one.real.value("tpot_s", "mean") == pytest.approx(5e-3)
    assert one.problem == ""
    closed = indexed(tmp_path, report | {"request_rate": "inf", "max_concurrency": 4})
    assert (closed.rate_per_s, closed.max_concurrency, closed.problem) == (0.0, 4, "")
    held = indexed(tmp_path, report | {"max_concurrency": 4})
    assert (held.rate_per_s, held.is_even, held.max_concurrency, held.problem) == (4.0, False, 4, "")


def test_inference_perf(tmp_path: Path) -> None:
    """Its length of the answers is of text that was encoded again; the index knows better."""
    spread = {"mean": 0.5, "median": 0.5, "p90": 0.6, "p99": 0.7}
    latency = {"time_to_first_token": {"mean": 0.03, "median": 0.03}, "request_latency": spread,
               "time_per_output_token": {"mean": 0.004}}  # fmt: skip
    successes = {"latency": latency, "prompt_len": {"mean": 204.0}, "output_len": {"median": 47.0},
                 "throughput": {"requests_per_sec": 30.0}}  # fmt: skip
    report = {"load_summary": {"requested_rate": 30.5, "count": 1800}, "successes": successes, "failures": {"count": 0}}
    one = indexed(tmp_path, report, output_tokens=48)
    assert (one.rate_per_s, one.is_even, one.num_output_tokens) == (30.5, False, 48)
    assert one.real.value("tpot_s", "mean") == pytest.approx((0.5 - 0.03) / 47)
    assert one.real.value("e2e_s", "p99") == pytest.approx(0.7)


def test_guidellm(tmp_path: Path) -> None:
    def values(mean: float) -> dict[str, Any]:
        return {"successful": {"mean": mean, "percentiles": {"p50": mean, "p90": 1.2 * mean, "p99": 1.5 * mean}}}

    means = {"time_to_first_token_ms": 30.0, "request_latency": 0.5, "prompt_token_count": 300.0, "output_token_count": 48.0}
    metrics = {name: values(mean) for name, mean in (means | {"requests_per_second": 2.0}).items()}
    metrics["request_totals"] = {"successful": 120}
    report = {"benchmarks": [{"config": {"strategy": {"type_": "constant", "rate": 2.0}}, "metrics": metrics}]}
    one = indexed(tmp_path, report)
    assert (one.rate_per_s, one.is_even, one.num_requests, one.num_prompt_tokens) == (2.0, True, 120, 300)
    assert one.real.value("e2e_s", "p90") == pytest.approx(0.6)
    assert one.real.value("tpot_s", "mean") == pytest.approx(0.47 / 47)
    report["benchmarks"][0]["config"]["strategy"] = {"type_": "concurrent", "streams": 16}
    closed = indexed(tmp_path, report)
    assert (closed.rate_per_s, closed.max_concurrency, closed.problem) == (0.0, 16, "")


def test_a_wrong_report_or_index_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"report\.json: is no report that we know .*known are vllm bench serve"):
        indexed(tmp_path, {"what": 1})
    bench = {"request_rate": 4.0, "completed": 0, "total_input_tokens": 0, "total_output_tokens": 0}
    with pytest.raises(TraceError, match=r"report\.json: is no report that we know .*no request was completed"):
        indexed(tmp_path, bench)
    (tmp_path / "report.json").unlink()
    with pytest.raises(TraceError, match=r"report\.json: No such file"):
        read_served(tmp_path / "index.yaml")
    (tmp_path / "index.yaml").write_text("about: {model: x}\nreports: []\n")
    with pytest.raises(TraceError, match=r"index\.yaml: about: no gpu; needed are model, gpu, tp"):
        read_served(tmp_path / "index.yaml")


def test_a_result_may_be_spelled_out_where_there_is_no_report(tmp_path: Path) -> None:
    load = {"arrival": "Poisson", "rate": 2.0, "num_requests": 60, "prompt_tokens": 500, "output_tokens": 40}
    one_prompt_in_four = {"prefixes": {"num": 4, "tokens": 500}}
    measured = {"measured": {"ttft_s": {"mean": 0.02, "p99": 0.05}, "e2e_s": {"mean": 0.8}}, "requests_per_s": 1.9}
    laws = {"lengths": {"prompt": {"kind": "fixed", "tokens": 500}, "output": {"kind": "uniform", "low": 20, "high": 60}}}
    by_law = {key: value for key, value in load.items() if "tokens" not in key} | laws
    reports = [load | one_prompt_in_four | measured, by_law | {"name": "mine", "problem": "a test of the network"}]
    (tmp_path / "index.yaml").write_text(yaml.safe_dump({"about": ABOUT | {"front_end_s": 0.01}, "reports": reports}))
    one, left_out = read_served(tmp_path / "index.yaml")
    assert one.name == "reports/h100-sxm/Qwen2.5-7B-Instruct/tp1/1/2"
    assert (one.rate_per_s, one.num_requests, one.num_prompt_tokens, one.num_output_tokens) == (2.0, 60, 500, 40)
    assert (one.is_even, one.prefixes["num"], one.front_end_s, one.problem) == (False, 4, 0.01, "")
    assert (one.real.value("ttft_s", "p99"), one.real.value("requests_per_s", "mean")) == (0.05, 1.9)
    assert one.real.value("tpot_s", "mean") == pytest.approx(0.78 / 39)  # as of every report
    assert (left_out.name, left_out.problem) == ("mine", "a test of the network")
    assert (left_out.num_prompt_tokens, left_out.num_output_tokens, left_out.lengths["output"]["high"]) == (500, 40, 60)


READER = """
import csv, pathlib

def read(path):
    for row in csv.DictReader(pathlib.Path(path).open()):
        measured = {"ttft_s": {"mean": float(row["ttft"])}}
        load = {"rate": float(row["rate"]), "num_requests": 10, "prompt_tokens": 500, "output_tokens": 40}
        about = {"model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "H100", "tp": 1}
        yield {"about": about, "reports": [load | {"measured": measured}]}
"""


def test_a_function_of_ones_own_reads_another_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tables.py").write_text(READER)
    (tmp_path / "table.csv").write_text("rate,ttft\n2,0.02\n4,0.03\n")
    monkeypatch.syspath_prepend(tmp_path)
    results = read_served(tmp_path / "table.csv", "my_tables:read")
    assert [one.real.value("ttft_s", "mean") for one in results] == [0.02, 0.03]
    (tmp_path / "table.csv").write_text("rate\n2\n")
    with pytest.raises(ConfigError, match=r"my_tables:read: KeyError: 'ttft' .*line 6"):
        read_served(tmp_path / "table.csv", "my_tables:read")
    with pytest.raises(ConfigError, match=r"reader: module 'my_tables' has no 'raed'; did you mean 'read'"):
        read_served(tmp_path / "table.csv", "my_tables:raed")


@pytest.mark.parametrize("ending", ["jsonl", "csv", "yaml"])
def test_a_file_that_is_not_there_is_said_in_a_line(ending: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=rf"none\.{ending}: no such file"):
        read_served(tmp_path / f"none.{ending}")


def test_a_file_without_results_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(TraceError, match=r"empty\.jsonl: no result in it"):
        read_served(tmp_path / "empty.jsonl")


@pytest.mark.parametrize(
    ("report", "rate"),
    [
        ("formats/inference-perf_stage_lifecycle.json", 61.79),
        ("formats/guidellm_report_v2.json", 2.0),
        ("live_cpu/bench_serve_tiny.json", 4.0),
    ],
)
def test_reports_that_the_tools_wrote(report: str, rate: float, tmp_path: Path) -> None:
    one = indexed(tmp_path, shared(f"data/{report}").read_text())
    assert one.rate_per_s == rate
    assert one.real.value("ttft_s", "mean") > 0
    assert one.real.value("tpot_s", "mean") > 0


def test_a_closed_loop_has_as_many_in_flight_as_its_client_allows(tmp_path: Path) -> None:
    """Forty requests, four at a time, all as long as each other: ten rounds of four, none of them left out of the figures."""
    write_gpu(of_a_gpu(), tmp_path / "gpu.yaml")
    (open_run,) = read(tmp_path, row(2.0, num_prompts=40))
    closed = replace(open_run, rate_per_s=0.0, max_concurrency=4)
    seen = simulate(closed, str(tmp_path / "gpu.yaml"), 0.0).measures
    assert seen.count("ttft_s") == 40
    e2e_s = seen.value("e2e_s", "mean")
    assert seen.rates["requests_per_s"] * e2e_s == pytest.approx(4, rel=1e-9)  # Little's law: the four end and begin together


def test_lengths_may_be_spread_evenly_up_to_the_nominal_one(tmp_path: Path) -> None:
    write_gpu(of_a_gpu(), tmp_path / "gpu.yaml")
    (one,) = read(tmp_path, row(2.0))
    lengths = experiment_of(replace(one, shortest_share=0.8), str(tmp_path / "gpu.yaml")).traffic.lengths
    assert (lengths.prompt.low, lengths.prompt.high) == (400, 500)
    assert (lengths.output.low, lengths.output.high) == (32, 40)


def test_runs_that_should_be_alike_say_how_real_runs_repeat() -> None:
    """Two lengths of answers, the same prompts: real TTFTs of 0.10 and 0.12 s, simulated the same; the third has another TP."""
    alike = {"group": "g", "model": "m", "gpu": "x", "quantization": None, "engine_version": "", "rate_per_s": 0.0}
    sizes = {"num_requests": 40, "num_prompt_tokens": 1000, "is_even": True, "max_concurrency": 4}

    def run_of(ttft_s: float, tp: int = 1) -> Served:
        real = Measures(statistics={("ttft_s", "mean"): ttft_s})
        return Served(name="", tensor_parallel_size=tp, num_output_tokens=9, real=real, **alike, **sizes)  # type: ignore[arg-type]

    results = [run_of(0.10), run_of(0.12), run_of(0.5, tp=2)]
    outcomes = [Outcome(Measures(statistics={("ttft_s", "mean"): 0.1}), (1.0, 1.0, 1.0, 1.0)) for _ in results]
    found = repeats(results, outcomes)
    assert found.num_pairs == 1
    assert found.difference == pytest.approx(0.2)
    assert found.floor == pytest.approx(0.2 / 2**0.5)
    outcomes[1] = Outcome(Measures(statistics={("ttft_s", "mean"): 0.2}), (1.0, 1.0, 1.0, 1.0))  # the simulation has them wait
    assert repeats(results, outcomes).num_pairs == 0


@pytest.mark.parametrize(
    "change",
    [
        {"arguments": {"enable_prefix_caching": False}},
        {"engine_version": "0.9"},
        {"quantization": "fp8"},
        {"rate_per_s": 5.0},
        {"num_requests": 80},
        {"prefixes": {"num": 45, "tokens": 1000}},
        {"max_concurrency": 0},
    ],
)
def test_closed_loops_of_another_engine_or_load_say_nothing_of_how_real_runs_repeat(change: dict[str, Any]) -> None:
    """KubeCon's runs with the same limit of requests in flight passed for repeats, whatever their rates and arguments."""
    one = Served(
        name="", group="g", model="m", gpu="x", tensor_parallel_size=1, quantization=None, engine_version="", num_requests=40,
        num_prompt_tokens=1000, num_output_tokens=9, max_concurrency=4, real=Measures(statistics={("ttft_s", "mean"): 0.1}),
    )  # fmt: skip
    outcome = Outcome(Measures(statistics={("ttft_s", "mean"): 0.1}), (1.0, 1.0, 1.0, 1.0))
    assert repeats([one, replace(one, num_output_tokens=90)], [outcome, outcome]).num_pairs == 1
    assert repeats([one, replace(one, **change)], [outcome, outcome]).num_pairs == 0
