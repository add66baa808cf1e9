"""The naive engine's prefix cache by examples worked out by hand."""

from typing import Any

from tests.property.naive_cache import Pool
from tests.property.naive_engine import Request, Scheduler, Settings, by_step

CHAIN = ["a", "ab", "abc"]  # keys of three blocks in a row


def settings(**options: Any) -> Settings:
    large = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 1000,
        "block_size": 16,
        "num_usable_blocks": 100,
        "max_model_len": 1000,
    }
    return Settings(**{**large, "enable_prefix_caching": True, **options})


def a_conversation(position: int) -> int:
    return position


def served(scheduler: Scheduler, *requests: Request) -> None:
    """Serves one after the other to its end."""
    for request in requests:
        scheduler.add(request)
        while not request.is_finished:
            scheduler.deliver(scheduler.schedule(0), 0)


def test_what_a_request_leaves_is_taken_from_its_end_and_unregistered_blocks_before_all_others() -> None:
    pool = Pool(6)
    blocks = pool.take([], 4)
    assert (blocks, pool.free) == ([1, 2, 3, 4], [5, 6])
    pool.register(blocks, CHAIN)
    pool.release(blocks)
    assert pool.free == [4, 5, 6, 3, 2, 1]
    assert pool.take([], 4) == [4, 5, 6, 3]  # whose content, abc, is gone
    assert pool.hits(CHAIN) == [1, 2]


def test_a_hit_leaves_the_queue_and_goes_to_its_back_again() -> None:
    pool = Pool(3)
    for key in "xyz":  # of three requests, of one block each
        blocks = pool.take([], 1)
        pool.register(blocks, [key])
        pool.release(blocks)
    assert pool.free == [1, 2, 3]
    hits = pool.hits("x")
    assert pool.num_needed(hits, 2) == 2  # the hit itself is one of the three free ones
    assert pool.take(hits, 2) == [1, 2]
    pool.release([1, 2])
    assert pool.free == [2, 3, 1]  # 2 has lost its content: y
    assert [pool.hits(key) for key in "xyz"] == [[1], [], [3]]


def test_a_block_that_two_hold_is_free_when_both_let_go_of_it() -> None:
    pool = Pool(2)
    first = pool.take([], 1)
    pool.register(first, ["a"])
    second = pool.take(pool.hits(["a"]), 1)
    assert (first, second, pool.free) == ([1], [1], [2])
    assert pool.num_needed(pool.hits(["a"]), 2) == 1  # held by somebody: costs nothing
    pool.release(first)
    assert pool.free == [2]
    pool.release(second)
    assert pool.free == [2, 1]


def test_of_equal_blocks_the_oldest_is_hit_until_it_is_gone() -> None:
    pool = Pool(2)
    first, second = pool.take([], 1), pool.take([], 1)
    pool.register(first, ["a"])
    pool.register(second, ["a"])
    assert pool.hits(["a"]) == first
    pool.forget(1)
    assert pool.hits(["a"]) == second


def test_a_hole_ends_a_hit() -> None:
    pool = Pool(3)
    pool.register(pool.take([], 3), CHAIN)
    assert pool.hits(CHAIN) == [1, 2, 3]
    pool.forget(1)
    assert pool.hits(CHAIN) == []


def test_a_block_that_was_lost_and_computed_again_is_held_once() -> None:
    pool = Pool(4)
    blocks = pool.take([], 3)
    pool.register(blocks, CHAIN)
    pool.release(blocks)
    others = pool.take([], 2)
    assert others == [4, 3]  # and abc is gone
    hits = pool.hits(CHAIN)
    assert (hits, pool.num_needed(hits, 3), len(pool.free)) == ([1, 2], 3, 2)  # does not fit
    pool.release(others)
    again = pool.take(hits, 3)
    assert again == [1, 2, 3]  # 3 was freed last: the tail of the others goes to the front first
    assert sum(pool.num_holders.values()) == 3 == pool.num_usable_blocks - len(pool.free)
    pool.release(again)
    assert sorted(pool.free) == [1, 2, 3, 4]
    assert set(pool.num_holders.values()) == {0}


def test_a_request_that_is_tried_six_times_looks_up_its_prompt_once() -> None:
    scheduler = Scheduler(settings(num_usable_blocks=10))
    scheduler.add(Request("holds the cache", num_prompt_tokens=100, num_output_tokens=6))
    scheduler.add(Request("waits", num_prompt_tokens=100, num_output_tokens=1))
    rows = [[row.request.name for row in deliver(scheduler)] for _ in range(7)]
    assert rows == [["holds the cache"]] * 6 + [["waits"]]
    assert (scheduler.prefix_cache_queries, scheduler.prefix_cache_hits) == (200, 0)


