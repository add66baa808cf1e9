"""Served results as others publish them: what is read, what is not simulated and why, and the reports of load generators."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from accuracy.errors import Measures
from accuracy.measured.chats import TEMPLATE_S
from accuracy.measured.results import Served, choose
from accuracy.measured.rows import read_served
from accuracy.repeated.repeats import repeats
from accuracy.repeated.simulated import Outcome, engine_options, experiment_of, simulate
from experiments import run
from replicas import catalog
from sim.errors import TraceError
from tests.shared import shared
from tests.unit.test_gpu_calibration import of_a_gpu, row, write_gpu


def read(folder: Path, *rows: dict[str, Any]) -> list[Any]:
    path = folder / "served.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return read_served(path)


def test_a_line_is_a_result(tmp_path: Path) -> None:
    times = {"ttft_ms": {"mean": 20.0, "p99": 50.0}, "e2e_ms": {"mean": 800.0}, "tpot_ms": {"mean_derived": 20.0}}
    (one,) = read(tmp_path, row(2.0, server_args=["--max-num-seqs=64", "--no-enable-prefix-caching"], **times))
    assert one.name == "made-up/h100-sxm/Llama-3.1-8B-Instruct/tp1/chat/2"
    assert (one.model, one.gpu, one.problem) == ("llama-3.1-8b", "h100-sxm", "")
    assert (one.num_prompt_tokens, one.num_output_tokens) == (500, 40)
    assert one.real.value("ttft_s", "p99") == 0.05
    assert one.real.value("tpot_s", "mean") == 0.02
    assert engine_options(one)[0]["enable_prefix_caching"] is False


def test_answers_of_one_token_have_no_tpot_rather_than_0(tmp_path: Path) -> None:
    """A request in three answers with one token: TPOT is that of the others, and of one-token answers alone there is none."""
    write_gpu(of_a_gpu(), tmp_path / "gpu.yaml")
    (one,) = read(tmp_path, row(2.0, out_len={"requested": 1}))
    alone = simulate(one, str(tmp_path / "gpu.yaml"), 0.0, 45).measures
    assert alone.count("tpot_s") == 0
    assert np.isnan(alone.value("tpot_s", "mean"))
    mixed = simulate(replace(one, num_output_tokens=3, shortest_share=0.4), str(tmp_path / "gpu.yaml"), 0.0, 45).measures
    assert 0 < mixed.count("tpot_s") < mixed.count("ttft_s")
    assert mixed.latencies["tpot_s"][np.isfinite(mixed.latencies["tpot_s"])].min() > 0.001


def test_halved_tpot_and_itl_are_not_read(tmp_path: Path) -> None:
    """inference-perf counts two chunks a token: what it reports beside `mean_derived` is half of the truth."""
    times = {"tpot_ms": {"mean_derived": 8.2, "mean": 4.1}, "itl_ms": {"mean": 4.1}}
    (one,) = read(tmp_path, row(2.0, **times))
    assert one.real.value("tpot_s", "mean") == pytest.approx(8.2e-3)
    assert ("itl_s", "mean") not in one.real.statistics


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rate": None}, "neither a rate nor all at once"),
        ({"rate": [2.5, 6]}, "mixes stages of different rates"),
        (
            {"throughput_req_s": 1.8},
            "served under 95% of the offered rate, and how many the client had in flight is not known",
        ),
        ({"quality": "C: overload, 3294 failures"}, "clients gave up: overload with timeouts"),
        ({"engine": "sglang"}, "engine sglang, not vllm"),
        ({"workload": "vllm+eagle stage2"}, "drafts, whose acceptance is not known"),
        ({"arrival": "trace replay (Poisson-like)"}, "arrivals are neither evenly spaced, nor Poisson, nor all at once"),
        ({"model": "some/Model-9B"}, "model some/Model-9B is not in the catalogue"),
        ({"gpu": "MI300X"}, "GPU MI300X is not in the catalogue"),
        ({"in_len": None}, "lengths are not known"),
    ],
)
def test_what_cannot_be_simulated_is_left_out_with_the_reason(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    results = read(tmp_path, row(2.0), row(2.0) | changes)
    chosen, problems = choose(results, ["*"])
    assert [one.problem for one in chosen] == [""]
    assert {reason: len(names) for reason, names in problems.items()} == {problem: 1}


def test_arrivals_are_spaced_as_the_load_generator_spaced_them(tmp_path: Path) -> None:
    write_gpu(of_a_gpu(), tmp_path / "gpu.yaml")
    even, poisson = read(tmp_path, row(2.0), row(2.0, arrival="Poisson at request_rate"))
    kinds = [type(experiment_of(one, str(tmp_path / "gpu.yaml"), 45).traffic).__name__ for one in (even, poisson)]
    assert kinds == ["Constant", "Poisson"]


@pytest.mark.parametrize("said", [{"arrival": "inference-perf constant rate"}, {"group": "inference-perf-kubecon"}])
def test_what_inference_perf_calls_constant_has_exponential_gaps(said: dict[str, Any], tmp_path: Path) -> None:
    """Simulated evenly spaced, KubeCon's run at 98 % of its engine's capacity had no queue: TTFT was 63 % too low."""
    write_gpu(of_a_gpu(), tmp_path / "gpu.yaml")
    (one,) = read(tmp_path, row(2.0, **said))
    sent = experiment_of(one, str(tmp_path / "gpu.yaml"), 45).traffic
    assert (type(sent).__name__, sent.fixed_count, sent.rate_per_s, sent.duration_s) == ("Poisson", True, 2.0, 30.0)


def test_draws_of_the_arrivals_are_taken_together(tmp_path: Path) -> None:
    write_gpu(of_a_gpu(), tmp_path / "gpu.yaml")
    even, random = read(tmp_path, row(2.0), row(2.0, arrival="Poisson"))
    args = (str(tmp_path / "gpu.yaml"), 0.0, 45)
    apart = [simulate(random, *args, seed=seed).measures for seed in (1, 2, 3)]
    together = simulate(random, *args, seed=1, draws=3)
    assert together.measures.count("ttft_s") == 3 * 54  # all but the first tenth
    assert together.measures.value("ttft_s", "mean") == pytest.approx(np.mean([one.value("ttft_s", "mean") for one in apart]))
    assert len({one.value("ttft_s", "mean") for one in apart}) == 3
    assert len(simulate(even, *args, draws=3).draws) == 1


BENCH = {
    "workload": "vllm bench serve --endpoint /v1/chat/completions",
    "dtype": "see model/flags",
    "rate": None,
    "num_prompts": 60,
    "arrival": "all at once",
    "in_len": {"mean": 128},
    "out_len": {"mean": 4},
    "engine_version": "v0.11.0",
}


def test_chat_adds_its_template_and_the_time_to_parse_it(tmp_path: Path) -> None:
    """vLLM 0.11 parses the template for each of the requests that come at once before the engine is told of the first."""
    write_gpu(of_a_gpu(), tmp_path / "gpu.yaml")
    qwen, llama = row(0.0, "Qwen/Qwen3-32B") | BENCH, row(0.0) | BENCH
    chat, newer, unknown = read(tmp_path, qwen, qwen | {"engine_version": "v0.13.0"}, llama)
    assert (chat.num_prompt_tokens, chat.name.split("/")[4]) == (136, "128-4")
    assert unknown.problem == "chat template of meta-llama/Llama-3.1-8B-Instruct is not known"
    assert (chat.front_end_s, newer.front_end_s) == (TEMPLATE_S, 0.0)
    slow, fast = (simulate(one, str(tmp_path / "gpu.yaml"), 0.0, 45).measures for one in (chat, replace(chat, front_end_s=0.0)))
    for metric, more_s in (("ttft_s", 60 * TEMPLATE_S), ("e2e_s", 60 * TEMPLATE_S), ("tpot_s", 0.0)):
        assert slow.value(metric, "mean") - fast.value(metric, "mean") == pytest.approx(more_s, abs=1e-12)


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
    (tmp_path / "bad.jsonl").write_text(json.dumps(row(1.0)) + '\n{"group": "x"}\n')
    with pytest.raises(TraceError, match=r"bad\.jsonl:2: is not a served result \(KeyError: 'server_args'\)"):
        read_served(tmp_path / "bad.jsonl")


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
    (pool,) = experiment_of(one, str(tmp_path / "gpu.yaml"), 45).pools
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


def test_every_published_result_is_simulated_or_left_out_with_a_reason() -> None:
    results = read_served(shared("data/serving_ground_truth.jsonl"))
    chosen, problems = choose(results, ["*"])
    assert len({one.name for one in results}) == len(results) == 1030
    assert len(chosen) + sum(map(len, problems.values())) == 1030
    groups = {one.group for one in chosen}
    assert groups == {"blis-training", "blis-trainval", "blis-sim2real", "inference-perf-kubecon", "gpustack-lab"}
    assert {one.max_concurrency for one in chosen if one.group == "inference-perf-kubecon"} == {440}
    at_once = [one for one in chosen if not one.rate_per_s]
    assert {one.group for one in at_once} == {"gpustack-lab"}


COLUMNS = (
    "silicon_data_source,mode,model_path,isl,osl,batch_size,tp_size,pp_size,system,backend,backend_version,gemm_quant_mode"
)


def test_closed_loops_are_read(tmp_path: Path) -> None:
    rows = [
        f"{COLUMNS},silicon_ttft_ms,silicon_tpot_ms",
        "2026.csv,agg,meta-llama/Llama-3.1-70B,1000,100,4,4,1,h100_sxm,vllm,,fp8,80,12",
        "2026.csv,disagg,x,1,1,1,1,1,h100_sxm,vllm,,fp8,1,1",
        "2026.csv,agg,x/Qwen3-32B,1024,1024,8,2,1,h100_sxm,trtllm,1.0,fp8,50,9",
        "gap-analysis/x.csv,agg,x/Qwen3-32B,1024,1024,8,2,1,h100_sxm,vllm,0.12,,50,9",
    ]
    (tmp_path / "silicon.csv").write_text("\n".join(rows) + "\n")
    one, apart, other, unknown = read_served(tmp_path / "silicon.csv")
    assert apart.problem == "mode disagg, not agg: prefill and decode have engines of their own"
    assert (one.name, one.max_concurrency, one.problem) == ("silicon/h100-sxm/Llama-3.1-70B/tp4/1000-100/c4", 4, "")
    assert (one.num_requests, one.arguments["max_num_seqs"], one.arguments["kv_cache_dtype"]) == (40, 4, "auto")
    assert one.real.value("tpot_s", "mean") == 0.012
    assert one.real.value("e2e_s", "mean") == pytest.approx(0.080 + 0.012 * 89)  # 80 to 100 tokens, 90 on average
    assert other.problem == "engine trtllm, not vllm"
    assert unknown.problem == "load generator and engine arguments are not known"


def test_a_closed_loop_has_as_many_in_flight_as_its_client_allows(tmp_path: Path) -> None:
    """Forty requests, four at a time, all as long as each other: ten rounds of four, none of them left out of the figures."""
    write_gpu(of_a_gpu(), tmp_path / "gpu.yaml")
    (open_run,) = read(tmp_path, row(2.0, num_prompts=40))
    closed = replace(open_run, rate_per_s=0.0, max_concurrency=4)
    seen = simulate(closed, str(tmp_path / "gpu.yaml"), 0.0, 45).measures
    assert seen.count("ttft_s") == 40
    e2e_s = seen.value("e2e_s", "mean")
    assert seen.rates["requests_per_s"] * e2e_s == pytest.approx(4, rel=1e-9)  # Little's law: the four end and begin together


def test_lengths_may_be_spread_evenly_up_to_the_nominal_one(tmp_path: Path) -> None:
    write_gpu(of_a_gpu(), tmp_path / "gpu.yaml")
    (one,) = read(tmp_path, row(2.0))
    lengths = experiment_of(replace(one, shortest_share=0.8), str(tmp_path / "gpu.yaml"), 45).traffic.lengths
    assert (lengths.prompt.low, lengths.prompt.high) == (400, 500)
    assert (lengths.output.low, lengths.output.high) == (32, 40)


def test_runs_that_should_be_alike_say_how_real_runs_repeat() -> None:
    """Two lengths of answers, the same prompts: real TTFTs of 0.10 and 0.12 s, simulated the same; the third has another TP."""
    alike = {"group": "g", "model": "m", "gpu": "x", "quantization": None, "engine_version": "", "rate_per_s": 0.0}
    sizes = {"num_requests": 40, "num_prompt_tokens": 1000, "is_even": True, "shares_prompts": False, "max_concurrency": 4}

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
        {"shares_prompts": True},
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


def test_every_row_of_a_file_is_simulated_or_counted_with_the_reason(tmp_path: Path) -> None:
    """Rows of disaggregated serving, and those that the config does not name, were dropped without a word."""
    rows = [
        f"{COLUMNS},silicon_ttft_ms,silicon_tpot_ms",
        "2026.csv,agg,meta-llama/Llama-3.1-70B,1000,100,4,4,1,h100_sxm,vllm,,fp8,80,12",
        "2026.csv,agg,meta-llama/Llama-3.1-70B,1000,100,8,4,1,h100_sxm,vllm,,fp8,90,13",
        "2026.csv,agg,meta-llama/Llama-3.1-70B,1000,100,16,4,1,h100_sxm,vllm,,fp8,90,13",
        *["2026.csv,disagg,meta-llama/Llama-3.1-70B,1000,100,,,,h100_sxm,vllm,,fp8,80,12"] * 3,
        "2026.csv,agg,x/Qwen3-32B,1024,1024,8,2,1,h100_sxm,trtllm,1.0,fp8,50,9",
    ]
    (tmp_path / "silicon.csv").write_text("\n".join(rows) + "\n")
    write_gpu(of_a_gpu(), tmp_path / "gpu.yaml")
    config = {
        "kind": "validate",
        "recordings": str(tmp_path / "silicon.csv"),
        "include": ["*/c4", "*/c8", "*/c*4"],
        "exclude": ["*/c8"],
        "calibration": str(tmp_path / "gpu.yaml"),
        "step_time_change": None,
    }
    (tmp_path / "against.yaml").write_text(yaml.safe_dump(config))
    folder = run(tmp_path / "against.yaml", out=tmp_path, progress=False).folder
    page, manifest = (folder / "report.md").read_text(), json.loads((folder / "manifest.json").read_text())
    apart = "mode disagg, not agg: prefill and decode have engines of their own"
    assert manifest["counts"]["results"] == 1
    assert manifest["left_out"] == {"excluded by the config": 2}  # c8, and TensorRT-LLM's
    assert manifest["not_included"] == {"that could be simulated": 1, apart: 3}
    assert "! 2 results left out: excluded by the config" in page
    assert f"! 4 results of the file not named by include: 3 {apart}; 1 that could be simulated" in page
