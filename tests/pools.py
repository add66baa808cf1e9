"""What an autoscaler is shown of a pool where nothing happens, but for what you say."""

from typing import Any

from sim.views import PoolView


def view(now_s: float = 0.0, **changes: Any) -> PoolView:
    """One ready replica that sustains 5 requests/s, no requests, a cold start of 60 s."""
    idle: dict[str, Any] = {
        "num_ready": 1,
        "num_starting": 0,
        "num_draining": 0,
        "num_waiting": 0,
        "num_running": 0,
        "waiting_tokens": 0,
        "running_tokens": 0,
        "num_arrived": 0,
        "kv_cache_usage": 0.0,
        "cold_start_s": 60.0,
        "replica_requests_per_s": 5.0,
        "replica_tokens": 1000.0,
    }
    return PoolView(now_s=now_s, **(idle | changes))
