"""What a chat template adds to a prompt, and an API server that parses it again for each of them."""

from collections.abc import Mapping
from typing import Any

from accuracy.measured.names import version_of

CHAT, CHAT_TOKENS = "/v1/chat/completions", {"qwen3": 8}
"""Where a bench's prompts are rendered as chat, and the tokens that this adds to a question, by the model's name.

Source: the chat template of Qwen3: <|im_start|> user newline, <|im_end|> newline, <|im_start|> assistant newline."""

PARSES_TEMPLATES, TEMPLATE_S = (0, 11, 0), 9.2e-3
"""vLLM's version that parses the chat template again for each request (`resolve_chat_template_kwargs`), in the API server's
event loop, and how long that takes. Requests that come at once are all parsed before the engine is told of the first.

Source: 1,000 at once for Qwen3 32B on gpustack's H100. Their TTFT grows evenly from 9.8 s (p50 21.3, p99 32.7), half a step
of 1.1 s after the first was scheduled. Nothing that is validated here was served there; another host has another CPU."""


def chat_tokens(model: str) -> int | None:
    """Returns the tokens that a chat template adds to a prompt; None where it is not known."""
    return next((tokens for name, tokens in CHAT_TOKENS.items() if model.startswith(name)), None)


def front_end_s(row: Mapping[str, Any]) -> float:
    """Returns what a chat request takes in the API server before the engine gets it, as far as it is known."""
    return TEMPLATE_S if version_of(str(row["engine_version"] or "")) == PARSES_TEMPLATES else 0.0
