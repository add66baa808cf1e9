"""The store of segments: what rows point to, in their order, forgotten once they are handed out."""

from typing import Any

import numpy as np
import pytest

from sim.records import ARRIVAL, SEGMENT
from traces.segments import Content, Segments, for_copies, hash_64, named


def segments(*pairs: tuple[int, int]) -> Any:
    return np.array(list(pairs), SEGMENT)


def rows(first: list[int], num: list[int]) -> Any:
    made = np.zeros(len(first), ARRIVAL)
    made["first_segment"], made["num_segments"] = first, num
    return made


def store() -> Segments:
    """Four rows of 2, 0, 1 and 3 segments, added in two pieces."""
    held = Segments()
    assert held.add(segments((1, 10), (2, 20)), np.array([2, 0])).tolist() == [0, 2]
    assert held.add(segments((3, 30), (4, 40), (5, 50), (6, 60)), np.array([1, 3])).tolist() == [2, 3]
    return held


def test_rows_get_their_segments_in_their_own_order_however_often_they_come() -> None:
    held = store()
    assert held.of(rows([0, 2, 2, 3], [2, 0, 1, 3]))["content"].tolist() == [1, 2, 3, 4, 5, 6]
    assert held.of(rows([3, 3, 0], [3, 3, 2]))["content"].tolist() == [4, 5, 6, 4, 5, 6, 1, 2]
    assert held.of(rows([2], [0])).dtype == SEGMENT
    assert len(held.of(rows([], []))) == 0


def test_what_lies_before_is_forgotten_and_asking_for_it_is_an_error() -> None:
    held = store()
    held.forget_before(2)
    assert held.num_held() == 4
    assert held.of(rows([2, 3], [1, 3]))["num_tokens"].tolist() == [30, 40, 50, 60]
    with pytest.raises(LookupError, match="until the next chunk is taken"):
        held.of(rows([0, 2], [2, 1]))
    assert len(held.of(rows([0], [0]))) == 0  # a row without segments asks for nothing


def test_forgetting_part_of_a_piece_lets_go_of_it_with_the_next_ones() -> None:
    held = Segments()
    for i in range(1000):
        first = held.add(segments((i, 1), (-i, 1), (0, 1)), np.array([1, 2]))
        assert held.of(rows(first.tolist(), [1, 2]))["content"].tolist() == [i, -i, 0]
        held.forget_before(int(first[1]))
        assert held.num_held() <= 5


def test_traffic_without_content_has_no_segments() -> None:
    none = Segments().of(rows([0, 0], [0, 0]))
    assert (none.dtype, len(none)) == (SEGMENT, 0)


def test_ids_keep_64_bits() -> None:
    edges = np.array([0, 1, 4294967297, 2**62 + 1, -1, -(2**63), 2**63 - 1])
    for kind in ("hash_id", "prefix", "session"):
        assert len(set(named(kind, edges).tolist())) == len(edges)


def test_ids_of_different_kinds_do_not_meet() -> None:
    counted = np.arange(100_000)
    names = [named(kind, counted) for kind in ("hash_id", "prefix", "session")]
    assert len(np.unique(np.concatenate(names))) == 300_000


def test_hash_is_the_same_in_every_process() -> None:
    assert hash_64("prefix") == -5702906995733251710


def test_copies_have_what_is_personal_anew_and_the_rest_in_common() -> None:
    content = Content(
        segments((7, 100), (8, 50), (8, 60)),
        np.array([2, 0, 1]),
        np.array([False, True, True]),
        np.zeros(3, np.bool_),
        np.zeros(3, np.bool_),
        lambda i: "",
    )
    three = for_copies(content, 3)
    assert three["num_tokens"].tolist() == [100, 50] * 3 + [60] * 3
    assert three["content"][[0, 2, 4]].tolist() == [7, 7, 7]
    own, first, second = three["content"][[1, 3, 5]].tolist()
    assert own == 8
    assert len({own, first, second}) == 3
    assert three["content"][6:].tolist() == [own, first, second]  # the copies share among themselves what the originals do
    assert content.segments["content"].tolist() == [7, 8, 8]
