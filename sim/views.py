"""What an autoscaler is shown: the past and the present of one pool, never the future."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PoolView:
    """One pool at one instant. A replica is counted in exactly one of ready, starting and draining.

    Requests and tokens are those that the pool's ready replicas hold, and those that no replica has taken yet. What a draining
    replica holds is not among them: it finishes that itself, and no other replica takes it over unless it comes back.
    """

    now_s: float
    num_ready: int
    num_starting: int
    num_draining: int
    num_waiting: int  # requests: in engines' queues, and those no replica has taken yet
    num_running: int
    waiting_tokens: int  # prompt tokens of the waiting
    running_tokens: int  # tokens whose KV is held
    num_arrived: int  # requests since the start that more replicas could have served, those turned away by full queues included
    kv_cache_usage: float  # 0 to 1, mean over ready replicas; 0 with none
    cold_start_s: float  # expected time from request to ready
    replica_requests_per_s: float | None  # what one replica sustains within the targets; None if it can serve no request at all
    replica_tokens: float | None  # waiting + running tokens of a replica at that load; None as well
