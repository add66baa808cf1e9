"""One engine: scheduler, KV blocks, step time, lifecycle, and the hardware and models it is made of."""

from replicas.live.config import Vllm
from replicas.live.openai import OpenAiServer
from replicas.surrogate import Surrogate

KINDS: dict[str, type[Surrogate]] = {"surrogate": Surrogate, "vllm": Vllm, "openai": OpenAiServer}
"""What `replicas: {kind: ...}` can be."""
