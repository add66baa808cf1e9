"""What a prefix cache finds, and what it must not: by hand, on one replica with blocks of 16 tokens.

Where time matters, a computed token costs 10 ms and nothing else does: what is found shows as time saved.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from experiments.contracts.fleets import Ran, Script, arrivals, classes, run
from experiments.contracts.fleets import engine as engine_of
from sim.metrics import ttft_s
from tests import caches

TOKENS: dict[str, Any] = {"overhead_s": 0.0, "flops_per_token": 1.0, "flops_per_s": 100.0}
SECOND: dict[str, Any] = {"overhead_s": 1.0}
Segments = Sequence[tuple[int, int]]


def engine(**fields: Any) -> Any:
    """(1,) ENGINE with prefix caching, of a moderate size."""
    small = {"max_num_seqs": 8, "max_num_batched_tokens": 2500, "num_usable_blocks": 200, "max_model_len": 2500}
    return engine_of(**{"enable_prefix_caching": 1, **small, **fields})


def one_by_one(*prompts: tuple[int, Segments], output: int = 1, classes_of: Sequence[int] = (), **options: Any) -> Ran:
    """Serves prompts of (tokens, segments), each when the one before is long done."""
    kinds = classes_of or [0] * len(prompts)
    rows = [(100.0 * i, num_tokens, output, kinds[i]) for i, (num_tokens, _) in enumerate(prompts)]
    adapters = classes((0, 0, 0, 0.0), (0, 1, 0, 0.0), (0, 2, 0, 0.0))
    return run(arrivals(rows), engine(**TOKENS | options), classes=adapters, segments=[segments for _, segments in prompts])


def cached(ran: Ran) -> list[int]:
    return [int(num_tokens) for num_tokens in ran.requests.num_cached_tokens]


# What is found


def test_a_prompt_that_is_all_cached_computes_its_last_block() -> None:
    """64 tokens, four blocks: three are found and 16 tokens computed, because the last token's logits are needed."""
    ran = one_by_one((64, [(1, 64)]), (64, [(1, 64)]), (65, [(1, 65)]))
    assert cached(ran) == [0, 48, 64]
    assert ttft_s(ran.requests).tolist() == pytest.approx([0.64, 0.16, 0.01])


def test_later_turns_compute_only_what_is_new() -> None:
    """200 tokens and an answer of 20, 50 more and 30, 60 more: all but the answers' last tokens have KV, in whole blocks.

    219 tokens are 13 full blocks, 299 are 18.
    """
    rows = arrivals([(0.0, 200, 20), (100.0, 270, 30), (200.0, 360, 10)])
    ran = run(rows, engine(**TOKENS), segments=[[(9, 220)], [(9, 300)], [(9, 370)]])
    assert cached(ran) == [0, 208, 288]
    assert ttft_s(ran.requests).tolist() == pytest.approx([2.0, 0.62, 0.72])


@pytest.mark.parametrize("async_scheduling", [0, 1])
@pytest.mark.parametrize(("num_output_tokens", "found"), [(4, 48), (5, 64)])
def test_an_answer_is_cached_up_to_the_token_before_its_last(num_output_tokens: int, found: int, async_scheduling: int) -> None:
    """60 prompt tokens and 4 or 5 of an answer: 63 or 64 have KV, as the last one is never fed to the model."""
    rows = arrivals([(0.0, 60, num_output_tokens), (100.0, 80, 1)])
    caching = engine(async_scheduling=async_scheduling)
    assert cached(run(rows, caching, segments=[[(9, 80)], [(9, 80)]])) == [0, found]


