"""What requests' tokens are, without the tokens: segments that rows point to, kept until the rows are handed out."""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.records import SEGMENT
from traces.arrays import Integers, Mask


def hash_64(text: str) -> int:
    """Returns a signed 64-bit hash, the same in every process.

    >>> hash_64("session") == hash_64("session") != hash_64("prefix")
    True
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def named(kind: str, ids: Integers) -> Integers:
    """Returns the `content` of the streams of tokens that have these ids; a 64-bit id keeps all its bits.

    Two ids of one kind never meet. Ids of different kinds meet only if they differ by one certain 64-bit number: never when
    they are counted, and once in 2**64 pairs when they are hashes.

    >>> bool(named("session", np.array([1]))[0] == named("session", np.array([4294967297]))[0])
    False
    """
    return ids ^ hash_64(kind)


class Content(NamedTuple):
    """What n rows of a file say of their tokens: `num_segments` each, one row's after the other."""

    segments: NDArray[Any]  # (s,) SEGMENT, no further than the row's own tokens
    num_segments: Integers  # (n,)
    is_personal: Mask  # (s,): a copy of the request has another in its place
    is_unreadable: Mask  # (n,)
    is_inconsistent: Mask  # (n,): does not fit the row's prompt; the segments are what does
    explain: Callable[[int], str]  # why the i-th row is either of these
    num_all_prefix: int = 0  # rows whose prompt is nothing but what everybody may share


def for_copies(content: Content, times: int) -> NDArray[Any]:
    """Returns each row's segments `times` times over: its own, and then those of its copies.

    The k-th copies of two requests share what the two share; a copy shares with its original what is not personal.
    """
    starts = np.cumsum(content.num_segments) - content.num_segments
    index = _spans(np.repeat(starts, times), np.repeat(content.num_segments, times))
    segments = content.segments[index]
    copy = np.repeat(np.tile(np.arange(times), len(starts)), np.repeat(content.num_segments, times))
    segments["content"] ^= np.where(content.is_personal[index], copy * hash_64("copy"), 0)
    return segments


class Segments:
    """The segments of the rows that are on their way, in the rows' order; memory holds those alone.

    A row says where its own begin (`first_segment`, counted from the first that was ever added) and how many there are.
    Rows may be dropped or repeated on the way. Where they begin never falls from one row to the next, so that what lies
    before a row that is handed out can be forgotten.

    Attributes:
        is_open: whether rows that are read from now on may be handed out, so that their segments must be added.
    """

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self._pieces: list[NDArray[Any]] = []
        self._first = 0  # of what is held
        self._end = 0
        self._forgotten = 0
        self._keeps_all = False

    def add(self, segments: NDArray[Any], num_segments: Integers) -> Integers:
        """Takes in (s,) SEGMENT records, `num_segments` for each of n rows; returns where each row's begin, (n,)."""
        first = self._end + np.cumsum(num_segments) - num_segments
        if len(segments):
            self._pieces.append(segments)
            self._end += len(segments)
        return first

    def of(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Returns the segments of ARRIVAL rows, one row's after the other, as (s,) SEGMENT records.

        Raises:
            LookupError: some of them are forgotten: a later chunk has been taken.
        """
        if self._end == 0:
            return np.empty(0, SEGMENT)
        first, num_segments = rows["first_segment"], rows["num_segments"]
        if (first[num_segments > 0] < self._forgotten).any():
            raise LookupError("the segments of rows are known until the next chunk is taken")
        index = _spans(first, num_segments)
        return self._joined()[index - self._first]

    def forget_before(self, first_segment: int) -> None:
        """Lets go of what lies before the place where a row's segments begin."""
        if self._keeps_all:
            return
        self._forgotten = max(self._forgotten, first_segment)
        while self._pieces and self._first + len(self._pieces[0]) <= self._forgotten:
            self._first += len(self._pieces.pop(0))

    def keep_all(self) -> None:
        """Forgets nothing from now on: the rows are going to be sorted."""
        self._keeps_all = True

    def num_held(self) -> int:
        """Returns how many segments are in memory."""
        return self._end - self._first

    def _joined(self) -> NDArray[Any]:
        """All that is held as one piece; what is forgotten goes when pieces are joined, so that they cannot pile up."""
        if len(self._pieces) > 1:
            num_forgotten = max(0, self._forgotten - self._first)
            self._pieces = [np.concatenate([self._pieces[0][num_forgotten:], *self._pieces[1:]])]
            self._first += num_forgotten
        return self._pieces[0] if self._pieces else np.empty(0, SEGMENT)


def _spans(first: Integers, lengths: Integers) -> Integers:
    """The whole numbers from each `first` on, as many as its length, one after the other.

    >>> _spans(np.array([10, 50]), np.array([3, 2])).tolist()
    [10, 11, 12, 50, 51]
    """
    starts = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) + np.repeat(first - starts, lengths)
