"""Prefixes and conversations: from the columns of a table, and drawn for generated traffic."""

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from sim.errors import TraceError
from traces import KINDS, Traffic
from traces.ids import ids
from traces.prefixes import Prefixes
from traces.reuse import ideal_hit_rate
from traces.segments import named
from traces.traffic import remarks

COLUMNS = {"arrived_at": "t", "num_prompt_tokens": "in", "num_output_tokens": "out"}
SHARED = COLUMNS | {"prefix_id": "app", "num_prefix_tokens": "app_tokens", "session_id": "user"}


def table(folder: Path, *rows: str, columns: dict[str, str] = SHARED, **settings: Any) -> Traffic:
    (folder / "table.csv").write_text("\n".join(["t,in,out,app,app_tokens,user", *rows]) + "\n")
    return KINDS["table"](path=str(folder / "table.csv"), columns=columns, time_unit="s", **settings)


def segments(traffic: Traffic) -> list[list[tuple[int, int]]]:
    stream = traffic.stream(1)
    own = []
    for rows in stream.chunks():
        parts = np.split(stream.segments_of(rows), np.cumsum(rows["num_segments"])[:-1])
        own += [part.tolist() for part in parts]
    return own


def arrivals(traffic: Traffic, seed: int = 1) -> Any:
    return np.concatenate(list(traffic.stream(seed).chunks()))


def content(kind: str, number: int) -> int:
    return int(named(kind, np.array([number]))[0])


# Columns of a table


def test_prefix_comes_first_and_the_conversation_is_the_rest(tmp_path: Path) -> None:
    rows = ("0,100,10,7,30,9", "1,50,5,7,30,", "2,80,8,,,9", "3,20,2,,,", "4,30,3,8,30,9", "5,40,4,8,0,9")
    prefix, session = content("prefix", 7), content("session", 9)
    assert segments(table(tmp_path, *rows)) == [
        [(prefix, 30), (session, 80)],
        [(prefix, 30)],
        [(session, 88)],
        [],
        [(content("prefix", 8), 30), (session, 3)],
        [(session, 44)],
    ]


def test_columns_may_be_used_one_without_the_other(tmp_path: Path) -> None:
    row = "0,100,10,7,30,9"
    without = [{k: v for k, v in SHARED.items() if k not in left_out} for left_out in (["session_id"], ["prefix_id"])]
    assert segments(table(tmp_path, row, columns=without[0])) == [[(content("prefix", 7), 30)]]
    with pytest.raises(ValidationError, match="prefix_id and num_prefix_tokens go together"):
        table(tmp_path, row, columns=without[1])
    assert segments(table(tmp_path, row, columns=COLUMNS | {"session_id": "user"})) == [[(content("session", 9), 110)]]
    assert segments(table(tmp_path, row, columns=COLUMNS)) == [[]]


def test_later_turns_find_all_of_the_earlier_ones(tmp_path: Path) -> None:
    # 200 tokens and an answer of 20; 50 more and an answer of 30; 60 more. Another conversation finds nothing.
    turns = table(tmp_path, "0,200,20,,,1", "1,270,30,,,1", "2,360,10,,,1", "3,200,20,,,2")
    assert ideal_hit_rate(turns.stream(1)) == (0 + 220 + 300 + 0) / (200 + 270 + 360 + 200)
    assert ideal_hit_rate(turns.stream(1), 16) == (208 + 288) / 1030


def test_prefix_is_shared_across_conversations(tmp_path: Path) -> None:
    assert ideal_hit_rate(table(tmp_path, "0,200,20,a,150,1", "1,200,20,a,150,2", "2,200,20,b,150,1").stream(1)) == 150 / 600


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "4294967297"), ("9223372036854775807", "-9223372036854775807"), ("7", "007"), ("a", "b"), ("1", "1.0"), ("x", "x ")],
)
def test_different_ids_stay_different_and_equal_ones_equal(tmp_path: Path, one: str, other: str) -> None:
    rows = [f"{i},10,5,{cell},4,{cell}" for i, cell in enumerate([one, other, one])]
    first, second, third = segments(table(tmp_path, *rows))
    assert first == third
    assert not {name for name, _ in first} & {name for name, _ in second}


