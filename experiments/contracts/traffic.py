"""What every kind of traffic must keep."""

import pickle
from typing import Any

import numpy as np

from experiments.contracts.checks import undescribed
from sim.records import ARRIVAL, SEGMENT
from traces import Traffic


class TrafficContract:
    """Subclass it and set `traffic`: one with its settings, of some thousand requests."""

    traffic: Traffic

    def test_arrivals_are_sorted_whole_and_within_the_known_end(self) -> None:
        """From 0 s on, each with a token at least to read and one to write, of a class that it has."""
        rows = arrivals(self.traffic)
        assert rows.dtype == ARRIVAL
        assert len(rows) > 500, f"{len(rows)} requests are too few to tell"
        assert (np.diff(rows["arrived_at_s"]) >= 0).all(), "arrivals are not in order"
        assert rows["arrived_at_s"][0] >= 0, f"the first comes at {rows['arrived_at_s'][0]:g} s"
        last_s, ends_at_s = rows["arrived_at_s"][-1], self.traffic.ends_at_s
        assert last_s <= ends_at_s, f"the last comes at {last_s:g} s, after the end at {ends_at_s:g}"
        assert rows["num_prompt_tokens"].min() >= 1, "a prompt has no token"
        assert rows["num_output_tokens"].min() >= 1, "an answer has no token"
        assert set(rows["class_id"]) <= set(range(len(self.traffic.class_names))), "a class has no name"

    def test_same_seed_same_bytes_however_it_is_cut(self) -> None:
        """Chunks are for memory; they change nothing."""
        whole = arrivals(self.traffic).tobytes()
        for chunk_rows in (3, 1000):
            assert arrivals(self.traffic, chunk_rows=chunk_rows).tobytes() == whole, f"chunks of {chunk_rows} rows differ"

    def test_segments_are_within_their_rows_and_the_same_however_it_is_cut(self) -> None:
        """What requests share is a part of their prompts and answers."""
        whole = segments(self.traffic)
        assert whole.dtype == SEGMENT
        assert (whole["num_tokens"] >= 1).all(), "a segment has no token"
        rows = arrivals(self.traffic)
        row = np.repeat(np.arange(len(rows)), rows["num_segments"])
        tokens = np.bincount(row, weights=whole["num_tokens"], minlength=len(rows))
        is_within = tokens <= rows["num_prompt_tokens"] + rows["num_output_tokens"]
        assert is_within.all(), "a request has more tokens in its segments than in itself"
        for chunk_rows in (3, 1000):
            assert segments(self.traffic, chunk_rows).tobytes() == whole.tobytes(), f"chunks of {chunk_rows} rows differ"

    def test_where_segments_begin_never_falls(self) -> None:
        """A chunk's segments are one piece."""
        rows = arrivals(self.traffic)
        assert (np.diff(rows["first_segment"]) >= 0).all()
        assert rows["num_segments"].min() >= 0

    def test_only_traffic_that_says_so_shares_tokens(self) -> None:
        """`shares_tokens` turns prefix caches on."""
        rows = arrivals(self.traffic)
        has_content = len(segments(self.traffic)) > 0
        assert has_content == rows["num_segments"].any() == rows["first_segment"].any() == self.traffic.shares_tokens

    def test_chunks_are_no_larger_than_asked_for(self) -> None:
        """Memory is bounded by them."""
        assert max(len(rows) for rows in self.traffic.stream(1, chunk_rows=64).chunks()) <= 64

    def test_every_row_is_accounted_for(self) -> None:
        """What was read is kept or dropped, and counted."""
        stream = self.traffic.stream(3)
        num_rows = sum(len(rows) for rows in stream.chunks())
        counts = stream.counts
        assert counts["kept"] == num_rows
        dropped = sum(num for reason, num in counts.items() if reason.startswith("dropped"))
        assert counts["read"] + counts["copied"] == counts["kept"] + dropped

    def test_limit_takes_the_first_requests(self) -> None:
        """`limit` cuts, and changes nothing before the cut."""
        some = type(self.traffic)(**self.traffic.model_dump() | {"limit": 123})
        np.testing.assert_array_equal(arrivals(some), arrivals(self.traffic)[:123])

    def test_a_pickled_copy_gives_the_same_traffic(self) -> None:
        """Worker processes get copies."""
        copy = pickle.loads(pickle.dumps(self.traffic))
        assert copy == self.traffic
        assert arrivals(copy).tobytes() == arrivals(self.traffic).tobytes()

    def test_known_rate_and_means_are_those_of_the_arrivals(self) -> None:
        """Oracles, capacities and plans go by them. Gaps may be clumped: the number is held to a quarter, means to 5 errors."""
        rows = arrivals(self.traffic, seed=5)
        ends_at_s = self.traffic.ends_at_s or 1.0  # all at once
        expected = self.traffic.mean_rate_per_s(0.0, ends_at_s) * ends_at_s
        assert abs(len(rows) / expected - 1) <= 0.25, f"{len(rows):,} requests, {expected:,.1f} expected"
        means = {"num_prompt_tokens": self.traffic.mean_prompt_tokens, "num_output_tokens": self.traffic.mean_output_tokens}
        for name, mean in means.items():
            allowed = 5 * rows[name].std() / len(rows) ** 0.5 + 1e-9
            assert abs(rows[name].mean() - mean) <= allowed, f"{name}: {rows[name].mean():.6g} on average, {mean:.6g} said"

    def test_known_rate_adds_up_over_windows(self) -> None:
        """Two halves make the whole."""
        half = (self.traffic.ends_at_s or 1.0) / 2  # all at once
        parts = self.traffic.mean_rate_per_s(0, half) + self.traffic.mean_rate_per_s(half, 2 * half)
        assert abs(parts / 2 / self.traffic.mean_rate_per_s(0, 2 * half) - 1) <= 1e-6

    def test_asking_changes_nothing(self) -> None:
        """Describing it, its classes and its rate leave it as it was."""
        before, settings = arrivals(self.traffic).tobytes(), self.traffic.model_dump()
        self.traffic.describe(), self.traffic.class_names, self.traffic.mean_rate_per_s(10.0, 20.0)
        assert self.traffic.model_dump() == settings
        assert arrivals(self.traffic).tobytes() == before

    def test_every_field_is_described(self) -> None:
        """The reference page is made of the descriptions."""
        silent = list(undescribed(self.traffic))
        assert not silent, f"no description of {', '.join(silent)}"


def arrivals(traffic: Traffic, seed: int = 1, chunk_rows: int = 100_000) -> Any:
    """(n,) ARRIVAL: all of a stream."""
    return np.concatenate(list(traffic.stream(seed, chunk_rows).chunks()))


def segments(traffic: Traffic, chunk_rows: int = 100_000) -> Any:
    """(m,) SEGMENT: all of a stream."""
    stream = traffic.stream(1, chunk_rows)
    return np.concatenate([stream.segments_of(rows) for rows in stream.chunks()])
