"""The engines whose rules we know, by number: what an ENGINE record's `scheduler` holds, and `replicas.door` leads to."""

from typing import Any

VLLM, STATIC = range(2)
NAMES = ("vllm", "static")


def check_schedulers(engines: Any) -> None:
    """Refuses engines that none of our rooms can run: compiled code would take them for vLLM's.

    Args:
        engines: (num_pools,) ENGINE records.

    Raises:
        ValueError: which pool's engine it is, the scheduler given, and those that there are.
    """
    for pool, number in enumerate(engines["scheduler"].tolist()):
        if not 0 <= number < len(NAMES):
            known = ", ".join(f"{known} ({name})" for known, name in enumerate(NAMES))
            raise ValueError(f"engine of pool {pool}: no scheduler has number {number}; known: {known}")