def test_id_is_the_same_whatever_stands_around_it_and_however_it_is_stored(tmp_path: Path) -> None:
    alone, _ = ids(pa.array(["17", "4294967297", None]))
    among_text, _ = ids(pa.array(["17", "4294967297", "conversation-17"]))
    as_numbers, is_there = ids(pa.array([17, 4294967297, None], pa.int64()))
    assert list(alone[:2]) == list(among_text[:2]) == list(as_numbers[:2]) == [17, 4294967297]
    assert list(is_there) == [True, True, False]
    assert list(ids(pa.array([2**64 - 1, 5], pa.uint64()))[0]) == list(ids(pa.array([str(2**64 - 1), "5"]))[0]) == [-1, 5]
    text = int.from_bytes(hashlib.blake2b(b"conversation-17", digest_size=8).digest(), "little", signed=True)
    assert among_text[2] == text  # not Python's hash(), which differs from process to process


@pytest.mark.parametrize("column", [[b"\xff", None], [[1, 2], None], [{"a": 1}, None], [1.5, None], [True, None], [None, None]])
def test_any_cells_can_be_ids(column: list[Any]) -> None:
    _, is_there = ids(pa.array(column))
    assert list(is_there) == [cell is not None for cell in column]
    assert list(ids(pa.array(["", "a"]))[1]) == [False, True]


def test_csv_and_parquet_share_the_same(tmp_path: Path) -> None:
    csv = table(tmp_path, "0,100,10,a,30,17", "1,100,10,b,30,", "2,100,10,,,4294967297")
    path = tmp_path / "t.parquet"
    columns = {"app": ["a", "b", None], "app_tokens": [30, 30, None], "user": [17, None, 4294967297]}
    pq.write_table(pa.table({"t": [0, 1, 2], "in": [100] * 3, "out": [10] * 3} | columns), path)
    assert segments(KINDS["table"](path=str(path), columns=SHARED, time_unit="s")) == segments(csv)


BAD = [
    ("1,100,10,7,101,", "inconsistent", "app_tokens is 101; allowed: 0 to 100, the prompt's tokens", [("prefix", 7, 100)]),
    ("1,100,10,7,-1,", "inconsistent", "app_tokens is -1; allowed: 0 to 100, the prompt's tokens", []),
    ("1,100,10,7,,", "unreadable", "app_tokens is None; allowed: a whole number", None),
    ("1,100,10,7,x,", "unreadable", "app_tokens is 'x'; allowed: a whole number", None),
]


@pytest.mark.parametrize(("row", "reason", "message", "clipped"), BAD)
def test_prefix_that_does_not_fit_is_a_bad_row(tmp_path: Path, row: str, reason: str, message: str, clipped: Any) -> None:
    rows = ("0,100,10,,,", row, "2,100,10,,,")
    with pytest.raises(TraceError, match=rf"table.csv: row 2: {message}\. bad_rows: error"):
        segments(table(tmp_path, *rows))
    dropping = table(tmp_path, *rows, bad_rows="drop").stream(1)
    assert sum(len(chunk) for chunk in dropping.chunks()) == 2
    assert dropping.counts == {"read": 3, "kept": 2, f"dropped_{reason}": 1}
    if clipped is not None:
        expected = [(content(kind, number), num_tokens) for kind, number, num_tokens in clipped]
        assert segments(table(tmp_path, *rows, bad_rows="clip")) == [[], expected, []]


def test_prefix_may_be_the_whole_prompt(tmp_path: Path) -> None:
    assert segments(table(tmp_path, "0,100,10,7,100,9")) == [[(content("prefix", 7), 100), (content("session", 9), 10)]]


def test_length_of_no_prefix_does_not_matter(tmp_path: Path) -> None:
    assert segments(table(tmp_path, "0,100,10,,999,")) == [[]]


