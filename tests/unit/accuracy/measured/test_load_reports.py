"""Reports of load generators are read as the load that was sent, and what they do not say is said."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from accuracy.calibrations.gpu_config import CalibrateGpu
from accuracy.measured.results import Served
from accuracy.measured.rows import read_served
from accuracy.repeated.simulated import experiment_of, simulate
from experiments import run
from sim.errors import TraceError
from tests.accuracy.made_up import row, write_indices
from tests.unit.replicas.calibration.test_gpu_calibration import TRUE, of_a_gpu, write_gpu

ABOUT = {"model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "H100 SXM 80GB", "tp": 1, "server_args": {"max_num_seqs": 64}}

VLLM = {
    "model_id": "Qwen/Qwen2.5-7B-Instruct", "endpoint_type": "openai", "num_prompts": 100, "request_rate": 10.0,
    "burstiness": 1.0, "max_concurrency": None, "duration": 11.0, "completed": 100, "failed": 0, "total_input_tokens": 6000,
    "total_output_tokens": 2100, "request_throughput": 100 / 11, "mean_ttft_ms": 20.0, "mean_tpot_ms": 5.0,
}  # fmt: skip
"""What `vllm bench serve` writes without --save-detailed."""


def indexed(folder: Path, report: Any, **about: Any) -> list[Served]:
    (folder / "report.json").write_text(report if isinstance(report, str) else json.dumps(report))
    (folder / "index.yaml").write_text(yaml.safe_dump({"about": {**ABOUT, **about}, "reports": ["report.json"]}))
    return read_served(folder / "index.yaml")


def only(folder: Path, report: Any, **about: Any) -> Served:
    (one,) = indexed(folder, report, **about)
    return one


def arrivals(one: Served, folder: Path, seed: int = 1) -> pd.DataFrame:
    """The requests that are simulated, one by one."""
    write_gpu(of_a_gpu(), folder / "gpu.yaml")
    experiment = experiment_of(one, str(folder / "gpu.yaml"), seed, scratch=folder)
    return pd.DataFrame(np.concatenate([*experiment.traffic.stream(seed, 4096).chunks()]))


def mean_s(one: Served, metric: str, folder: Path) -> float:
    write_gpu(of_a_gpu(), folder / "gpu.yaml")
    return simulate(one, str(folder / "gpu.yaml"), 0.0).measures.value(metric, "mean")


RAMPS = [("linear", 199 / 19 * np.log(20)), ("exponential", 199 / np.log(20) * 19 / 20)]


@pytest.mark.parametrize(("strategy", "expected_s"), RAMPS)
def test_a_ramp_is_sent_as_a_ramp(strategy: str, expected_s: float, tmp_path: Path) -> None:
    """1 to 20/s over 200 requests: the sum of 1/rate, by hand as an integral. All at once, the last waited for all others."""
    ramp = {"ramp_up_strategy": strategy, "ramp_up_start_rps": 1, "ramp_up_end_rps": 20}
    changes = {"request_rate": "inf", "num_prompts": 200, "completed": 200, "total_input_tokens": 12000}
    one = only(tmp_path, VLLM | changes | ramp)
    assert (one.problem, one.name.rpartition("/")[2], one.is_at_once) == ("", "1-to-20", False)
    lasts = [arrivals(one, tmp_path, seed)["arrived_at_s"].iloc[-1] for seed in range(1, 41)]
    # a gap at rate r has standard deviation 1/r, so a sum has about 2.4 s here; 40 draws 0.4 s
    assert np.mean(lasts) == pytest.approx(expected_s, abs=4 * np.std(lasts) / 40**0.5 + 1.0)  # time 0 is the first request
    gaps = np.diff(arrivals(one, tmp_path)["arrived_at_s"])
    assert gaps[:50].mean() > 2 * gaps[-50:].mean()
    assert mean_s(one, "ttft_s", tmp_path) < 0.5 * mean_s(only(tmp_path, VLLM | changes), "ttft_s", tmp_path)


def test_an_unknown_ramp_is_not_sent_at_once(tmp_path: Path) -> None:
    ramp = {"ramp_up_strategy": "sigmoid", "ramp_up_start_rps": 1, "ramp_up_end_rps": 20}
    assert only(tmp_path, VLLM | ramp).problem == "its rate ramps up in a way that is not known: sigmoid"


def test_the_drain_of_an_open_run_is_no_overload(tmp_path: Path) -> None:
    """1,000 prompts at 10/s are sent in 100 s; the last answers take 15 s more, so that 8.7/s were served."""
    report = VLLM | {"completed": 1000, "num_prompts": 1000, "duration": 115.0, "request_throughput": 1000 / 115}
    assert only(tmp_path, report | {"total_input_tokens": 60_000, "total_output_tokens": 1_024_000}).problem == ""


@pytest.mark.parametrize(("last_ms", "is_held_up"), [(15_000.0, False), (1_000.0, True)])
def test_what_the_last_answers_take_is_no_part_of_the_sending(last_ms: float, is_held_up: bool, tmp_path: Path) -> None:
    line = row(10.0, num_prompts=1000, throughput_req_s=1000 / 115, e2e_ms={"p99": last_ms})
    (one,) = read_served(write_indices(tmp_path / "served.jsonl", [line]))
    assert ("95%" in one.problem) is is_held_up


def detailed(num: int, **changes: Any) -> dict[str, Any]:
    """What --save-detailed adds: prompts of 10, 20, ... tokens, sent at 0, 1, 4, 9, ... s."""
    values = np.arange(1, num + 1)
    each = {
        "input_lens": (10 * values).tolist(),
        "output_lens": (1 + values).tolist(),
        "ttfts": (values / 100).tolist(),
        "itls": [[0.01] * int(value) for value in values],
        "start_times": (500 + (values - 1.0) ** 2).tolist(),
        "errors": [""] * num,
    }
    totals = {"total_input_tokens": sum(each["input_lens"]), "total_output_tokens": sum(each["output_lens"])}
    return VLLM | {"completed": num, "num_prompts": num} | totals | each | changes


def test_instants_and_lengths_one_by_one_are_sent_as_they_were(tmp_path: Path) -> None:
    one = only(tmp_path, detailed(5))
    sent = arrivals(one, tmp_path)
    assert sent["arrived_at_s"].tolist() == [0, 1, 4, 9, 16]
    assert sent["num_prompt_tokens"].tolist() == [10, 20, 30, 40, 50]
    assert sent["num_output_tokens"].tolist() == [2, 3, 4, 5, 6]
    assert one.real.value("ttft_s", "p50") == pytest.approx(0.03)
    assert one.real.value("e2e_s", "mean") == pytest.approx(0.06)  # TTFTs of 10 to 50 ms, and 1 to 5 gaps of 10 ms
    assert one.real.value("tpot_s", "p99") == pytest.approx(0.01)
    assert "lengths" not in one.not_told


def test_a_client_that_holds_requests_back_is_not_replayed_by_what_it_waited_for(tmp_path: Path) -> None:
    """Sending when another ends is for the simulated engine to say; where the report has the waits, the wish is known."""
    held = only(tmp_path, detailed(5, max_concurrency=2))
    assert (held.max_concurrency, held.requests.at_s if held.requests else 0) == (2, None)
    assert arrivals(held, tmp_path)["num_prompt_tokens"].tolist() == [10, 20, 30, 40, 50]
    wished = only(tmp_path, detailed(5, max_concurrency=2, queue_times=[0.0, 0.0, 2.0, 5.0, 10.0]))
    assert arrivals(wished, tmp_path)["arrived_at_s"].tolist() == [0, 1, 2, 4, 6]
    assert wished.max_concurrency == 2
    free = only(tmp_path, detailed(5, max_concurrency=5))
    assert (free.max_concurrency, arrivals(free, tmp_path)["arrived_at_s"].tolist()) == (0, [0, 1, 4, 9, 16])


def test_a_replayed_trace_without_its_instants_is_said(tmp_path: Path) -> None:
    replayed, burst = (only(tmp_path, VLLM | {"request_rate": "inf", "max_concurrent_requests": most}) for most in (7, 100))
    assert "may replay a trace" in replayed.not_told["arrivals"]
    assert "arrivals" not in burst.not_told


@pytest.mark.parametrize(
    "changes", [{"request_rate": float("nan")}, {"request_rate": -1.0}, {"burstiness": -2.0}, {"completed": 0}]
)
def test_a_load_that_cannot_be_sent_is_refused_in_a_line(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"report\.json: is no report that we know \(one of vllm bench serve; ValueError: "):
        only(tmp_path, VLLM | changes)


def test_a_file_that_is_no_text_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(TraceError, match=r"bench\.json: is not text in UTF-8"):
        read_served(tmp_path / "bench.json")


def test_lengths_of_which_only_means_are_known_are_said(tmp_path: Path) -> None:
    alike, spread = only(tmp_path, VLLM), only(tmp_path, VLLM | {"total_input_tokens": 6013})
    assert alike.not_told["lengths"].startswith("each request's lengths are not in the report")
    assert spread.not_told["lengths"].startswith("lengths differ from request to request and only their means are in")
    laws = {"prompt": {"kind": "lognormal", "mean": 60, "p99": 300}, "output": {"kind": "fixed", "tokens": 21}}
    stated = only(tmp_path, VLLM | {"total_input_tokens": 6013}, lengths=laws)
    assert "lengths" not in stated.not_told
    assert arrivals(stated, tmp_path)["num_prompt_tokens"].std() > 30


def against(folder: Path, **about: Any) -> tuple[str, dict[str, Any]]:
    """Validates what `indexed` left in a folder; the page and the manifest."""
    write_gpu(of_a_gpu(), folder / "gpu.yaml")
    config = {"kind": "validate", "recordings": str(folder / "index.yaml"), "calibration": str(folder / "gpu.yaml")}
    (folder / "against.yaml").write_text(yaml.safe_dump(config | {"draws": 1, "step_time_change": None} | about))
    found = run(folder / "against.yaml", out=folder, progress=False).folder
    return (found / "report.md").read_text(), json.loads((found / "manifest.json").read_text())


def test_what_a_report_does_not_say_is_on_the_page(tmp_path: Path) -> None:
    indexed(tmp_path, json.dumps(VLLM | {"total_input_tokens": 6013}))
    page, _ = against(tmp_path)
    assert "! 1 result: lengths differ from request to request and only their means are in the report" in page
    assert "! 1 result: whether prompts begin alike is not in the report" in page


def test_a_fit_says_what_its_reports_do_not(tmp_path: Path) -> None:
    no_means = {"mean_ttft_ms": None, "mean_tpot_ms": None, "median_ttft_ms": 20.0}
    indexed(tmp_path, json.dumps(VLLM) + "\n" + json.dumps(VLLM | {"total_input_tokens": 6013}) + json.dumps(VLLM | no_means))
    config = {"kind": "calibrate_gpu", "gpu": "h100-sxm", "served": str(tmp_path / "index.yaml"), "start": TRUE}
    (tmp_path / "fit.yaml").write_text(yaml.safe_dump(config | {"free": ["client_s"], "max_rounds": 1}))
    folder = run(tmp_path / "fit.yaml", out=tmp_path, progress=False).folder
    said = (folder / "results.txt").read_text()
    assert "1 result: lengths differ from request to request" in said
    assert "1 result: each request's lengths are not in the report" in said
    assert "1 result left out: no mean of TTFT or TPOT, which are fitted" in said
    assert json.loads((folder / "manifest.json").read_text())["left_out"] == {"no mean of TTFT or TPOT, which are fitted": 1}
    assert CalibrateGpu.model_fields["served"].description is not None


@pytest.mark.parametrize(
    ("about", "num", "is_said"),
    [({"prefixes": {"num": 4, "tokens": 400}}, 4, False), ({"in_len": {"system": 400, "total": 600}}, 1, True)],
)
def test_prefixes_can_be_stated(about: dict[str, Any], num: int, is_said: bool, tmp_path: Path) -> None:
    """Four prefixes of 400 of 600 tokens: what is computed of a prompt is a third, but for the first of each."""
    report = VLLM | {"total_input_tokens": 60_000, "request_rate": 1.0}
    plain, sharing = only(tmp_path, report), only(tmp_path, report, **about)
    assert sharing.prefixes == {"num": num, "tokens": 400, "zipf": 0.0, **({"share": 1.0} if "prefixes" in about else {})}
    assert ("prefixes" in sharing.not_told) is is_said
    assert mean_s(sharing, "ttft_s", tmp_path) < 0.8 * mean_s(plain, "ttft_s", tmp_path)
    one_by_one = only(tmp_path, detailed(50), **{"prefixes": {"num": 4, "tokens": 100}})
    sent = arrivals(one_by_one, tmp_path)
    assert sent["num_segments"].tolist() == [1] * 50


def test_uneven_gaps_that_are_not_poisson_are_as_bursty(tmp_path: Path) -> None:
    report = VLLM | {"completed": 4000, "num_prompts": 4000, "total_input_tokens": 240_000, "total_output_tokens": 84_000}
    for burstiness in (0.25, 4.0):
        at_s = arrivals(only(tmp_path, report | {"burstiness": burstiness}), tmp_path)["arrived_at_s"]
        gaps = np.diff(at_s)
        assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.1)  # the error of 4,000 is about 3 %
        assert at_s.iloc[-1] == pytest.approx(400, rel=0.01)


def test_reports_one_after_the_other_are_all_read(tmp_path: Path) -> None:
    for text in (f"{json.dumps(VLLM)}\n{json.dumps(VLLM)}", f"{json.dumps(VLLM, indent=1)}{json.dumps(VLLM)}\n"):
        assert [one.name.rpartition("/")[2] for one in indexed(tmp_path, text)] == ["10", "10#2"]


def test_a_report_given_as_it_is_asks_for_what_it_does_not_say(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text(json.dumps(VLLM, indent=1))
    with pytest.raises(TraceError, match=r"bench\.json: is a report, and does not say gpu and tp .*index.*Qwen/Qwen2\.5-7B"):
        read_served(tmp_path / "bench.json")
    (tmp_path / "bench.json").write_text(json.dumps(VLLM | {"model_id": "m"}))
    with pytest.raises(TraceError, match="does not say model and gpu and tp of the engine"):
        read_served(tmp_path / "bench.json")
    (tmp_path / "bench.json").write_text(json.dumps(VLLM | {"gpu": "H100", "tp": "1"}))  # given as --metadata
    (one,) = read_served(tmp_path / "bench.json")
    assert (one.name, one.problem) == ("reports/h100-sxm/Qwen2.5-7B-Instruct/tp1/bench/10", "")


def test_a_file_of_an_unknown_kind_is_told_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "what.json").write_text('{"what": 1}')
    with pytest.raises(TraceError, match=r"no report that we know \(there: what\); known are .*AIPerf \(request_latency"):
        read_served(tmp_path / "what.json")


def test_an_unknown_key_of_an_index_is_not_ignored(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"index\.yaml: about: .*prefix.*did you mean 'prefixes'"):
        indexed(tmp_path, VLLM, prefix={"num": 1, "tokens": 8})
    with pytest.raises(TraceError, match=r"index\.yaml: about: .*arrival"):
        indexed(tmp_path, VLLM, arrival="bursty")


def test_an_index_counts_before_its_reports(tmp_path: Path) -> None:
    """It used to lose the client's limit with the arrivals."""
    one = only(tmp_path, VLLM | {"max_concurrency": 8}, arrival="constant", rate=5.0, output_tokens=30)
    assert (one.is_even, one.rate_per_s, one.max_concurrency, one.num_output_tokens) == (True, 5.0, 8, 30)
    assert only(tmp_path, VLLM, max_concurrency=4, num_requests=50).num_requests == 50


