"""How much of the prompts a prefix cache could find at best: what the traffic offers, whatever the fleet makes of it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.arrays import Integers, Mask
from traces.traffic import Arrivals, TrafficStream

MOST_PLACES = 1 << 20
"""Places that are remembered, of some 50 bytes each while they are sorted. No fleet's caches remember as many conversations."""

_PIECE_SEGMENTS = 1 << 17
"""Segments looked up at a time."""

Keys = NDArray[np.uint64]


def ideal_hit_rate(stream: TrafficStream, block_size: int = 1) -> float:
    """Returns the share of prompt tokens that one endless cache would find, if each request ended before the next came.

    No fleet finds more in its caches: a router spreads the requests, caches are finite, and requests overlap. A request
    finds the whole blocks of its prompt up to the first token where it departs from all before it, and never its last
    token, which an engine computes in any case. Recomputing after a preemption is not counted.

    Exact as long as the requests' segments begin at no more than `MOST_PLACES` different places, a place being what leads up
    to it and the content that follows (two of them are taken for one once in 2**64 pairs). Beyond that the places not met for
    longest are forgotten, as by a cache that holds no more, and the share is what such a cache would find. So memory is
    bounded, and time grows with the segments.

    Uses up the stream.

    Args:
        stream: of any traffic, from the beginning.
        block_size: tokens that are found together or not at all.

    Returns:
        From 0 to below 1; NaN without requests.
    """
    places = _Places()
    num_prompt_tokens, num_found = 0, 0
    for chunk in stream.chunks():
        for rows in _pieces(chunk):
            num_shared = places.add(stream.segments_of(rows), rows["num_segments"])
            prompt = rows["num_prompt_tokens"]
            num_prompt_tokens += int(prompt.sum())
            num_found += int((np.minimum(num_shared, prompt - 1) // block_size * block_size).sum())
    return num_found / num_prompt_tokens if num_prompt_tokens else float("nan")


def _pieces(rows: Arrivals) -> Iterator[Arrivals]:
    """Cuts rows where they reach a piece's number of segments."""
    piece = np.cumsum(rows["num_segments"]) // _PIECE_SEGMENTS
    yield from np.split(rows, np.flatnonzero(np.diff(piece)) + 1)


class _Places:
    """Where the segments of all requests so far began, and how far any went on from there; sorted by key."""

    def __init__(self) -> None:
        self._keys = np.empty(0, np.uint64)
        self._longest = np.empty(0, np.int64)  # the most tokens that any request had of the content there
        self._met_in = np.empty(0, np.int32)  # the latest piece that came by
        self._piece = 0

    def add(self, segments: NDArray[Any], num_segments: Integers) -> Integers:
        """Adds requests, one after the other, and returns how many of its first tokens an earlier one has begun with, (n,).

        A place behind one that is new is new: what a request shares ends by itself.
        """
        self._piece += 1
        keys, tokens = _places_of(segments, num_segments), segments["num_tokens"]
        order = np.argsort(keys, kind="stable")
        keys, tokens = keys[order], tokens[order]
        is_first = np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)]
        first, group = np.flatnonzero(is_first), np.cumsum(is_first) - 1
        at, is_known = self._find(keys[first])
        known = np.zeros(len(first), np.int64)
        known[is_known] = self._longest[at[is_known]]
        before = _most_before(tokens, group, first, known)
        last = np.append(first[1:], len(keys))[: len(first)] - 1
        self._remember(keys[first], at, is_known, np.maximum(before[last], tokens[last]))
        shared = np.empty_like(tokens)
        shared[order] = np.minimum(before, tokens)
        so_far = np.concatenate([[0], np.cumsum(shared)])
        ends = np.cumsum(num_segments)
        return np.asarray(so_far[ends] - so_far[ends - num_segments])

    def _find(self, keys: Keys) -> tuple[Integers, Mask]:
        """Where each place is, or would be, and whether it is known."""
        at = np.searchsorted(self._keys, keys)
        is_known = at < len(self._keys)
        is_known[is_known] = self._keys[at[is_known]] == keys[is_known]
        return at, is_known

    def _remember(self, keys: Keys, at: Integers, is_known: Mask, longest: Integers) -> None:
        """Takes in sorted places without repetition; of too many, forgets those of the pieces that lie furthest back."""
        self._longest[at[is_known]], self._met_in[at[is_known]] = longest[is_known], self._piece
        is_new, new = ~is_known, at[~is_known]
        self._keys = np.insert(self._keys, new, keys[is_new])
        self._longest = np.insert(self._longest, new, longest[is_new])
        self._met_in = np.insert(self._met_in, new, self._piece)
        if len(self._keys) > MOST_PLACES:
            met_since = np.cumsum(np.bincount(self._met_in)[::-1])[::-1]  # [i]: places met in piece i or later
            oldest = min(self._piece, int(np.count_nonzero(met_since > MOST_PLACES)))
            stays = self._met_in >= oldest
            self._keys, self._longest, self._met_in = self._keys[stays], self._longest[stays], self._met_in[stays]


def _most_before(tokens: Integers, group: Integers, first: Integers, known: Integers) -> Integers:
    """The most tokens of the same group before each, or what was known of the group before its first.

    >>> _most_before(np.array([3, 5, 4, 9]), np.array([0, 0, 0, 1]), np.array([0, 3]), np.array([4, 0])).tolist()
    [4, 4, 5, 0]
    """
    previous = np.roll(tokens, 1)
    previous[first] = known
    above = group << 32  # lifts each group over the one before, so that one running maximum serves all
    return np.asarray(np.maximum.accumulate(previous + above) - above)


def _places_of(segments: NDArray[Any], num_segments: Integers) -> Keys:
    """A key for where each segment begins: all that its request has up to there, and the content that it goes on with."""
    keys = np.empty(len(segments), np.uint64)
    content, tokens = segments["content"].view(np.uint64), segments["num_tokens"].view(np.uint64)
    starts = np.cumsum(num_segments) - num_segments
    row, behind = np.arange(len(num_segments)), np.zeros(len(num_segments), np.uint64)
    for level in range(int(num_segments.max(initial=0))):
        goes_on = num_segments[row] > level
        row, behind = row[goes_on], behind[goes_on]
        at = starts[row] + level
        keys[at] = _mixed(behind ^ _mixed(content[at]))
        behind = _mixed(keys[at] + tokens[at])
    return keys


def _mixed(number: Keys) -> Keys:
    """A bijection of 64-bit numbers that looks random.

    Source: splitmix64, Steele, Lea and Flood (2014), Fast splittable pseudorandom number generators.
    """
    number = number + np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(number ^ (number >> np.uint64(31)))
