"""What requests ask for is written with the request that asked for it, however chunks and row groups cut the run."""

import pytest

from experiments.results.asked import Asked
from traces import KINDS

LENGTHS = {"prompt": {"kind": "uniform", "low": 1, "high": 900}, "output": {"kind": "uniform", "low": 1, "high": 500}}
PREFIXES = {"num": 7, "tokens": {"kind": "uniform", "low": 1, "high": 600}, "share": 0.5}


@pytest.mark.parametrize("chunk_rows", [1, 7, 1000])
@pytest.mark.parametrize("group_rows", [1, 10, 300])
@pytest.mark.parametrize("num_on_their_way", [0, 20])
def test_each_request_gets_what_it_asked_for(chunk_rows: int, group_rows: int, num_on_their_way: int) -> None:
    traffic = KINDS["concurrent"](limit=300, lengths=LENGTHS, prefixes=PREFIXES)
    stream = traffic.stream(1, chunk_rows=300)
    (rows,) = stream.chunks()
    segments = stream.segments_of(rows).tolist()
    expected = [(int(row["num_output_tokens"]), [segments.pop(0) for _ in range(row["num_segments"])]) for row in rows]

    asked = Asked(traffic)
    num_waiting, found = 0, []
    for chunk in asked.noting(traffic.stream(1, chunk_rows)):
        num_waiting += len(chunk)
        while num_waiting >= group_rows + num_on_their_way:
            num_waiting -= group_rows
            columns = asked.take(group_rows)
            pairs = zip(columns["segment_ids"].to_pylist(), columns["segment_tokens"].to_pylist(), strict=True)
            shared = [list(zip(ids, tokens, strict=True)) for ids, tokens in pairs]
            found += list(zip(columns["num_asked_tokens"].tolist(), shared, strict=True))
    assert found == expected[: len(found)]
    assert len(found) > 300 - group_rows - num_on_their_way


def test_traffic_that_shares_nothing_has_no_columns_of_it() -> None:
    asked = Asked(KINDS["concurrent"](limit=3, lengths=LENGTHS))
    assert [column.name for column in asked.columns] == ["num_asked_tokens"]
    for _ in asked.noting(KINDS["concurrent"](limit=3, lengths=LENGTHS).stream(1)):
        assert list(asked.take(3)) == ["num_asked_tokens"]
    assert not any(queue._pieces for queue in asked._queues)  # nothing is kept that nobody takes


def test_traffic_with_a_limit_ends_with_its_last_request() -> None:
    settings = {"rate_per_s": 1.0, "duration_s": 60.0, "lengths": LENGTHS}
    assert Asked(KINDS["poisson"](**settings)).facts()["ends_at_s"] == 60.0
    assert Asked(KINDS["poisson"](**settings, limit=5)).facts()["ends_at_s"] is None
