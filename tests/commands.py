"""A small experiment, and the command as another process, in plain Python so that it need not compile."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = """
traffic:
  kind: poisson
  rate_per_s: 5
  duration_s: 20
  lengths: {prompt: {kind: fixed, tokens: 100}, output: {kind: fixed, tokens: 10}}
router: {kind: round_robin}
pools:
  - name: main
    model: llama-3.1-8b
    gpu: h100-sxm
    replicas: {kind: surrogate, max_model_len: 8192}
    autoscaler: {kind: fixed, replicas: 2}
"""
SWEEP = "sweep: {router.kind: [random, least_loaded]}\n"
ENVIRONMENT = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)}


def command(config: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Starts the command on a config, in its folder."""
    call = [sys.executable, str(ROOT / "run_experiment.py"), config.name, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(call, cwd=config.parent, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True)
