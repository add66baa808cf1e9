"""Says before a long run what it will take, by rates that were measured on shipped configs."""

import contextlib
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.pages.figures import span
from experiments.settings.experiment import Experiment, Study
from sim.compiled import is_compiled_already
from sim.errors import ConfigError, TraceError
from sim.outside import is_outside
from sim.records import REQUEST, SEQUENCE

LONG_S = 20.0
"""A command that may take longer says so."""

# Seconds of simulation, measured on one core of an x86 server: the least and the most.
_REQUEST_S = (1.3e-6, 11e-6)
"""For a request: `routers`, with full batches; `azure_conv`, few at a time, and `opening_question` with too few replicas."""
_CACHED_BLOCK_S = (0.1e-6, 0.3e-6)
"""More for a block of its prompt, with a prefix cache: `mooncake`, 190 us for 12,000 tokens in blocks of 16."""
_PYTHON_ROUTER_S = (10e-6, 40e-6)
"""More for a router in plain Python, with few replicas and with hundreds."""
_PROCESS_BYTES = 0.3e9
"""The process, with a fleet that keeps up."""
_ROW_BYTES = 76
"""A row of requests.parquet, which is nearly all of a result."""


class Needs(NamedTuple):
    """What a run takes."""

    num_requests: float
    seconds: tuple[float, float]
    memory_bytes: tuple[float, float]  # while the fleet keeps up; where every request of the run waits in it
    disk_bytes: float


def needs(experiment: Experiment) -> Needs:
    """Returns what a simulation takes, at least and at most, as far as its config says."""
    traffic = experiment.traffic
    ends_at_s = traffic.ends_at_s
    num = traffic.mean_rate_per_s(0.0, ends_at_s) * ends_at_s if ends_at_s > 0 else float(traffic.limit or 1)  # all are at 0
    num = num if traffic.limit is None else min(num, traffic.limit)
    has_cache = traffic.shares_tokens and any(pool.replicas.enable_prefix_caching is not False for pool in experiment.pools)
    blocks = traffic.mean_prompt_tokens / min(pool.replicas.block_size for pool in experiment.pools) if has_cache else 0.0
    asks_python = not experiment.router.is_compiled
    low_s, high_s = (num * (_REQUEST_S[i] + blocks * _CACHED_BLOCK_S[i] + asks_python * _PYTHON_ROUTER_S[i]) for i in range(2))
    num_held = num if traffic.max_concurrency is None else min(num, traffic.max_concurrency)
    ring = 2 ** math.ceil(math.log2(max(2.0, num_held)))  # as sim.window has it, and once more half of it while it grows
    waiting = (REQUEST.itemsize + has_cache * SEQUENCE.itemsize) * (min(num_held, ring) + ring / 2)
    return Needs(num, (low_s, high_s), (_PROCESS_BYTES, _PROCESS_BYTES + waiting), num * _ROW_BYTES)


def say(experiments: Sequence[Study], jobs: int, out: Path) -> None:
    """Prints on stderr, in a line, what these runs will take if that is long; compiling comes first where it has to."""
    if experiments and not is_compiled_already("data_plane"):
        print("compiling the simulator, once for this version: a minute or so", file=sys.stderr, flush=True)
    known = list(_known(experiments))
    low_s, high_s = (sum(one.seconds[i] for one in known) / max(1, min(jobs, len(known))) for i in range(2))
    if high_s < LONG_S:
        return
    largest = sorted((one.memory_bytes for one in known), key=lambda bytes: bytes[1])[-max(1, jobs) :]
    low_bytes, high_bytes = (sum(bytes[i] for bytes in largest) for i in range(2))
    free_bytes = shutil.disk_usage(next(place for place in (out, *out.absolute().parents) if place.is_dir())).free
    num_requests, disk_bytes = sum(one.num_requests for one in known), sum(one.disk_bytes for one in known)
    print(
        f"{len(known)} run{'s' * (len(known) > 1)} of {num_requests:,.0f} requests in all: about {span(low_s)} to "
        f"{span(high_s)} in {max(1, jobs)} process{'es' * (jobs > 1)}, {_size(low_bytes)} of memory (up to "
        f"{_size(high_bytes)} where the fleet does not keep up) and {_size(disk_bytes)} of disk"
        + (f", where {_size(free_bytes)} are free" if free_bytes < disk_bytes else ""),
        file=sys.stderr,
        flush=True,
    )


def _known(experiments: Sequence[Study]) -> Iterator[Needs]:
    """Yields what each simulation takes; unknown for a real engine, traffic from outside, a file that is not there."""
    before: Experiment | None = None  # the traffic of a sweep is often the same: a file is looked through once
    for one in experiments:
        if not isinstance(one, Experiment) or is_outside(type(one.traffic)):
            continue
        if any(pool.replicas.is_live for pool in one.pools):
            continue
        if before is not None and one.traffic == before.traffic:
            one = one.model_copy(update={"traffic": before.traffic})
        before = one
        with contextlib.suppress(ConfigError, TraceError, OSError):
            yield needs(one)


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes > 1e8 else f"{num_bytes / 1e6:.0f} MB"
