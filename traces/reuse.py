"""How much of the prompts a prefix cache could find at best: what the traffic offers, whatever the fleet makes of it."""

from collections.abc import Iterable
from itertools import islice

from traces.traffic import TrafficStream


def ideal_hit_rate(stream: TrafficStream, block_size: int = 1) -> float:
    """Returns the share of prompt tokens that one endless cache would find, if each request ended before the next came.

    No fleet finds more in its caches: a router spreads the requests, caches are finite, and requests overlap. A request
    finds the whole blocks of its prompt up to the first token where it departs from all before it, and never its last
    token, which an engine computes in any case. Recomputing after a preemption is not counted.

    Uses up the stream; memory grows with the different segments in it.

    Args:
        stream: of any traffic, from the beginning.
        block_size: tokens that are found together or not at all.

    Returns:
        From 0 to below 1; NaN without requests.
    """
    tree = _PrefixTree()
    num_prompt_tokens, num_found = 0, 0
    for rows in stream.chunks():
        segments = iter(stream.segments_of(rows).tolist())
        for prompt, num_segments in zip(rows["num_prompt_tokens"].tolist(), rows["num_segments"].tolist(), strict=True):
            num_shared = tree.add(islice(segments, num_segments))
            num_prompt_tokens += prompt
            num_found += min(num_shared, prompt - 1) // block_size * block_size
    return num_found / num_prompt_tokens if num_prompt_tokens else float("nan")


class _PrefixTree:
    """The beginnings of all requests so far: an edge is a whole segment, a node what comes to the same up to there."""

    def __init__(self) -> None:
        self._behind: dict[tuple[int, int, int], int] = {}  # (node, content, num_tokens): the node behind this segment
        self._longest: dict[tuple[int, int], int] = {}  # (node, content): the most tokens that any request had of it there

    def add(self, segments: Iterable[tuple[int, int]]) -> int:
        """Adds one request and returns how many of its first tokens an earlier one has begun with."""
        node, num_shared = 0, 0
        for content, num_tokens in segments:
            longest = self._longest.get((node, content), 0)
            num_shared += min(longest, num_tokens)  # behind a node that is new, nothing is known: the sum ends by itself
            self._longest[node, content] = max(longest, num_tokens)
            node = self._behind.setdefault((node, content, num_tokens), len(self._behind) + 1)
        return num_shared
