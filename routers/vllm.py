"""`vllm`: the score of vLLM's own data-parallel load balancer (0.32, `vllm/v1/engine/core_client.py`)."""

from typing import Any

from routers.pick import router
from sim.compiled import verb
from sim.records import RouterView


@verb
def num_waiting_for(load: Any, clients: Any, c: int) -> int:
    """Returns the requests that client `c` takes to wait: the last scrape's, and for each it sent since, one of every client.

    `load` counts what all of them have sent since.
    """
    others = 0
    for k in range(clients.size):
        others += clients[k].num_new
    waiting: int = load.num_waiting - others + clients.size * clients[c].num_new
    return waiting


@router
def choose(view: RouterView) -> int:
    """Sends each request to the lowest of max(clients * own in flight, waiting + running), queues weighing more as KV fills.

    Ties go to the first in a scan whose start differs from client to client and moves on with every request of the client.
    vLLM refreshes its counts each 100 ms (`scrape_interval_s: 0.1`).

    Source: `DPLBAsyncMPClient.get_core_engine_for_request`.
    """
    loads, candidates = view.loads, view.candidates
    num_clients = view.clients.shape[1]
    c = view.request.id % num_clients
    start = (candidates.size * c // num_clients + view.memory[c]) % candidates.size
    view.memory[c] += 1
    best, best_score = -1, float("inf")
    for k in range(start, start + candidates.size):
        r = candidates[k if k < candidates.size else k - candidates.size]
        load, own = loads[r], view.clients[r]
        num_waiting = num_waiting_for(load, own, c)
        kv_usage = 1.0 - load.num_free_blocks / load.num_usable_blocks
        score = max(float(num_clients * own[c].num_inflight), float(num_waiting + load.num_running))
        score += num_waiting * 6.0 * max(0.0, kv_usage - 0.5)
        if score < best_score:
            best, best_score = r, score
    return best
