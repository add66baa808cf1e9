"""Token ids made from what the traffic says of its tokens, so that equal content is equal ids and prefix hits happen."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_ODD = np.uint64(0x9E3779B97F4A7C15)
_OWN = np.uint64(0x5851F42D4C957F2D)


class TokenStreams:
    """Streams of token ids, each named by a 64-bit `content`: position p of a stream is always the same id.

    What an engine answers is not ours to choose. Where an answer is part of a stream, as in a conversation whose next prompt
    contains it, `remember` puts the engine's own tokens in the stream's place; the first answer to a position stays.

    Args:
        vocab_size: ids are drawn from [1, vocab_size).
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._answers: dict[int, dict[int, int]] = {}

    def prompt(self, request: int, segments: Any, num_tokens: int) -> list[int]:
        """Returns a request's first tokens: its segments' in order, and then its own.

        Args:
            request: its number, which names the tokens that it shares with nobody.
            segments: (n,) SEGMENT records.
            num_tokens: how many tokens.
        """
        pieces, left = [], num_tokens
        for content, length in zip(segments["content"].tolist(), segments["num_tokens"].tolist(), strict=True):
            pieces.append(self._stream(content, 0, min(length, left)))
            left -= len(pieces[-1])
        pieces.append(self._drawn(_mix(np.uint64(request) ^ _OWN), 0, left))
        ids: list[int] = np.concatenate(pieces).tolist()
        return ids

    def remember(self, segments: Any, first: int, tokens: list[int]) -> None:
        """Notes that a request's tokens from position `first` on are these, where they belong to a segment."""
        start = 0
        for content, length in zip(segments["content"].tolist(), segments["num_tokens"].tolist(), strict=True):
            low, high = max(first, start), min(first + len(tokens), start + length)
            if low < high:
                answers = self._answers.setdefault(content, {})
                for position in range(low, high):
                    answers.setdefault(position - start, tokens[position - first])
            start += length

    def _stream(self, content: int, first: int, num_tokens: int) -> NDArray[np.int64]:
        ids = self._drawn(_mix(np.uint64(content & 0xFFFFFFFFFFFFFFFF)), first, num_tokens)
        answers = self._answers.get(content)
        if answers:
            for k in range(num_tokens):
                ids[k] = answers.get(first + k, ids[k])
        return ids

    def _drawn(self, key: np.uint64, first: int, num_tokens: int) -> NDArray[np.int64]:
        positions = np.arange(first + 1, first + num_tokens + 1, dtype=np.uint64)
        with np.errstate(over="ignore"):
            mixed = _mix(key + positions * _ODD)
        return (1 + mixed % np.uint64(self.vocab_size - 1)).astype(np.int64)


def _mix(bits: Any) -> Any:
    """Returns well-mixed bits. Source: the finaliser of splitmix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
