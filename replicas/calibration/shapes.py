"""Which steps are worth measuring on an engine, to tell the coefficients of its step time apart."""

from typing import NamedTuple


class Shape(NamedTuple):
    """One engine step: decodes of one context each, and at most one chunk of a prompt on what is cached of it."""

    num_decodes: int = 0
    decode_context: int = 0  # tokens that each decode has computed before
    chunk: int = 0  # prompt tokens
    cached: int = 0  # tokens of that prompt computed before

    @property
    def described(self) -> str:
        """In words: what a reader of a calibration is told.

        >>> Shape(4, 128, 64, 1024).described
        '4 decodes on 128 tokens and a chunk of 64 on 1,024'
        """
        many = "" if self.num_decodes == 1 else "s"
        decodes = f"{self.num_decodes:,} decode{many} on {self.decode_context:,} tokens" if self.num_decodes else ""
        chunk = f"a chunk of {self.chunk:,} on {self.cached:,}" if self.chunk else ""
        return " and ".join(part for part in (decodes, chunk) if part)

    @property
    def num_requests(self) -> int:
        """Requests in the step."""
        return self.num_decodes + (self.chunk > 0)

    @property
    def num_tokens(self) -> int:
        """New tokens in the step."""
        return self.num_decodes + self.chunk

    @property
    def kv_tokens(self) -> int:
        """Tokens whose KV the step touches."""
        return self.num_decodes * (self.decode_context + 1) + (self.cached + self.chunk if self.chunk else 0)

    @property
    def attended_tokens(self) -> float:
        """Sum of n (c + n/2)."""
        return self.num_decodes * (self.decode_context + 0.5) + self.chunk * (self.cached + self.chunk / 2)


BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CONTEXTS = (128, 512, 2048, 8192, 32768)
CHUNKS = (16, 64, 256, 1024, 2048, 4096, 8192, 16384)
CACHED = (0, 1024, 8192)
MIXED_BATCHES, MIXED_CONTEXT = (1, 4, 16, 64), 512
"""Powers of two and four: a form that is linear in its terms needs the ends of each range and enough between to show a bend."""


def worth_measuring(
    max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int, num_kv_tokens: int, max_graph_tokens: int = 0
) -> list[Shape]:
    """Returns the steps that tell the coefficients apart, as far as the engine can take them.

    Decodes of several batches and contexts (reading KV, cost of a request), chunks on nothing and on a cached prefix
    (arithmetic, attention), both together (whether they hide each other), and with CUDA graphs the batches just above a
    graph's size (padding).

    Args:
        max_num_seqs: requests in a step.
        max_num_batched_tokens: new tokens in a step.
        max_model_len: tokens of one request.
        num_kv_tokens: tokens that the KV cache holds.
        max_graph_tokens: tokens of the largest CUDA graph; 0 = none are used.
    """
    contexts = sorted({min(context, max_model_len - 1) for context in CONTEXTS})
    chunks = sorted({min(chunk, max_num_batched_tokens, max_model_len - 1) for chunk in CHUNKS})
    above_graphs = [batch + 1 for batch in BATCHES if 8 <= batch < max_graph_tokens]
    shapes = [Shape(batch, context) for batch in sorted({*BATCHES, max_num_seqs}) for context in contexts]
    shapes += [Shape(batch, MIXED_CONTEXT) for batch in above_graphs]
    shapes += [Shape(chunk=chunk, cached=cached) for chunk in chunks for cached in CACHED]
    shapes += [Shape(batch, MIXED_CONTEXT, chunk) for batch in MIXED_BATCHES for chunk in chunks]

    def fits(shape: Shape) -> bool:
        return (
            shape.num_requests <= max_num_seqs
            and shape.num_tokens <= max_num_batched_tokens
            and max(shape.decode_context + 1 if shape.num_decodes else 0, shape.cached + shape.chunk) <= max_model_len
            and shape.kv_tokens <= num_kv_tokens
        )

    return [shape for shape in dict.fromkeys(shapes) if fits(shape)]
