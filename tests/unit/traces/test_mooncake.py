"""Mooncake's traces: hash ids, and what becomes of them on the way from the file to the requests."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import TraceError
from tests.shared import shared
from traces import KINDS, Traffic, TrafficStream, files
from traces.reuse import ideal_hit_rate
from traces.segments import named

Row = tuple[int, int, int, Any]
"""timestamp, input_length, output_length, hash_ids"""


def make(**settings: Any) -> Traffic:
    return KINDS["mooncake"](**settings)


def lines(rows: list[Row]) -> bytes:
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    return b"".join(json.dumps(dict(zip(keys, row, strict=True))).encode() + b"\n" for row in rows)


def mooncake(folder: Path, *rows: Row, **settings: Any) -> Traffic:
    (folder / "mooncake.jsonl").write_bytes(lines(list(rows)))
    return make(path=str(folder / "mooncake.jsonl"), **settings)


def taken(stream: TrafficStream) -> list[tuple[Any, list[tuple[int, int]]]]:
    """Every arrival with its own segments."""
    pairs = []
    for rows in stream.chunks():
        segments = stream.segments_of(rows).tolist()
        ends = np.cumsum(rows["num_segments"])
        assert len(segments) == (ends[-1] if len(ends) else 0)
        pairs += [(row, segments[end - row["num_segments"] : end]) for row, end in zip(rows, ends, strict=True)]
    return pairs


def segments(traffic: Traffic, chunk_rows: int = 1000) -> list[list[tuple[int, int]]]:
    return [own for _, own in taken(traffic.stream(1, chunk_rows))]


def block(number: int) -> int:
    return int(named("hash_id", np.array([number]))[0])


# The published files


@pytest.mark.parametrize(
    ("name", "num_rows", "span_s", "longest_prompt", "of_tokens", "of_blocks"),
    [("conversation", 12_031, 3_536.999, 126_195, 0.3736, 0.37), ("synthetic", 3_993, 1_022.025, 191_378, 0.6512, 0.64)],
)
def test_published_traces_come_whole_and_offer_what_is_known_of_them(
    name: str, num_rows: int, span_s: float, longest_prompt: int, of_tokens: float, of_blocks: float
) -> None:
    path = shared(f"data/traces/mooncake/{name}_trace.jsonl")
    trace = make(path=str(path))
    stream = trace.stream(1)
    pairs = taken(stream)
    assert stream.counts == {"read": num_rows, "kept": num_rows}
    assert trace.ends_at_s == span_s
    assert max(int(row["num_prompt_tokens"]) for row, _ in pairs) == longest_prompt
    assert all(sum(tokens for _, tokens in own) == row["num_prompt_tokens"] for row, own in pairs)

    # The published share is one of blocks; long prompts, of which more is shared, weigh more by tokens.
    seen: set[int] = set()
    num_blocks, num_hits, hit_tokens = 0, 0, 0
    for line in path.read_text().splitlines():
        row = json.loads(line)
        unseen = next((i for i, one in enumerate(row["hash_ids"]) if one not in seen), len(row["hash_ids"]))
        num_blocks, num_hits = num_blocks + len(row["hash_ids"]), num_hits + unseen
        hit_tokens += min(512 * unseen, row["input_length"] - 1)
        seen.update(row["hash_ids"])
    assert num_hits / num_blocks == pytest.approx(of_blocks, abs=0.005)
    prompt_tokens = sum(int(row["num_prompt_tokens"]) for row, _ in pairs)
    assert ideal_hit_rate(trace.stream(1)) == pytest.approx(hit_tokens / prompt_tokens, abs=1e-12)
    assert hit_tokens / prompt_tokens == pytest.approx(of_tokens, abs=5e-5)
    assert ideal_hit_rate(trace.stream(1), block_size=16) == pytest.approx(of_tokens, abs=0.001)


# Hash ids and prompts


def test_each_id_is_a_block_and_the_last_one_as_long_as_the_rest(tmp_path: Path) -> None:
    trace = mooncake(tmp_path, (0, 1100, 5, [7, 8, 9]), (0, 512, 5, [7]), (3000, 1, 5, [10]))
    assert segments(trace) == [[(block(7), 512), (block(8), 512), (block(9), 76)], [(block(7), 512)], [(block(10), 1)]]
    assert [row["arrived_at_s"] for row, _ in taken(trace.stream(1))] == [0.0, 0.0, 3.0]
    assert segments(mooncake(tmp_path, (0, 20, 5, [1, 2, 3]), trace_block_tokens=8)) == [
        [(block(1), 8), (block(2), 8), (block(3), 4)]
    ]


def test_ids_that_agree_in_32_bits_are_different_blocks(tmp_path: Path) -> None:
    for one, other in ((1, 4294967297), (0, 2**63), (2**64 - 1, 2**63 - 1), (2**63 + 1, 1)):
        trace = mooncake(tmp_path, (0, 500, 1, [one]), (0, 500, 1, [other]), (0, 500, 1, [one]))
        first, second, third = segments(trace)
        assert first == third != second
        assert ideal_hit_rate(trace.stream(1)) == 499 / 1500


def test_hash_ids_that_do_not_fit_the_prompt_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"mooncake.jsonl: row 2: hash_ids holds 2; a prompt of 20 tokens.*expects 1 id\."):
        segments(mooncake(tmp_path, (0, 20, 5, [0]), (0, 20, 5, [0, 1])))
    with pytest.raises(TraceError, match=r"row 1: hash_ids holds 1; .*512 to a block .*expects 2 ids\."):
        segments(mooncake(tmp_path, (0, 513, 5, [0])))
    with pytest.raises(TraceError, match=r"row 1: hash_ids holds 0; .*expects 1 id\."):
        segments(mooncake(tmp_path, (0, 20, 5, [])))


def test_rows_that_do_not_fit_are_dropped_or_keep_what_fits(tmp_path: Path) -> None:
    rows: list[Row] = [(0, 20, 1, [0, 1]), (0, 1100, 2, [0, 5]), (0, 30, 3, [0]), (0, 0, 4, [0])]
    dropping = mooncake(tmp_path, *rows, bad_rows="drop").stream(1)
    assert [row["num_output_tokens"] for row, _ in taken(dropping)] == [3]
    assert dropping.counts == {"read": 4, "kept": 1, "dropped_inconsistent": 2, "dropped_zero_tokens": 1}
    clipping = mooncake(tmp_path, *rows, bad_rows="clip").stream(1)
    assert [own for _, own in taken(clipping)] == [
        [(block(0), 20)],
        [(block(0), 512), (block(5), 512)],
        [(block(0), 30)],
        [(block(0), 1)],
    ]
    assert clipping.counts == {"read": 4, "kept": 4, "clipped_inconsistent": 2, "clipped_zero_tokens": 1}


@pytest.mark.parametrize("cell", [None, "x", 7, [1.5], [True], [None], ["1", 1.5], [2**64], {"0": 1}])
def test_hash_ids_that_are_no_list_of_whole_numbers_are_unreadable(tmp_path: Path, cell: Any) -> None:
    with pytest.raises(TraceError, match=r"row 2: hash_ids is .*; allowed: a list of 64-bit whole numbers or texts"):
        segments(mooncake(tmp_path, (0, 20, 5, [0]), (0, 20, 5, cell)))
    stream = mooncake(tmp_path, (0, 20, 5, [0]), (0, 20, 5, cell), (0, 20, 5, [0]), bad_rows="drop").stream(1)
    assert [own for _, own in taken(stream)] == [[(block(0), 20)]] * 2
    assert stream.counts == {"read": 3, "kept": 2, "dropped_unreadable": 1}


# Files


@pytest.mark.parametrize("line", ["{", "[1, 2]", "17", '{"timestamp": 0', "\x00\x01", "[" * 100_000])
def test_line_that_is_no_json_object_is_malformed(tmp_path: Path, line: str) -> None:
    good = lines([(0, 20, 5, [0])])
    (tmp_path / "x.jsonl").write_bytes(good + line.encode() + b"\n\n" + good)
    with pytest.raises(TraceError, match=r"x.jsonl: row 2: no JSON object: "):
        segments(make(path=str(tmp_path / "x.jsonl")))
    stream = make(path=str(tmp_path / "x.jsonl"), bad_rows="drop").stream(1)
    assert len(taken(stream)) == 2
    assert stream.counts == {"read": 3, "kept": 2, "dropped_malformed": 1}  # an empty line is no row


@pytest.mark.parametrize("cell", [None, "soon", [1], {"s": 1}, 1e30])
def test_numbers_that_are_none_are_unreadable(tmp_path: Path, cell: Any) -> None:
    good = (0, 20, 5, [0])
    for row in ((cell, 20, 5, [0]), (0, cell, 5, [0]), (0, 20, cell, [0])):
        with pytest.raises(TraceError, match=r"row 2: .* is .*; allowed: (an instant|a whole number)"):
            segments(mooncake(tmp_path, good, row))
        stream = mooncake(tmp_path, good, row, good, bad_rows="drop").stream(1)
        assert len(taken(stream)) == 2
        assert stream.counts == {"read": 3, "kept": 2, "dropped_unreadable": 1}


def test_missing_file_or_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere.jsonl: no such file; .*github.com/kvcache-ai/Mooncake"):
        segments(make(path="nowhere.jsonl"))
    (tmp_path / "x.jsonl").write_text('{"timestamp": 0, "input_length": 3, "output_length": 1, "hashids": [0]}\n')
    with pytest.raises(TraceError, match=r"no column 'hash_ids'; did you mean 'hashids'\?"):
        segments(make(path=str(tmp_path / "x.jsonl")))
    (tmp_path / "x.jsonl").write_text("")
    with pytest.raises(TraceError, match=r"x.jsonl: no request is left"):
        segments(make(path=str(tmp_path / "x.jsonl")))


def test_jsonl_gzip_and_parquet_give_the_same_traffic(tmp_path: Path) -> None:
    rows: list[Row] = [(0, 1000, 5, [1, 2]), (250, 1000, 6, [1, 2**40])]
    plain = mooncake(tmp_path, *rows)
    (tmp_path / "m.jsonl.gz").write_bytes(b"\xef\xbb\xbf" + lines(rows))  # a byte order mark, as some editors leave
    (tmp_path / "m.jsonl.gz").write_bytes(gzip.compress((tmp_path / "m.jsonl.gz").read_bytes()))
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    pq.write_table(pa.table(dict(zip(keys, map(list, zip(*rows, strict=True)), strict=True))), tmp_path / "m.parquet")
    for name in ("m.jsonl.gz", "m.parquet"):
        other = make(path=str(tmp_path / name))
        assert segments(other) == segments(plain)
        assert taken(other.stream(1))[1][0] == taken(plain.stream(1))[1][0]


# On the way to the requests

IDS = st.integers(0, 6)
TRACE = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 40), st.lists(IDS, min_size=5, max_size=5)), min_size=1, max_size=40
)


@given(
    TRACE,
    st.sampled_from([0.4, 1.0, 2.0, 2.5]),
    st.sampled_from(["new", "same"]),
    st.booleans(),
    st.sampled_from(["drop", "clip"]),
    st.sampled_from([None, 0.004]),
    st.sampled_from([1, 3, 1000]),
    st.sampled_from([200, 1 << 20]),
)
@settings(max_examples=150)
def test_every_request_has_the_blocks_of_its_own_row(
    tmp_path_factory: pytest.TempPathFactory,
    trace: list[tuple[int, int, list[int]]],
    scale: float,
    copies: str,
    sort: bool,
    policy: str,
    end_s: float | None,
    chunk_rows: int,
    block_bytes: int,
) -> None:
    """Through dropping, sorting, windows, repeating and cutting; a row is told by its output length."""
    rows: list[Row] = [(t, n, i + 1, ids[: -(-n // 8)]) for i, (t, n, ids) in enumerate(trace)]
    settings: dict[str, Any] = {"rate_scale": scale, "copies": copies, "sort_rows": sort, "bad_rows": policy}
    traffic = mooncake(tmp_path_factory.mktemp("m"), *rows, trace_block_tokens=8, end_s=end_s, **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK_BYTES", block_bytes)
        pairs = taken(traffic.stream(1, chunk_rows))
    assert pairs == taken(traffic.stream(1))
    copy_of: dict[int, int] = {}
    for row, own in pairs:
        number = int(row["num_output_tokens"])
        copy = copy_of[number] = copy_of.get(number, -1) + 1
        _, num_tokens, _, ids = rows[number - 1]
        assert [tokens for _, tokens in own] == [min(8, num_tokens - 8 * i) for i in range(len(ids))]
        if copy == 0 or copies == "same":
            assert [content for content, _ in own] == [block(one) for one in ids]
        else:
            assert not {content for content, _ in own} & {block(one) for one in range(7)}


def test_store_forgets_what_was_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 8 << 10)
    rows: list[Row] = [(i, 5120, 1, list(range(10 * i, 10 * i + 10))) for i in range(5000)]
    for extra in ({}, {"rate_scale": 3.0}, {"start_s": 4.0}, {"end_s": 1.0}, {"limit": 4000}):
        stream = mooncake(tmp_path, *rows, **extra).stream(1, chunk_rows=64)
        most = 0
        for chunk in stream.chunks():
            assert len(stream.segments_of(chunk)) == 10 * len(chunk)
            most = max(most, stream.segments.num_held())
        assert most < 50_000 * 0.2, extra
        assert stream.segments.num_held() < 50_000 * 0.2, extra


def test_memory_is_flat_in_the_length_of_the_file(tmp_path: Path) -> None:
    peaks = []
    for num_rows in (2_000, 12_000):
        rows: list[Row] = [(i, 51_200, 1, list(range(100 * i, 100 * i + 100))) for i in range(num_rows)]
        stream = mooncake(tmp_path, *rows).stream(1, chunk_rows=512)
        peaks.append(max(stream.segments.num_held() for _ in stream.chunks()))
    assert peaks[1] < 1.5 * peaks[0]


def test_segments_of_an_earlier_chunk_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = mooncake(tmp_path, *((i, 10, 1, [i]) for i in range(4))).stream(1, chunk_rows=2)
    first, _ = stream.chunks()
    with pytest.raises(LookupError):
        stream.segments_of(first)


# Copies


def conversation(num_turns: int) -> list[Row]:
    return [(1000 * i, 512 * (i + 1), 1, list(range(i + 1))) for i in range(num_turns)]


def test_copies_ask_something_new_and_leave_the_hit_rate_as_it_is(tmp_path: Path) -> None:
    once = ideal_hit_rate(mooncake(tmp_path, *conversation(20)).stream(1))
    assert once == pytest.approx(1 - 20 / 210)
    for scale in (2.0, 5.0):
        assert ideal_hit_rate(mooncake(tmp_path, *conversation(20), rate_scale=scale).stream(1)) == once


def test_copies_that_ask_the_same_find_all_but_the_last_token(tmp_path: Path) -> None:
    trace = mooncake(tmp_path, *conversation(20), rate_scale=3.0, copies="same")
    own = segments(trace)
    assert own[0] == own[1] == own[2]
    found = 190 + 2 * 210 - 2 * 20 / 512
    assert ideal_hit_rate(trace.stream(1)) == pytest.approx(found / 630)


def test_copies_of_two_requests_share_what_the_two_share(tmp_path: Path) -> None:
    own = segments(mooncake(tmp_path, *conversation(3), rate_scale=2.0))
    originals, copies = own[0::2], own[1::2]
    for half in (originals, copies):
        assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(half))
    assert not {one for each in originals for one in each} & {one for each in copies for one in each}


def test_copies_change_nothing_but_content(tmp_path: Path) -> None:
    rows = [
        [row.tolist()[:4] for row, _ in taken(mooncake(tmp_path, *conversation(50), rate_scale=2.5, copies=copies).stream(1))]
        for copies in ("new", "same")
    ]
    assert rows[0] == rows[1]


# Traces of the same form by others


def test_ids_that_are_text_are_ids_too(tmp_path: Path) -> None:
    rows: list[Row] = [(0, 1000, 5, ["00a0", "00a1"]), (0, 1000, 5, ["00a0", "ff"]), (0, 20, 5, ["17"]), (0, 20, 5, [17])]
    trace = mooncake(tmp_path, *rows)
    (first, one), (again, two), (text,), (number,) = segments(trace)
    assert first == again
    assert one[0] != two[0]
    assert text == number


def test_mixed_ids_in_one_list_are_read_one_by_one(tmp_path: Path) -> None:
    trace = mooncake(tmp_path, (0, 1000, 5, [1, "a"]), (0, 1000, 5, ["1", "a"]))
    assert segments(trace)[0] == segments(trace)[1]


def test_seconds_with_fractions_are_not_played_in_a_thousandth_of_their_time(tmp_path: Path) -> None:
    rows: list[Row] = [(0.136, 20, 5, [0]), (1.374, 20, 5, [0]), (7200.5, 20, 5, [0])]  # type: ignore[list-item]
    guessed = mooncake(tmp_path, *rows)
    assert [row["arrived_at_s"] for row, _ in taken(guessed.stream(1))] == pytest.approx([0.0, 1.238, 7200.364])
    assert guessed.notes == ["timestamps are read as s, because the first have fractions; time_unit states it"]
    stated = mooncake(tmp_path, *rows, time_unit="ms")
    assert stated.ends_at_s == pytest.approx(7.200364)
    assert stated.notes == []


def test_whole_timestamps_are_milliseconds_unless_stated_and_the_guess_is_said(tmp_path: Path) -> None:
    rows: list[Row] = [(0, 20, 5, [0]), (3000, 20, 5, [0])]
    assert mooncake(tmp_path, *rows).ends_at_s == 3.0
    assert mooncake(tmp_path, *rows).notes[0].startswith("timestamps are read as ms, because the first are whole")
    assert mooncake(tmp_path, *rows, time_unit="s").ends_at_s == 3000.0


def test_ids_of_smaller_blocks_are_told_the_size_that_fits(tmp_path: Path) -> None:
    row = (0, 587, 38, list(range(37)))
    with pytest.raises(TraceError, match=r"hash_ids holds 37; a prompt of 587 tokens, 512 to a block \(.*; 16 would fit\)"):
        segments(mooncake(tmp_path, row))
    assert len(segments(mooncake(tmp_path, row, trace_block_tokens=16))[0]) == 37


@pytest.mark.parametrize("ids", [["x" * 17] * 5000, list(range(20_000)), ["y" * 80_000, None]])
def test_a_long_row_does_not_fill_the_screen_with_its_error(tmp_path: Path, ids: Any) -> None:
    for row in ((0, 20, 5, {"ids": ids}), (str(ids), 20, 5, [0]), (0, 20, 5, [*ids, None])):
        with pytest.raises(TraceError, match=r"row 1: (hash_ids|timestamp) is ") as refused:
            segments(mooncake(tmp_path, row))  # type: ignore[arg-type]
        assert len(str(refused.value)) < 400 + len(str(tmp_path))