def test_copies_are_other_conversations_with_the_same_system_prompt(tmp_path: Path) -> None:
    prefix = (content("prefix", 7), 30)
    new = segments(table(tmp_path, "0,100,10,7,30,9", "9,150,10,7,30,9", rate_scale=2.0))
    assert [own[0] for own in new] == [prefix] * 4
    assert [own[1][1] for own in new] == [80, 80, 130, 130]
    original, copy, later, later_copy = (own[1][0] for own in new)
    assert original == later == content("session", 9)
    assert copy == later_copy != original
    same = segments(table(tmp_path, "0,100,10,7,30,9", "9,150,10,7,30,9", rate_scale=2.0, copies="same"))
    assert same[0] == same[1] == [prefix, (content("session", 9), 80)]


# Generated traffic

LENGTHS = {
    "prompt": {"kind": "uniform", "low": 1, "high": 999},
    "output": {"kind": "exponential", "mean": 20.0},
    "correlation": 0.5,
}
GENERATED: dict[str, dict[str, Any]] = {
    "poisson": {"rate_per_s": 20.0, "duration_s": 500.0},
    "gamma": {"rate_per_s": 20.0, "cv": 3.0, "duration_s": 500.0},
    "constant": {"rate_per_s": 20.0, "duration_s": 500.0},
    "diurnal": {"peak_per_s": 20.0, "trough_per_s": 20.0, "noise": 0.2, "duration_s": 500.0},
}
PREFIXES = {"num": 20, "tokens": {"kind": "uniform", "low": 100, "high": 500}, "share": 0.7}


def generated(kind: str = "poisson", prefixes: dict[str, Any] | None = PREFIXES, **settings: Any) -> Traffic:
    return KINDS[kind](**GENERATED[kind] | {"lengths": LENGTHS, "prefixes": prefixes} | settings)


@pytest.mark.parametrize("kind", GENERATED)
def test_prefixes_move_neither_arrivals_nor_lengths(kind: str) -> None:
    plain, with_prefixes = arrivals(generated(kind, None)), arrivals(generated(kind))
    for field in ("arrived_at_s", "num_prompt_tokens", "num_output_tokens", "class_id"):
        assert plain[field].tobytes() == with_prefixes[field].tobytes()
    assert not plain["num_segments"].any()
    assert set(with_prefixes["num_segments"].tolist()) == {0, 1}


def test_prefix_has_one_length_and_is_cut_before_the_last_token_of_a_shorter_prompt() -> None:
    traffic = generated()
    lengths = Prefixes(**PREFIXES).lengths(1)
    assert lengths.min() >= 100
    rows = arrivals(traffic)
    names = {content("prefix", i): i for i in range(20)}
    num_cut = 0
    for row, own in zip(rows, segments(traffic), strict=True):
        if own:
            ((name, num_tokens),) = own
            assert num_tokens == min(lengths[names[name]], row["num_prompt_tokens"] - 1)
            num_cut += num_tokens < lengths[names[name]]
    assert num_cut > 100
    assert not rows["num_segments"][rows["num_prompt_tokens"] == 1].any()


@pytest.mark.parametrize(("zipf", "share"), [(0.0, 1.0), (1.0, 0.7), (2.0, 0.3)])
def test_popular_prefixes_are_chosen_as_often_as_zipf_says(zipf: float, share: float) -> None:
    lengths = LENGTHS | {"prompt": {"kind": "fixed", "tokens": 1000}}
    prefixes = {"num": 50, "tokens": 10, "zipf": zipf, "share": share}
    stream = generated(prefixes=prefixes, lengths=lengths, duration_s=2000.0).stream(1)
    chosen = np.concatenate([stream.segments_of(rows) for rows in stream.chunks()])
    num_requests = stream.counts["kept"]
    found = np.array([np.count_nonzero(chosen["content"] == content("prefix", i)) for i in range(50)])
    weights = 1 / np.arange(1, 51) ** zipf
    expected = num_requests * share * weights / weights.sum()
    assert (np.abs(found - expected) <= 4 * expected**0.5 + 1).all()
    assert found.sum() == len(chosen)
    assert len(chosen) == pytest.approx(num_requests * share, abs=4 * (num_requests * share * (1 - share)) ** 0.5)