def test_two_in_one_step_share_what_neither_has_computed_yet() -> None:
    """As in vLLM, a block can be hit from when it is scheduled: 64 tokens for the first, 16 for the second, in one step."""
    ran = run(arrivals([(0.0, 64, 1)] * 2), engine(**TOKENS), segments=[[(1, 64)]] * 2)
    assert cached(ran) == [0, 48]
    assert ttft_s(ran.requests).tolist() == pytest.approx([0.8, 0.8])


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    """Five blocks of 2 tokens. Both requests fill two in step 1; in step 2 A takes the fifth and B, the last, has to go.

    B has 4 tokens with KV and its fifth known. It comes back when A is through: one token is computed, not five.
    """
    finished_s = []
    for enable_prefix_caching in (0, 1):
        tight = engine(
            enable_prefix_caching=enable_prefix_caching,
            block_size=2,
            num_usable_blocks=5,
            scheduler_reserve_full_isl=0,
            **TOKENS,
        )
        ran = run(arrivals([(0.0, 3, 4), (0.0, 3, 4)]), tight)
        assert ran.requests.num_preemptions.tolist() == [0, 1]
        assert cached(ran) == [0, 0]  # at first admission, which is what is counted
        finished_s.append(ran.requests.finished_at_s.tolist())
    assert finished_s == [
        pytest.approx([0.10, 0.16]),  # 6 + 2 + 1 + 1 tokens, then 5 + 1
        pytest.approx([0.10, 0.12]),
    ]


# Content

LONG = 512  # tokens in a block of Mooncake's trace: 32 of ours


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        pytest.param([(1, LONG), (2, LONG)], [(1, LONG), (2, LONG), (3, LONG)], 1024, id="two of three hash ids"),
        pytest.param([(1, LONG), (2, 300)], [(1, LONG), (2, LONG), (3, LONG)], 800, id="a last hash id of 300 tokens"),
        pytest.param([(1, LONG), (2, LONG)], [(1, LONG), (3, LONG), (2, LONG)], 512, id="a hole stops the hit"),
        pytest.param([(1, LONG), (2, LONG)], [(2, LONG), (1, LONG)], 0, id="same blocks in another order"),
        pytest.param([(1, LONG), (1, LONG)], [(1, LONG), (1, LONG), (2, 9)], 1024, id="a hash id twice"),
        pytest.param([(1, 2 * LONG)], [(1, LONG), (1, LONG)], 512, id="twice the beginning is not all"),
        pytest.param([(5, 100), (8, 400)], [(5, 100), (9, 400)], 96, id="system prompt before different sessions"),
        pytest.param([(5, 100), (8, 400)], [(5, 100), (8, 450)], 496, id="system prompt and the same session"),
        pytest.param([(5, 100), (8, 400)], [(5, 99), (8, 401)], 96, id="a token less of the system prompt"),
        pytest.param([(5, 10), (6, 3), (7, 19)], [(5, 10), (6, 3), (7, 19), (8, 20)], 32, id="many segments in a block"),
        pytest.param([(5, 10), (6, 3), (7, 19)], [(5, 10), (6, 4), (7, 19), (8, 20)], 0, id="one of them a token longer"),
        pytest.param([(5, 20)], [(5, 20)], 16, id="behind its segments each is alone"),
        pytest.param([], [], 0, id="nothing in common"),
    ],
)
def test_content_is_found_in_whole_blocks_up_to_the_first_difference(first: Segments, second: Segments, found: int) -> None:
    """Prompts of 2,000 tokens; what no segment covers is a request's own."""
    ran = one_by_one((2000, first), (2000, second))
    assert cached(ran) == [0, found]
    assert ttft_s(ran.requests)[1] == pytest.approx((2000 - found) * 0.01)


