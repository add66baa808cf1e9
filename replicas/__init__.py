"""One engine: scheduler, KV blocks, step time, lifecycle, and the hardware and models it is made of."""

from replicas.surrogate import Surrogate

KINDS: dict[str, type[Surrogate]] = {"surrogate": Surrogate}
"""What `replicas: {kind: ...}` can be."""
