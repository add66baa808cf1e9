"""`vllm`: the score of vLLM's own data-parallel load balancer (0.32, `vllm/v1/engine/core_client.py`)."""

from typing import Any

from pydantic import Field

from routers.pick import router
from sim.params import Params
from sim.records import RouterState


class Options(Params):
    """What the score needs to know of the deployment."""

    num_clients: int = Field(default=1, ge=1, description="API servers that balance on their own; each sees its share.")


@router
def choose(loads: Any, candidates: Any, request: Any, state: RouterState) -> int:
    """Sends each request to the lowest of max(clients * own in flight, waiting + running), queues weighing more as KV fills.

    Ties go to the first in a scan whose start moves on with every request. vLLM refreshes its counts each 100 ms
    (`scrape_interval_s: 0.1`).
    """
    start = state.memory[0] % candidates.size
    state.memory[0] += 1
    best, best_score = -1, float("inf")
    for k in range(start, start + candidates.size):
        r = candidates[k if k < candidates.size else k - candidates.size]
        load = loads[r]
        kv_usage = 1.0 - load.num_free_blocks / load.num_usable_blocks
        score = max(state.options[0] * load.num_inflight, float(load.num_waiting + load.num_running))
        score += load.num_waiting * 6.0 * max(0.0, kv_usage - 0.5)
        if score < best_score:
            best, best_score = r, score
    return best