@pytest.mark.parametrize("block_size", [1, 16, 48, 512, 2048])
def test_blocks_of_any_size_are_found_whole(block_size: int) -> None:
    """1,000 shared tokens of 2,100: as many whole blocks as fit in them."""
    ran = one_by_one((2100, [(1, 1000)]), (2100, [(1, 1000)]), block_size=block_size, num_usable_blocks=2100 // block_size + 2)
    assert cached(ran) == [0, 1000 // block_size * block_size]


@pytest.mark.parametrize(
    ("one", "other"), [(1, 4294967297), (0, 1 << 32), (5, -5), (-1, (1 << 63) - 1), (1 << 62, (1 << 62) + 1)]
)
def test_contents_keep_their_64_bits(one: int, other: int) -> None:
    assert cached(one_by_one((64, [(one, 64)]), (64, [(other, 64)]), (64, [(one, 64)]))) == [0, 0, 48]


def test_one_adapters_blocks_are_no_hit_for_another() -> None:
    """An adapter changes every token's KV: the same prompt with adapter 1, 2, none, and each of them again."""
    prompt = (64, [(1, 64)])
    ran = one_by_one(*[prompt] * 6, classes_of=[1, 2, 0, 1, 2, 0], max_loras=1)
    assert cached(ran) == [0, 0, 0, 48, 48, 48]


# Counting


def test_a_blocked_head_that_is_tried_again_and_again_is_counted_once() -> None:
    """Ten blocks. The first leaves four for the third to find; the second holds the other six from 2 s to 8 s.

    The third needs its four and three more, is tried in every step from 3 s on, and counts its 64 tokens when it starts.
    """
    rows = arrivals([(0.0, 64, 1), (2.0, 80, 6), (2.5, 100, 1)])
    tight = engine(num_usable_blocks=10, **SECOND)
    ran = run(rows, tight, segments=[[(1, 64)], [(2, 80)], [(1, 100)]])
    assert ran.requests.scheduled_at_s.tolist() == [0.0, 2.0, 8.0]
    assert cached(ran) == [0, 0, 64]


def test_hits_that_nobody_holds_take_room() -> None:
    """Free blocks that can be hit count as needed: six blocks, of which the second holds two and the third would hit four.

    It needs a fifth and waits until the second is done, though four of its five are there.
    """
    rows = arrivals([(0.0, 64, 1), (2.0, 20, 3), (2.5, 70, 1)])
    tight = engine(num_usable_blocks=6, **SECOND)
    ran = run(rows, tight, segments=[[(1, 64)], [(2, 20)], [(1, 70)]])
    assert ran.requests.scheduled_at_s.tolist() == [0.0, 2.0, 5.0]
    assert cached(ran) == [0, 0, 64]


def test_a_hole_ends_a_hit() -> None:
    """Blocks 1, 2, 3 are there. Without the third two are found; without the first none, though the second is there."""
    fleet = caches.empty_cache(10)
    for _ in range(2):
        fleet = caches.with_request(fleet, 49, [(1, 49)])
    caches.begin(fleet, 0, caches.look_up_hits(fleet, 0))
    caches.grow(fleet, 0, 0, 3)
    caches.register(fleet, 0, 48)
    assert caches.look_up_hits(fleet, 1) == 3
    held = fleet.tables[0, fleet.sequences[0].row, :3].tolist()
    for b, num_hits in ((held[2], 2), (held[0], 0)):
        caches.forget(fleet, b)
        assert caches.look_up_hits(fleet, 1) == num_hits


def test_what_was_evicted_and_computed_again_is_held_once() -> None:
    """Four blocks: 48 tokens fill three, others take the fourth and the last of the three. 49 tokens then find two.

    Recounted every 0.1 s (invariant 4). While each runs, what it holds is used, and nothing when none does.
    """
    rows = arrivals([(0.0, 48, 1), (2.0, 32, 1), (4.0, 49, 1), (6.0, 49, 1)])
    tight = engine(num_usable_blocks=4, **SECOND)
    ran = run(rows, tight, segments=[[(1, 48)], [(2, 32)], [(1, 49)], [(1, 49)]], timeline_interval_s=0.1)
    assert cached(ran) == [0, 0, 32, 48]
    used = {round(row["end_s"], 1): row["kv_cache_usage"] for row in ran.intervals}
    assert [used[at_s] for at_s in (0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5)] == [0.75, 0.0, 0.5, 0.0, 1.0, 0.0, 1.0]
    assert ran.plane.fleet.blocks.num_holders.sum() == 0
    assert ran.plane.fleet.loads.num_free_blocks[0] == 4


def test_blocks_that_several_hold_are_used_once() -> None:
    """Eight prompts of the same 64 tokens at once, 100 blocks: three shared and one each; from the 65th token on two each."""
    sharing = engine(num_usable_blocks=100, **SECOND)
    ran = run(arrivals([(0.0, 64, 3)] * 8), sharing, segments=[[(1, 64)]] * 8, timeline_interval_s=0.5)
    used = [row["kv_cache_usage"] for row in ran.intervals]
    assert used == pytest.approx([0.11] * 2 + [0.19] * 4)  # an interval ends before the step that ends then
    assert ran.plane.fleet.loads.num_free_blocks[0] == 100


def test_the_least_recently_used_content_goes_first_and_its_end_before_its_beginning() -> None:
    """Eight blocks hold two prompts of 64 tokens; the first is asked for again; a third prompt of 33 takes three blocks.

    They are the last three of the second prompt, which was used least recently: its first block is still found, and all of
    the first prompt.
    """
    prompts = [(64, [(content, 64)]) for content in (1, 2, 1)] + [(33, [(3, 33)])]
    ran = one_by_one(*prompts, (65, [(1, 65)]), num_usable_blocks=8)
    assert cached(ran) == [0, 0, 48, 0, 64]
    ran = one_by_one(*prompts, (65, [(2, 65)]), num_usable_blocks=8)
    assert cached(ran) == [0, 0, 48, 0, 16]


# Whose cache


def test_the_same_prompts_find_themselves_on_a_warm_replica_but_not_on_a_new_machine() -> None:
    """The first machine goes at 10 s; the second comes at 20 s, in the same slot, and begins with an empty cache."""
    ran = run(
        arrivals([(at_s, 64, 1) for at_s in (0.0, 5.0, 25.0, 28.0)]),
        engine(),
        segments=[[(1, 64)]] * 4,
        autoscaler=Script([1, 0, 1]),
        max_replicas=1,
        interval_s=10.0,
        stages=lambda: [],
    )
    assert ran.requests.machine.tolist() == [0, 0, 1, 1]
    assert cached(ran) == [0, 48, 0, 48]


def test_a_second_run_starts_with_an_empty_cache() -> None:
    rows, segments = arrivals([(1.0 * i, 64, 5) for i in range(5)]), [[(1, 64)]] * 5
    runs = [run(rows, engine(), segments=segments) for _ in range(2)]
    assert cached(runs[0]) == [0, 48, 48, 48, 48]
    assert runs[0].requests.tolist() == runs[1].requests.tolist()


def test_each_replica_has_a_cache_of_its_own() -> None:
    """Round robin over two: each computes the prompt once."""
    rows = arrivals([(1.0 * i, 64, 1) for i in range(5)])
    ran = run(rows, engine(), segments=[[(1, 64)]] * 5, replicas=2, router="round_robin")
    assert len(set(ran.requests.machine[:2])) == 2
    assert cached(ran) == [0, 0, 48, 48, 48]


def test_a_request_that_moves_to_another_machine_finds_nothing_there() -> None:
    """A budget of 40: two steps until both have their first token at 2 s, the second with 48 tokens of the first's.

    Its machine goes at 15 s, when 13 of its 30 tokens are delivered. The next one, at 20 s, computes all 64 + 13 in two steps;
    one would do if it had kept a cache. What was found at the first admission stays what is counted.
    """
    ran = run(
        arrivals([(0.0, 64, 1), (0.0, 64, 30)]),
        engine(max_num_batched_tokens=40, **SECOND),
        segments=[[(1, 64)]] * 2,
        max_replicas=2,
        autoscaler=Script([1, 0, 1]),
        interval_s=10.0,
        stages=lambda: [],
        drain_timeout_s=5.0,
    )
    assert cached(ran) == [0, 48]
    assert ran.requests.num_generated_tokens.tolist() == [1, 30]
    assert ran.requests.first_token_at_s.tolist() == [2.0, 2.0]
    assert ran.requests.finished_at_s.tolist() == [2.0, 22.0 + 16]