def deliver(scheduler: Scheduler) -> list[Any]:
    step = scheduler.schedule(0)
    scheduler.deliver(step, 0)
    return step.rows


def test_a_prompt_that_is_all_cached_computes_its_last_block() -> None:
    scheduler = Scheduler(settings())
    first, second = (Request(name, 64, 1, tokens=a_conversation) for name in ("first", "second"))
    served(scheduler, first, second)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 48)
    assert (scheduler.prefix_cache_queries, scheduler.prefix_cache_hits) == (128, 48)


def test_a_later_turn_computes_what_is_new() -> None:
    """Turns of 200, 250 and 310 tokens of one conversation: 12 and 15 full blocks of 16 are there."""
    turns = [Request(f"turn {length}", length, 1, tokens=a_conversation) for length in (200, 250, 310)]
    served(Scheduler(settings()), *turns)
    assert [turn.num_cached_tokens for turn in turns] == [0, 192, 240]


def test_an_answer_is_cached_up_to_the_token_before_its_last() -> None:
    """60 prompt tokens and 5 of an answer: 64 have KV, as the last one is never fed to the model."""
    for num_output_tokens, cached in ((4, 48), (5, 64)):
        first = Request("first", 60, num_output_tokens, tokens=a_conversation)
        second = Request("second", 80, 1, tokens=a_conversation)
        served(Scheduler(settings()), first, second)
        assert second.num_cached_tokens == cached


def test_one_adapters_blocks_are_no_hit_for_another() -> None:
    first, second, third = (Request(f"{i}", 64, 1, tokens=a_conversation, lora=lora) for i, lora in enumerate((1, 2, 1)))
    served(Scheduler(settings(max_loras=1)), first, second, third)
    assert [request.num_cached_tokens for request in (first, second, third)] == [0, 0, 48]


def test_two_in_one_step_share_what_neither_has_computed_yet() -> None:
    requests = [(0, Request(name, 64, 1, tokens=a_conversation)) for name in ("first", "second")]
    steps = list(by_step(settings(), requests))
    assert steps[0]["reqs"] == [["first", 64, 0, 64], ["second", 16, 48, 64]]


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    """Blocks of 2, five of them; A holds 2 and B 3 when A needs a third and B, the last, has to go.

    B has 4 tokens with KV and its fifth known. It comes back when A is through: of its blocks A took the last and next to it.
    """
    a = Request("A", num_prompt_tokens=3, num_output_tokens=4)
    b = Request("B", num_prompt_tokens=3, num_output_tokens=4)
    steps = list(by_step(settings(block_size=2, num_usable_blocks=5, scheduler_reserve_full_isl=False), [(0, a), (0, b)]))
    assert [step["reqs"] for step in steps] == [
        [["A", 3, 0, 3], ["B", 3, 0, 3]],  # 2 blocks each
        [["A", 1, 3, 3], ["B", 1, 3, 3]],  # which are full now
        [["A", 1, 4, 3]],  # takes the last free one; B needs one as well, and is the last
        [["A", 1, 5, 3]],
        [["B", 1, 4, 3]],
        [["B", 1, 5, 3]],
    ]
    assert steps[2]["preempted"] == ["B"]
    assert steps[4]["cached"] == {"B": 4}


def test_as_in_vllm_a_victim_of_its_own_step_leaves_blocks_that_nobody_computed() -> None:
    """A defect of vLLM 0.32.0 (block registration in `allocate_slots`, victims of `schedule` under 'priority'), kept as it is.

    In step 2 A is given tokens 8 to 11, which registers their blocks, and then has to go for B. It comes back to a hit of 10
    tokens, two of which no step has computed. vLLM's own scheduler does the same steps with this workload.
    """
    a = Request("A", num_prompt_tokens=12, num_output_tokens=1, priority=1)
    b = Request("B", num_prompt_tokens=4, num_output_tokens=2, priority=0, grammar_ready_at=1)
    options = {"scheduling_policy": "priority", "long_prefill_token_threshold": 4, "block_size": 2, "num_usable_blocks": 8}
    steps = list(by_step(settings(**options), [(0, a), (0, b)]))
    assert [step["reqs"] for step in steps] == [
        [["A", 4, 0, 12]],
        [["A", 4, 4, 12], ["B", 4, 0, 4]],
        [["B", 1, 4, 4]],
        [["A", 2, 10, 12]],
    ]
    assert steps[2]["preempted"] == ["A"]
