"""What traffic offers to a prefix cache, against a token-by-token count."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.records import ARRIVAL, SEGMENT
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
@settings(max_examples=200, deadline=None)
def test_ideal_hit_rate_is_that_of_comparing_all_tokens(requests: Requests, block_size: int, chunk_rows: int) -> None:
    rate = ideal_hit_rate(stream(requests, chunk_rows), block_size)
    assert rate == pytest.approx(by_tokens(requests, block_size), abs=1e-12)


def test_e14_last_token_is_never_found() -> None:
    same: Requests = [(64, [(1, 64)])] * 2
    assert ideal_hit_rate(stream(same), 16) == 48 / 128
    assert ideal_hit_rate(stream(same)) == 63 / 128


def test_e12_nothing_is_found_behind_a_hole() -> None:
    assert ideal_hit_rate(stream([(30, [(1, 10), (2, 10), (3, 10)]), (30, [(9, 10), (2, 10), (3, 10)])])) == 0


def test_traffic_that_shares_nothing_or_is_empty() -> None:
    assert ideal_hit_rate(stream([(10, []), (10, [])])) == 0
    assert np.isnan(ideal_hit_rate(TrafficStream(iter([]), Counter())))
