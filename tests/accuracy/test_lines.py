"""What is known of each publisher's lines: what is left out and why, and how its load generator spaced what it sent."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accuracy.measured.results import choose
from accuracy.measured.rows import read_served
from accuracy.repeated.simulated import engine_options, experiment_of, simulate
from tests.accuracy.lines import TEMPLATE_S
from tests.accuracy.made_up import row, write_indices
from tests.shared import shared
from tests.unit.replicas.calibration.test_gpu_calibration import of_a_gpu, write_gpu


def read(folder: Path, *rows: dict[str, Any]) -> list[Any]:
    return read_served(write_indices(folder / "served.jsonl", rows))


def test_a_line_is_a_result(tmp_path: Path) -> None:
    times = {"ttft_ms": {"mean": 20.0, "p99": 50.0}, "e2e_ms": {"mean": 800.0}, "tpot_ms": {"mean_derived": 20.0}}
    (one,) = read(tmp_path, row(2.0, server_args=["--max-num-seqs=64", "--no-enable-prefix-caching"], **times))
    assert one.name == "made-up/h100-sxm/Llama-3.1-8B-Instruct/tp1/chat/2"
    assert (one.model, one.gpu, one.problem) == ("llama-3.1-8b", "h100-sxm", "")
    assert (one.num_prompt_tokens, one.num_output_tokens) == (500, 40)
    assert one.real.value("ttft_s", "p99") == 0.05
    assert one.real.value("tpot_s", "mean") == 0.02
    assert engine_options(one)[0]["enable_prefix_caching"] is False


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


@pytest.mark.parametrize("said", [{"arrival": "inference-perf constant rate"}, {"group": "inference-perf-kubecon"}])
def test_what_inference_perf_calls_constant_has_exponential_gaps(said: dict[str, Any], tmp_path: Path) -> None:
    """Simulated evenly spaced, KubeCon's run at 98 % of its engine's capacity had no queue: TTFT was 63 % too low."""
    write_gpu(of_a_gpu(), tmp_path / "gpu.yaml")
    (one,) = read(tmp_path, row(2.0, **said))
    sent = experiment_of(one, str(tmp_path / "gpu.yaml")).traffic
    assert (type(sent).__name__, sent.fixed_count, sent.rate_per_s, sent.duration_s) == ("Poisson", True, 2.0, 30.0)


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
    slow, fast = (simulate(one, str(tmp_path / "gpu.yaml"), 0.0).measures for one in (chat, replace(chat, front_end_s=0.0)))
    for metric, more_s in (("ttft_s", 60 * TEMPLATE_S), ("e2e_s", 60 * TEMPLATE_S), ("tpot_s", 0.0)):
        assert slow.value(metric, "mean") - fast.value(metric, "mean") == pytest.approx(more_s, abs=1e-12)


def test_every_published_result_is_simulated_or_left_out_with_a_reason() -> None:
    results = read_served(shared("data/serving_ground_truth.jsonl"), "tests.accuracy.lines:read")
    chosen, problems = choose(results, ["*"])
    assert len({one.name for one in results}) == len(results) == 1030
    assert len(chosen) + sum(map(len, problems.values())) == 1030
    groups = {one.group for one in chosen}
    assert groups == {"blis-training", "blis-trainval", "blis-sim2real", "inference-perf-kubecon", "gpustack-lab"}
    assert {one.max_concurrency for one in chosen if one.group == "inference-perf-kubecon"} == {440}
    at_once = [one for one in chosen if not one.rate_per_s]
    assert {one.group for one in at_once} == {"gpustack-lab"}