def test_failed_requests_are_said_and_too_many_are_no_result(tmp_path: Path) -> None:
    few, many = (only(tmp_path, VLLM | {"failed": num, "num_prompts": 100 + num}) for num in (2, 50))
    assert "requests failed" in few.not_told["failed"]
    assert many.problem == "more than one request in twenty failed, and what they asked of the engine is not known"
    errors = ["", "refused", "", "", "", "", "", "", "", ""]
    one = only(tmp_path, detailed(10, errors=errors, completed=9, failed=1, total_input_tokens=530))
    assert arrivals(one, tmp_path)["num_prompt_tokens"].tolist() == [10, 30, 40, 50, 60, 70, 80, 90, 100]
    assert one.real.count("ttft_s") == 9


Said = Mapping[str, Any]


def inference_perf(load: Said, prompts: Said, answers: Said, **more: Any) -> dict[str, Any]:
    """A newer stage's report; lengths were under prompt_len and output_len before."""
    spread = {"mean": 0.5, "median": 0.5, "p90": 0.6, "p99": 0.7}
    latency = {"time_to_first_token": {"mean": 0.03}, "request_latency": spread, "time_per_output_token": {"mean": 0.004}}
    successes = {"latency": latency, "prompt_tokens": prompts, "output_tokens": answers, **more}
    successes["throughput"] = {"requests_per_sec": 30.0}
    return {"load_summary": {"count": 1800, **load}, "successes": successes, "failures": {"count": 0}}


