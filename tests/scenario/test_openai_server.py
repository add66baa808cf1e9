"""A server that speaks OpenAI's API as a replica: sent when they arrive, recorded as they come."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from experiments import run
from experiments.cli import main
from tests.commands import ROOT
from tests.fake_server import FakeServer, serving

CONFIG = ROOT / "configs" / "live_smoke.yaml"
FIRST_S, GAP_S = 0.03, 0.01
# What the machine may add to a sleep or a thread's turn while other tests run; a wrong clock is off by the whole run's seconds
SLACK_S = 0.5


def sets(server: FakeServer) -> list[str]:
    return [
        "sweep=null",
        f"pools.main.replicas={{kind: openai, base_url: '{server.base_url}', num_gpu_blocks: 256, block_size: 32}}",
        "pools.main.autoscaler={kind: fixed, replicas: 1}",
        "traffic.rate_per_s=20",
        "traffic.duration_s=1.5",
    ]


def replayed(server: FakeServer, tmp_path: Path, *more: str) -> Any:
    return run(CONFIG, out=tmp_path, sets=[*sets(server), *more], progress=False)


@pytest.mark.parametrize("says_token_ids", [True, False])
def test_requests_are_sent_when_they_arrive_and_recorded_as_they_come(tmp_path: Path, says_token_ids: bool) -> None:
    with serving(FIRST_S, GAP_S, says_token_ids=says_token_ids) as server:
        result = replayed(server, tmp_path)
    requests = result.requests
    assert len(requests) == len(server.bodies) > 10
    assert (requests["status"] == "finished").all()
    asked = sorted((len(body["prompt"]), body["max_tokens"]) for body in server.bodies)  # two may overtake each other
    assert asked == sorted(zip(requests["num_prompt_tokens"], requests["num_output_tokens"], strict=True))
    sent_s = [at - server.received_at[0] for at in server.received_at]
    arrived_s = requests["arrived_at_s"] - requests["arrived_at_s"][0]
    assert sent_s == pytest.approx(arrived_s.tolist(), abs=SLACK_S)
    assert requests["ttft_s"].between(FIRST_S, FIRST_S + SLACK_S).all()
    several = requests.dropna(subset="tpot_s")
    # a sleep is never shorter than asked, so neither is a mean of several; 2 ms for the clock's look at arrivals
    assert several["tpot_s"].between(GAP_S - 0.002, GAP_S + SLACK_S).all()
    assert several["tpot_s"].median() < 3 * GAP_S
    assert (requests["num_cached_tokens"] == 3).all()
    assert len(result.manifest["invariants_checked"]) == 12
    assert result.manifest["live"]["main"]["version"].startswith("fake-model at http://127.0.0.1:")


def test_a_client_that_limits_its_requests_sends_the_next_when_one_has_ended(tmp_path: Path) -> None:
    with serving(FIRST_S, GAP_S) as server:
        result = replayed(server, tmp_path, "traffic.max_concurrency=2")
    requests = result.requests
    assert (requests["status"] == "finished").all()
    assert result.manifest["counts"]["held_back"] > 0
    for i, arrived_at_s in enumerate(requests["arrived_at_s"]):
        before = requests.iloc[:i]
        assert (before["finished_at_s"] > arrived_at_s).sum() < 2


def test_the_first_tokens_of_prompts_are_shared_as_the_traffic_says(tmp_path: Path) -> None:
    with serving(0.0, 0.0) as server:
        replayed(server, tmp_path, "traffic.prefixes={num: 1, tokens: 30}")
    assert len({tuple(body["prompt"][:30]) for body in server.bodies}) == 1
    assert len({tuple(body["prompt"][30:]) for body in server.bodies}) == len(server.bodies)


def test_a_refused_request_has_failed_and_the_rest_goes_on(tmp_path: Path) -> None:
    with serving(0.001, 0.001, fails_each=4) as server:
        result = replayed(server, tmp_path)
    failed = result.requests["status"] == "failed"
    assert failed.sum() == len(server.bodies) // 4
    assert set(result.requests["reason"][failed]) == {"server_error"}
    assert result.manifest["server_errors"] == {"ValueError: HTTP 503: too busy": int(failed.sum())}
    warnings = json.loads((result.folder / "summary.json").read_text())["warnings"]
    assert f"{failed.sum()} requests failed at the server: ValueError: HTTP 503: too busy" in warnings


def test_it_takes_real_time(tmp_path: Path) -> None:
    with serving(0.0, 0.0) as server:
        began = time.perf_counter()
        result = replayed(server, tmp_path)
    assert time.perf_counter() - began > result.requests["arrived_at_s"].iloc[-1]


def test_nobody_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        options = sets(server)
    server.server_close()
    words = [word for one in options for word in ("--set", one)]
    assert main([str(CONFIG), "--out", str(tmp_path), *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{server.base_url}/models: no OpenAI-compatible server answers (ConnectionRefusedError" in line


def test_another_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        words = [w for one in [*sets(server), "pools.main.replicas.served_model=other"] for w in ("--set", one)]
        assert main([str(CONFIG), "--out", str(tmp_path), *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("no model 'other'; it serves fake-model")


def test_what_is_no_address_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    change = "pools.main.replicas={kind: openai, base_url: 'localhost:8000', num_gpu_blocks: 256}"
    assert main([str(CONFIG), "--dry-run", "--set", "sweep=null", "--set", change]) == 2
    assert "base_url: must be such as http://127.0.0.1:8000/v1, given 'localhost:8000'" in capsys.readouterr().err