def test_every_request_begins_with_a_prefix_unless_a_share_is_given() -> None:
    lengths = LENGTHS | {"prompt": {"kind": "fixed", "tokens": 1000}}
    stream = generated(prefixes={"num": 5, "tokens": 10}, lengths=lengths, duration_s=100.0).stream(1)
    assert all(rows["num_segments"].all() for rows in stream.chunks())


def test_share_of_all_and_of_none() -> None:
    lengths = LENGTHS | {"prompt": {"kind": "fixed", "tokens": 1000}}
    for share in (0.0, 1.0):
        rows = arrivals(generated(prefixes={"num": 1000, "tokens": 10, "share": share}, lengths=lengths))
        assert (rows["num_segments"] == share).all()


def test_lengths_of_prefixes_are_those_of_the_law_and_of_the_seed() -> None:
    law = Prefixes(**PREFIXES)
    assert law.lengths(1).tolist() == law.lengths(1).tolist() != law.lengths(2).tolist()
    assert Prefixes(num=3, tokens=70).lengths(1).tolist() == [70, 70, 70]


def test_hit_rate_of_one_common_prefix_is_its_share_of_the_prompts() -> None:
    lengths = LENGTHS | {"prompt": {"kind": "fixed", "tokens": 1000}}
    traffic = generated(prefixes={"num": 1, "tokens": 400}, lengths=lengths)
    num_requests = len(arrivals(traffic))
    assert ideal_hit_rate(traffic.stream(1)) == pytest.approx(0.4 * (1 - 1 / num_requests))


def test_segments_of_a_long_day_do_not_pile_up() -> None:
    stream = generated(duration_s=20_000.0).stream(1, chunk_rows=1000)
    for rows in stream.chunks():
        assert len(stream.segments_of(rows)) == rows["num_segments"].sum()
        assert stream.segments.num_held() <= 1000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num": 0}, "num"),
        ({"tokens": 0}, "tokens"),
        ({"zipf": -1.0}, "zipf"),
        ({"share": 1.1}, "share"),
        ({"shares": 1}, "shares"),
    ],
)
def test_impossible_prefixes_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        generated(prefixes=PREFIXES | settings)


# Prompts that are nothing but prefix


def counts_of(traffic: Traffic) -> dict[str, int]:
    stream = traffic.stream(1)
    for _ in stream.chunks():
        pass
    return dict(stream.counts)


@pytest.mark.parametrize(("prefix", "num_cut"), [(32_000, 10), (40_000, 10), (31_999, 0), (1_000, 0)])
def test_prefixes_that_leave_prompts_no_token_of_their_own_are_counted_and_said(prefix: int, num_cut: int) -> None:
    lengths = {"prompt": {"kind": "fixed", "tokens": 32_000}, "output": {"kind": "fixed", "tokens": 5}}
    traffic = KINDS["concurrent"](limit=10, lengths=lengths, prefixes={"num": 1, "tokens": prefix})
    assert counts_of(traffic).get("prompts_all_prefix", 0) == num_cut
    assert ("prompts are all prefix" in " ".join(traffic.notes)) == (num_cut > 0)
    assert ("10 prompts are all prefix" in " ".join(remarks(Counter(counts_of(traffic))))) == (num_cut > 0)


def test_prefixes_longer_than_some_prompts_are_counted_by_the_prompt() -> None:
    lengths = {"prompt": {"kind": "empirical", "values": [100, 900]}, "output": {"kind": "fixed", "tokens": 5}}
    traffic = KINDS["concurrent"](limit=200, lengths=lengths, prefixes={"num": 1, "tokens": 300, "share": 0.5})
    short = arrivals(traffic)["num_prompt_tokens"] == 100
    has_prefix = arrivals(traffic)["num_segments"] == 1
    assert counts_of(traffic)["prompts_all_prefix"] == (short & has_prefix).sum() > 0
    assert traffic.notes == []


def test_rows_of_a_table_that_are_all_prefix_are_counted(tmp_path: Path) -> None:
    rows = ("0,100,10,7,100,", "1,100,10,7,99,", "2,100,10,,,", "3,100,10,,100,")
    assert counts_of(table(tmp_path, *rows)) == {"read": 4, "kept": 4, "prompts_all_prefix": 1}