def test_the_newer_reports_of_inference_perf(tmp_path: Path) -> None:
    prompts = {"total": 367_200, "cached": 0.0, "mean": 204.0, "min": 196.0, "median": 204.0, "max": 212.0}
    answers = {"total": 1, "mean": 45.0, "median": 47.0, "min": 0.0}
    sent = {"requested_rate": 30.0, "achieved_rate": 29.9}
    one = only(tmp_path, inference_perf(sent, prompts, answers))
    assert (one.rate_per_s, one.num_requests, one.num_prompt_tokens, one.num_output_tokens) == (30.0, 1800, 204, 47)
    assert (min(one.lengths["prompt"]["values"]), max(one.lengths["prompt"]["values"])) == (196, 212)
    assert "encoded again" in one.not_told["lengths"]
    counted = only(tmp_path, inference_perf(sent, prompts, answers, client_fallback_requests={"prompt": 0, "output": 0}))
    assert counted.num_output_tokens == 45  # as the server counted
    slow = only(tmp_path, inference_perf({"requested_rate": 30.0, "achieved_rate": 20.0}, prompts, answers))
    assert "sent more slowly than it was asked to" in slow.problem
    closed = only(tmp_path, inference_perf({"requested_rate": 1800, "achieved_rate": 9.0, "concurrency": 16}, prompts, answers))
    assert (closed.rate_per_s, closed.max_concurrency, closed.problem) == (0.0, 16, "")
    assert "of several stages" in only(tmp_path, inference_perf({}, prompts, answers)).problem


