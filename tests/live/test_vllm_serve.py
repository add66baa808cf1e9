"""`vllm serve` as a replica: the server starts, takes token ids, and a replay against it is recorded."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments import run
from replicas.live.model_shape import vllm_model_config
from tests.live.test_live_replicas import CONFIG, MODEL

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed in this interpreter"),
]
MAX_START_S = 300


@pytest.fixture
def base_url(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(vllm_model_config(MODEL)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "model": folder, "load-format": "dummy", "dtype": "float32", "max-model-len": 1024, "max-num-seqs": 8,
        "max-num-batched-tokens": 256, "block-size": 32, "kv-cache-memory-bytes": 50_000_000, "host": "127.0.0.1", "port": port,
    }  # fmt: skip
    flags = ["--skip-tokenizer-init", "--enforce-eager", "--enable-prompt-tokens-details"]
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words, *flags]
    quiet = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(command, env=os.environ | quiet, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}/v1"
    try:
        wait_for(url, server, tmp_path / "server.log")
        yield url
    finally:
        server.terminate()
        server.wait(60)


def wait_for(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + MAX_START_S
    while True:
        try:
            urllib.request.urlopen(f"{url}/models", timeout=5).close()
            return
        except OSError:
            assert server.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(1)


def test_a_replay_against_vllm_serve_is_recorded(base_url: str, tmp_path: Path) -> None:
    replicas = f"{{kind: openai, base_url: '{base_url}', num_gpu_blocks: 256, block_size: 32, max_model_len: 1024}}"
    sets = [
        "sweep=null",
        "traffic.limit=40",
        f"pools.main.replicas={replicas}",
        "pools.main.autoscaler={kind: fixed, replicas: 1}",
    ]
    result = run(CONFIG, out=tmp_path / "out", sets=sets, progress=False)
    assert (result.requests["status"] == "finished").all()
    assert result.manifest["server_errors"] == {}
    assert result.requests["num_cached_tokens"].max() == 64  # the traffic's shared prefixes, as the server tells
    assert (result.requests["ttft_s"] > 0.001).all()
