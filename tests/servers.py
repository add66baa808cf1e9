"""Engines that are servers of a textbook queue, and the paths of requests through them. See tests/theory/test_queues.py."""

from typing import Any, NamedTuple

import numpy as np

from experiments.contracts.fleets import engine, run
from traces import KINDS

MEAN_TOKENS = 10_000  # of a prompt that takes one step
MEAN_STEPS = 50  # of an answer in equal steps
NUM_REQUESTS = 200_000  # of one seed
ONE = {"kind": "fixed", "tokens": 1}


class Path(NamedTuple):
    """What happened to each request, (n,) each, in mean service times."""

    gaps: Any
    services: Any
    waits: Any
    sojourns: Any


def one_step_a_prompt() -> Any:
    """A server whose service is the prompt: MEAN_TOKENS take 1 s."""
    roomy = {"max_num_batched_tokens": 10**8, "max_model_len": 10**8, "num_usable_blocks": 10**7}
    return engine(max_num_seqs=1, overhead_s=0.0, flops_per_token=1 / MEAN_TOKENS, flops_per_s=1.0, **roomy)


def equal_steps(servers: int) -> Any:
    """Servers whose service is the answer, one step a token: MEAN_STEPS take 1 s."""
    return engine(max_num_seqs=servers, overhead_s=1 / MEAN_STEPS)


def arriving(rate_per_s: float, prompt: dict[str, Any], output: dict[str, Any], seed: int, num: int = NUM_REQUESTS) -> Any:
    lengths = {"prompt": prompt, "output": output}
    fields = {"rate_per_s": rate_per_s, "duration_s": 1e8, "limit": num, "lengths": lengths}
    traffic = KINDS["poisson"].model_validate(fields)
    return np.concatenate(list(traffic.stream(seed).chunks()))


def path(rows: Any, services: Any, engines: Any, **options: Any) -> Path:
    requests = run(rows, engines, chunk=32_768, interval_s=1e5, timeline_interval_s=1e5, **options).requests
    at_s = requests.arrived_at_s
    gaps = np.diff(at_s, prepend=0.0)
    return Path(gaps, services, requests.scheduled_at_s - at_s, requests.finished_at_s - at_s)


def joined(paths: list[Path]) -> Path:
    return Path(*(np.concatenate(values) for values in zip(*paths, strict=True)))