def guidellm(strategy: Said, place: str, **more: Any) -> dict[str, Any]:
    def values(mean: float) -> dict[str, Any]:
        return {"successful": {"mean": mean, "percentiles": {"p50": mean, "p90": mean, "p99": mean}}}

    means = {"time_to_first_token_ms": 30.0, "request_latency": 0.5, "prompt_token_count": 300.0, "output_token_count": 48.0}
    metrics = {name: values(mean) for name, mean in (means | {"requests_per_second": 2.0}).items()}
    return {"benchmarks": [{place: {"strategy": strategy}, "metrics": metrics, **more}]}


def test_older_reports_of_guidellm(tmp_path: Path) -> None:
    """Before 0.4 the strategy was under `args`, and the numbers of requests beside the metrics."""
    strategy = {"type_": "constant", "rate": 4.5, "initial_burst": True, "max_concurrency": None}
    totals = {"successful": 60, "errored": 0, "incomplete": 3, "total": 63}
    one = only(tmp_path, guidellm(strategy, "args", run_stats={"requests_made": totals}))
    assert (one.rate_per_s, one.is_even, one.num_requests, one.problem) == (4.5, True, 60, "")
    assert "had not ended" in one.not_told["incomplete"]
    at_s = arrivals(one, tmp_path)["arrived_at_s"]
    assert (at_s[:4] == 0).all()  # it sends the whole number of the rate at once, and then one every 1/rate
    assert np.diff(at_s[3:]) == pytest.approx(np.full(56, 1 / 4.5))
    assert one.real.value("tpot_s", "mean") == pytest.approx(0.47 / 47)
    untold = only(tmp_path, guidellm(strategy, "args", run_stats={}))
    assert (untold.problem, untold.num_requests, untold.measures_all) == ("", 0, False)
    assert mean_s(untold, "tpot_s", tmp_path) > 0
    assert "how many requests were sent is not in the report" in untold.not_told["num_requests"]
    assert only(tmp_path, guidellm({"type_": "concurrent", "streams": 4}, "args")).problem.startswith("how many requests")


