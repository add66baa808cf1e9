"""One engine: scheduler, KV blocks, step time, lifecycle, and the hardware and models it is made of."""

from replicas.engine import Engine
from sim.kinds import Kinds

KINDS: Kinds[type[Engine]] = Kinds(
    {
        "surrogate": "replicas.surrogate:Surrogate",
        "vllm": "replicas.live.config:Vllm",
        "openai": "replicas.live.openai:OpenAiServer",
    }
)
"""What `replicas: {kind: ...}` can be."""
