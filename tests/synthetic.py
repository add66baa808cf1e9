"""Made-up runs, for tests of what is made of a run: REQUEST records, gauges and machines without an engine."""

from typing import Any

import numpy as np

from experiments.results.writer import PoolInfo, RunWriter
from sim.metrics import NUM_ITL_BINS, itl_bin
from sim.records import FINISHED, NEVER, NONE, REQUEST, records


def requests(n: int) -> Any:
    """`n` REQUEST records to which nothing has happened: at 0 s, 10 prompt and 4 output tokens."""
    rows = records(REQUEST, n)
    for name in ("routed_at_s", "scheduled_at_s", "first_token_at_s", "last_token_at_s", "finished_at_s"):
        rows[name] = NEVER
    for name in ("replica", "machine"):
        rows[name] = NONE
    rows["num_prompt_tokens"], rows["num_output_tokens"] = 10, 4
    return rows


def finished(arrived_at_s: Any, ttft_s: Any, tpot_s: Any, num_output_tokens: Any = 4, queue_s: Any = 0.0) -> Any:
    """Finished REQUEST records with these latencies, on machine 0."""
    arrived_at_s = np.asarray(arrived_at_s, dtype=np.float64)
    rows = requests(arrived_at_s.size)
    rows["arrived_at_s"] = rows["routed_at_s"] = arrived_at_s
    rows["scheduled_at_s"] = arrived_at_s + queue_s
    rows["first_token_at_s"] = arrived_at_s + ttft_s
    rows["num_output_tokens"] = rows["num_generated_tokens"] = num_output_tokens
    rows["finished_at_s"] = rows["first_token_at_s"] + tpot_s * (rows["num_output_tokens"] - 1)
    rows["last_token_at_s"] = rows["finished_at_s"]
    rows["machine"] = rows["replica"] = 0
    rows["status"] = FINISHED
    return rows


def machine(**given: Any) -> dict[str, Any]:
    """A machine of pool `main`: 4 GPUs at $2.50, held from 0 s to the end."""
    stages = ("provisioned", "image_pulled", "weights_loaded", "started", "ready", "draining", "released")
    plain: dict[str, Any] = {"id": 0, "pool": "main", "num_gpus": 4, "price_per_gpu_hour": 2.5, "requested_at_s": 0.0}
    return plain | {f"{stage}_at_s": None for stage in stages} | {"reason": None} | given


def gauges(start_s: float, end_s: float, pool: str = "main", **given: Any) -> dict[str, Any]:
    """One pool's row of an interval: one ready replica, idle."""
    counts = dict.fromkeys(("num_starting", "num_draining", "num_waiting", "num_running"), 0)
    plain: dict[str, Any] = {"pool": pool, "start_s": start_s, "end_s": end_s, "num_ready": 1, "desired": 1, **counts}
    return plain | {"kv_cache_usage": 0.0, "capacity_per_s": 5.0, "gpu_hours": 0.0, "dollars": 0.0} | given


def totals(duration_s: float, gaps_s: Any = (), num_pools: int = 1) -> dict[str, Any]:
    """What the data plane knows at the end, with these inter-token gaps in the first pool."""
    counts, sums = np.zeros((num_pools, NUM_ITL_BINS), dtype=np.int64), np.zeros((num_pools, 3))
    for gap_s in gaps_s:
        counts[0, itl_bin(gap_s)] += 1
        sums[0] = sums[0, 0] + gap_s, sums[0, 1] + gap_s**2, max(sums[0, 2], gap_s)
    return {"duration_s": duration_s, "itl_counts": counts, "itl_sums": sums}


def writer(folder: Any, **given: Any) -> RunWriter:
    """A writer for one pool `main` with a TTFT target of 1 s and a TPOT target of 50 ms."""
    slo = {"ttft_s": {"p99": 1.0}, "tpot_s": {"p90": 0.05}}
    plain: dict[str, Any] = {"pools": [PoolInfo("main")], "slo": slo, "timeline_interval_s": 60.0}
    return RunWriter(folder, **(plain | given))