def test_the_limit_of_guidellm_at_a_rate_is_kept(tmp_path: Path) -> None:
    totals = {"request_totals": {"successful": 60}}
    limited, not_so = (
        only(tmp_path, guidellm({"type_": "poisson", "rate": 4.0, "max_concurrency": limit}, "config", **totals))
        for limit in (8, 10_240)
    )
    assert (limited.max_concurrency, not_so.max_concurrency, limited.is_even) == (8, 0, False)
    ramping = guidellm({"type_": "constant", "rate": 4.0, "rampup_duration": 10.0}, "config", **totals)
    assert "ramps up" in only(tmp_path, ramping).problem
    assert "strategy is not known: replay" in only(tmp_path, guidellm({"type_": "replay"}, "config", **totals)).problem


def test_requests_of_guidellm_one_by_one(tmp_path: Path) -> None:
    each = [
        {"prompt_tokens": 100 * n, "output_tokens": 10 * n, "start_time": 50.0 + n * n, "end_time": 60.0} for n in (1, 2, 3)
    ]
    totals = {"request_totals": {"successful": 3}, "requests": {"successful": each}}
    one = only(tmp_path, guidellm({"type_": "poisson", "rate": 4.0}, "args", **totals))
    sent = arrivals(one, tmp_path)
    assert sent[["arrived_at_s", "num_prompt_tokens", "num_output_tokens"]].to_numpy().tolist() == [
        [0, 100, 10], [3, 200, 20], [8, 300, 30]
    ]  # fmt: skip


