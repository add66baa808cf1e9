"""The most that fits into the records' narrow integers. Every door refuses more and names what was given; nothing wraps."""

MAX_TOKENS = 1_000_000_000
"""Tokens of a prompt, and of an answer: together they fit into 32 bits. The longest contexts have a hundredth of that."""

MAX_REQUESTS = 2**31 - 1
"""Requests in a run: lists of requests are linked by 32-bit ids."""

MAX_CLASSES = 2**15 - 1
"""Classes of requests: a request holds the number of its class in 16 bits."""

MAX_RUN_S = 10 * 366 * 86_400.0
"""Seconds from the start of a run to its last arrival: ten years. Up to there a float tells instants 60 ns apart."""

MIN_INTERVAL_S = 0.001
"""Shortest time between two looks, scrapes or rows of the timeline. Assumption: nobody needs a shorter one."""

MAX_SEED = 2**63 - 1
"""Seeds are written to tables in 64 bits."""

MAX_NUM_SEQS = 2**16 - 1
"""Requests in a step: a replica counts them in 16 bits."""

MAX_STAGES = 2**7 - 2
"""Stages of a pipeline: with one step planned ahead, a replica counts its steps in flight in 8 bits."""

MAX_HELD_TOKENS = 2**31 - 1
"""Tokens whose KV one engine holds, shared ones once for every request that shares them."""

MAX_SLOTS = 2**16
"""Engines in a fleet. Assumption: nobody simulates more; each takes some 10 KB before it serves a request."""


def zero_or_long_enough(seconds: float) -> float:
    """Returns a time between two scrapes; 0 = none are made.

    Raises:
        ValueError: it is shorter than MIN_INTERVAL_S.
    """
    if 0 < seconds < MIN_INTERVAL_S:
        raise ValueError(f"must be 0, or at least {MIN_INTERVAL_S}, given {seconds}")
    return seconds
