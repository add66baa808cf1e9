"""What traffic offers to a prefix cache, against a token-by-token count."""

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.records import ARRIVAL, SEGMENT
from traces import reuse
from traces.reuse import ideal_hit_rate
from traces.segments import Segments
from traces.traffic import TrafficStream

Requests = list[tuple[int, list[tuple[int, int]]]]
"""Prompt tokens and segments of each."""


def stream(requests: Requests, chunk_rows: int = 1000) -> TrafficStream:
    rows = np.zeros(len(requests), ARRIVAL)
    rows["num_prompt_tokens"] = [prompt for prompt, _ in requests]
    rows["num_segments"] = [len(segments) for _, segments in requests]
    rows["num_output_tokens"] = 1
    held = Segments()
    flat = [segment for _, segments in requests for segment in segments]
    rows["first_segment"] = held.add(np.array(flat, SEGMENT), rows["num_segments"])
    chunks = [rows[first : first + chunk_rows] for first in range(0, len(rows), chunk_rows)]
    return TrafficStream(iter(chunks), Counter(), held)


def by_tokens(requests: Requests, block_size: int) -> float:
    """The same, with every token written out and every pair of requests compared."""
    earlier: list[list[Any]] = []
    found = 0
    for number, (prompt, segments) in enumerate(requests):
        tokens: list[Any] = [(content, i) for content, num_tokens in segments for i in range(num_tokens)]
        tokens += [("own", number, i) for i in range(100)]
        shared = 0
        for other in earlier:
            departs = [i for i, (one, another) in enumerate(zip(tokens, other, strict=False)) if one != another]
            shared = max(shared, min([len(tokens), len(other), *departs]))
        found += min(shared, prompt - 1) // block_size * block_size
        earlier.append(tokens)
    return found / sum(prompt for prompt, _ in requests)


SEGMENTS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6)), max_size=4)


@given(st.lists(st.tuples(st.integers(1, 20), SEGMENTS), min_size=1, max_size=12), st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=200)
def test_ideal_hit_rate_is_that_of_comparing_all_tokens(requests: Requests, block_size: int, chunk_rows: int) -> None:
    for piece_segments in (1, 3, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reuse, "_PIECE_SEGMENTS", piece_segments)
            rate = ideal_hit_rate(stream(requests, chunk_rows), block_size)
        assert rate == pytest.approx(by_tokens(requests, block_size), abs=1e-12)


def test_last_token_is_never_found() -> None:
    same: Requests = [(64, [(1, 64)])] * 2
    assert ideal_hit_rate(stream(same), 16) == 48 / 128
    assert ideal_hit_rate(stream(same)) == 63 / 128


def test_nothing_is_found_behind_a_hole() -> None:
    assert ideal_hit_rate(stream([(30, [(1, 10), (2, 10), (3, 10)]), (30, [(9, 10), (2, 10), (3, 10)])])) == 0


def test_traffic_that_shares_nothing_or_is_empty() -> None:
    assert ideal_hit_rate(stream([(10, []), (10, [])])) == 0
    assert np.isnan(ideal_hit_rate(TrafficStream(iter([]), Counter())))


def test_contents_that_agree_in_32_bits_are_different() -> None:
    for one, other in ((1, 1 + 2**32), (0, -(2**63)), (-1, 2**63 - 1)):
        assert ideal_hit_rate(stream([(10, [(one, 10)]), (10, [(other, 10)])])) == 0


# Many sessions


def sessions(numbers: Any, num_rows: int = 1024) -> TrafficStream:
    """One request of 100 prompt tokens for each session number, without holding them all."""
    held = Segments()

    def chunks() -> Iterator[Any]:
        for first in range(0, len(numbers), num_rows):
            own = np.array([(number, 110) for number in numbers[first : first + num_rows]], SEGMENT)
            rows = np.zeros(len(own), ARRIVAL)
            rows["num_prompt_tokens"], rows["num_output_tokens"], rows["num_segments"] = 100, 10, 1
            rows["first_segment"] = held.add(own, rows["num_segments"])
            held.forget_before(int(rows["first_segment"][0]))
            yield rows

    return TrafficStream(chunks(), Counter(), held)


def test_memory_does_not_grow_with_the_sessions_of_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "MOST_PLACES", 1 << 13)
    monkeypatch.setattr(reuse, "_PIECE_SEGMENTS", 1 << 10)
    peaks = []
    for num_sessions in (16_000, 64_000):
        stream = sessions(range(num_sessions))
        tracemalloc.start()
        assert ideal_hit_rate(stream) == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_a_place_takes_tens_of_bytes_and_not_hundreds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "_PIECE_SEGMENTS", 1 << 12)
    stream = sessions(range(100_000))
    tracemalloc.start()
    ideal_hit_rate(stream)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000 * 80  # a tree of dictionaries took 300 bytes a session


def test_what_was_met_lately_is_remembered_and_what_was_not_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "MOST_PLACES", 4)
    monkeypatch.setattr(reuse, "_PIECE_SEGMENTS", 1)  # so that each request is a piece
    assert ideal_hit_rate(sessions([1, 2, 3, 4, 1, 5, 1])) == 2 * 99 / 700  # five places, of which 2 goes
    assert ideal_hit_rate(sessions([1, 2, 3, 4, 5, 1])) == 0
    assert ideal_hit_rate(sessions([1, 2, 3, 4, 5, 2])) == 99 / 600
    assert ideal_hit_rate(sessions([1, 2, 3, 4] * 3)) == 8 * 99 / 1200  # no more than are remembered: exact