def aiperf(load: Said, **more: Any) -> dict[str, Any]:
    def values(unit: str, mean: float) -> dict[str, Any]:
        return {"unit": unit, "avg": mean, "p50": mean, "p90": mean, "p99": mean, "min": mean, "max": mean}

    found = {
        "request_throughput": {"unit": "requests/sec", "avg": 9.5},
        "request_count": {"unit": "requests", "avg": 200},
        "request_latency": values("ms", 1200.0),
        "time_to_first_token": values("ms", 60.0),
        "inter_token_latency": values("us", 9000.0),
        "input_sequence_length": values("tokens", 1024.0),
        "output_sequence_length": values("tokens", 128.0),
    }
    return found | {"input_config": {"loadgen": load, **more}}


def test_aiperf(tmp_path: Path) -> None:
    one = only(tmp_path, aiperf({"request_rate": 10.0, "concurrency": None}))
    assert (one.rate_per_s, one.is_even, one.num_requests, one.num_prompt_tokens) == (10.0, False, 200, 1024)
    times = [one.real.value(metric, "p90") for metric in ("ttft_s", "tpot_s", "e2e_s")]
    assert times == pytest.approx([0.06, 0.009, 1.2])
    closed = only(tmp_path, aiperf({"concurrency": 32, "request_rate_mode": "concurrency_burst"}))
    assert (closed.rate_per_s, closed.max_concurrency, closed.problem) == (0.0, 32, "")
    both = only(tmp_path, aiperf({"request_rate": 10.0, "concurrency": 4, "arrival_pattern": "constant"}))
    assert (both.rate_per_s, both.max_concurrency, both.is_even) == (10.0, 4, True)
    smooth = only(tmp_path, aiperf({"request_rate": 10.0, "arrival_pattern": "gamma", "arrival_smoothness": 2.0}))
    assert smooth.burstiness == 2.0
    prompt = {"input": {"prompt": {"prefix_prompt": {"pool_size": 5, "length": 256}}}}
    assert only(tmp_path, aiperf({"request_rate": 10.0}, **prompt)).prefixes == {"num": 5, "tokens": 256, "zipf": 0.0}
    assert "neither a rate" in only(tmp_path, aiperf({})).problem
    assert "sweeps several loads" in only(tmp_path, aiperf({"concurrency": [1, 2]})).problem
    assert "ramps up" in only(tmp_path, aiperf({"concurrency": 8, "concurrency_ramp_duration": 30.0})).problem
    turns = {"input": {"conversation": {"turn": {"mean": 3}}}}
    assert "turns of conversations" in only(tmp_path, aiperf({"request_rate": 10.0}, **turns)).problem


