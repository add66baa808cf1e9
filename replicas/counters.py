"""What each pool has counted since the start: requests and tokens by class, latencies by bin."""

from typing import Any

import numpy as np

from sim.compiled import verb
from sim.metrics import latency_bin
from sim.records import E2E, TPOT, TTFT, Fleet


@verb
def count_arrived(fleet: Fleet, pool: int, request: Any, change: int) -> None:
    """Counts a request that has not been routed yet among those that arrived at a pool, or no longer among them."""
    if np.isnan(request.routed_at_s):
        demand = fleet.demand[pool, request.class_id]
        demand.num_arrived += change
        demand.num_prompt_tokens += change * request.num_prompt_tokens


@verb
def count_first_token(fleet: Fleet, pool: int, request: Any) -> None:
    """Counts the TTFT of a request that has just got its first token."""
    fleet.latency_counts[pool, TTFT, latency_bin(request.first_token_at_s - request.arrived_at_s)] += 1


@verb
def count_finished(fleet: Fleet, pool: int, request: Any, now_s: float) -> None:
    """Counts a request that finishes now: its tokens, its E2E, and its TPOT if it has one (see `sim.metrics`)."""
    demand = fleet.demand[pool, request.class_id]
    demand.num_finished += 1
    demand.num_output_tokens += request.num_generated_tokens
    fleet.latency_counts[pool, E2E, latency_bin(now_s - request.arrived_at_s)] += 1
    num_gaps = request.num_generated_tokens - 1
    if num_gaps > 0:
        fleet.latency_counts[pool, TPOT, latency_bin((now_s - request.first_token_at_s) / num_gaps)] += 1
