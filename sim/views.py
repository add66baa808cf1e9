"""What an autoscaler is shown: the past and the present of one pool, never the future."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PoolView:
    """One pool at one instant. A replica is counted in exactly one of ready, starting and draining."""

    now_s: float
    num_ready: int
    num_starting: int
    num_draining: int
    num_waiting: int  # requests: in engines' queues, and those no replica has taken yet
    num_running: int
    waiting_tokens: int  # prompt tokens of the waiting
    running_tokens: int  # tokens whose KV is held
    num_arrived: int  # requests offered to the pool since the start, refused ones included
    kv_cache_usage: float  # 0 to 1, mean over ready replicas; 0 with none
    cold_start_s: float  # expected time from request to ready
    replica_requests_per_s: float  # what one replica sustains within the targets
    replica_tokens: float  # waiting + running tokens of a replica at that load