def test_genai_perf(tmp_path: Path) -> None:
    report = aiperf({})
    for config in ({"request_rate": 5.0}, {"perf_analyzer": {"stimulus": {"request_rate": 5.0}}}):
        one = only(tmp_path, report | {"input_config": config})
        assert (one.rate_per_s, one.is_even, one.num_requests, one.problem) == (5.0, True, 200, "")
    config = {"concurrency": 4, "request_count": 50}
    one = only(tmp_path, {key: value for key, value in report.items() if key != "request_count"} | {"input_config": config})
    assert (one.max_concurrency, one.num_requests, one.problem) == (4, 50, "")


def test_sglang_says_how_random_lengths_are_spread(tmp_path: Path) -> None:
    report = {"backend": "vllm", "dataset_name": "random", "request_rate": 2.0, "max_concurrency": None, "completed": 300,
              "total_input_tokens": 112_000, "total_output_tokens": 11_300, "mean_e2e_latency_ms": 800.0, "mean_ttft_ms": 50.0,
              "random_input_len": 500, "random_output_len": 50, "random_range_ratio": 0.5, "duration": 151.0}  # fmt: skip
    one = only(tmp_path, report)
    assert (one.problem, one.lengths["prompt"]) == ("", {"kind": "uniform", "low": 250, "high": 500})
    assert only(tmp_path, report | {"backend": "sglang"}).problem == "engine sglang, not vllm"
    assert "stamps of a trace" in only(tmp_path, report | {"request_rate": "trace"}).problem


def test_chat_prompts_say_what_their_template_adds(tmp_path: Path) -> None:
    chat = VLLM | {"endpoint_type": "openai-chat"}
    assert "rendered as chat" in only(tmp_path, chat).not_told["chat"]
    assert only(tmp_path, chat, model="Qwen/Qwen3-8B").num_prompt_tokens == 68
    stated = only(tmp_path, chat, chat_tokens=12)
    assert (stated.num_prompt_tokens, "chat" in stated.not_told) == (72, False)


def test_an_answer_of_one_token_has_no_time_per_token(tmp_path: Path) -> None:
    """vllm bench serve writes 0 for it, and the simulation had 0 too."""
    one = only(tmp_path, VLLM | {"total_output_tokens": 100, "mean_tpot_ms": 0.0, "mean_itl_ms": 0.0, "mean_e2el_ms": 20.0})
    assert np.isnan(one.real.value("tpot_s", "mean"))
    assert np.isnan(mean_s(one, "tpot_s", tmp_path))
    assert mean_s(one, "ttft_s", tmp_path) > 0
    line = row(2.0, out_len={"requested": 1}, tpot_ms={"mean": 3.0}, itl_ms={"mean": 3.0})
    (one,) = read_served(write_indices(tmp_path / "served.jsonl", [line]))
    assert {metric for metric, _ in one.real.statistics} == {"ttft_s"}
    indexed(tmp_path, VLLM | {"total_output_tokens": 100, "mean_tpot_ms": 0.0, "mean_e2el_ms": 20.0})
    page, _ = against(tmp_path)
    assert "TPOT" not in page.split("! ")[0].replace("TPOT targets", "")


def test_requests_that_the_engine_refuses_are_in_no_figure(tmp_path: Path) -> None:
    report = detailed(20, input_lens=[100] * 19 + [5000], total_input_tokens=6900)
    indexed(tmp_path, report, server_args={"max_num_seqs": 64, "max_model_len": 1000})
    page, _ = against(tmp_path)
    assert "1 simulated requests were not served, and are in no figure" in page
    indexed(tmp_path, detailed(3), server_args={"max_model_len": 8})
    with pytest.raises(TraceError, match="its requests are too long for the engine, which serves none"):
        against(tmp_path)
