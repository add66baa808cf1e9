"""When the naive engine's tokens come, by hand: every step takes one second."""

from typing import Any

from tests.property.naive_engine import Pipeline, Request, Settings, by_time


def settings(**options: Any) -> Settings:
    large = {"max_num_seqs": 8, "max_num_batched_tokens": 100, "block_size": 4, "num_usable_blocks": 100, "max_model_len": 100}
    return Settings(**{**large, **options})


def busy_s(engine: Settings, *arriving: tuple[float, Request]) -> float:
    return by_time(engine, arriving, Pipeline(lambda features: 1.0))


def test_an_answer_that_ends_of_itself_costs_a_step_more_with_async_scheduling() -> None:
    for async_scheduling, expected_s in ((False, 2.0), (True, 3.0)):
        ends = Request("ends", num_prompt_tokens=4, num_output_tokens=2, max_tokens=10)
        assert busy_s(settings(async_scheduling=async_scheduling), (0.0, ends)) == expected_s
        assert ends.token_at_s == [1.0, 2.0]


def test_an_answer_cut_at_max_tokens_or_max_model_len_costs_no_step_more() -> None:
    for async_scheduling in (False, True):
        at_limit = Request("max_tokens", num_prompt_tokens=4, num_output_tokens=10, max_tokens=2)
        assert busy_s(settings(async_scheduling=async_scheduling), (0.0, at_limit)) == 2.0
        at_length = Request("max_model_len", num_prompt_tokens=4, num_output_tokens=10)
        assert busy_s(settings(async_scheduling=async_scheduling, max_model_len=6), (0.0, at_length)) == 2.0
        assert at_limit.token_at_s == at_length.token_at_s == [1.0, 2.0]


def test_a_long_prefill_leaves_room_only_when_it_is_not_alone() -> None:
    """Threshold 4: 40 tokens are one step for a request alone, and ten when a second one is there from the start."""
    engine = settings(long_prefill_token_threshold=4)
    alone = Request("alone", num_prompt_tokens=40, num_output_tokens=1)
    busy_s(engine, (0.0, alone))
    assert alone.token_at_s == [1.0]
    long = Request("long", num_prompt_tokens=40, num_output_tokens=1)
    short = Request("short", num_prompt_tokens=2, num_output_tokens=20)
    busy_s(engine, (0.0, long), (0.0, short))
    assert long.token_at_s == [10.0]
    assert short.token_at_s == [float(second) for second in range(1, 21)]


def test_a_decode_that_the_drafts_before_it_leave_nothing_waits_a_step() -> None:
    """Budget 4, 3 drafts, none accepted: both prompts of one token fit, then the first takes all until it is through."""
    engine = settings(max_num_batched_tokens=4, num_speculative_tokens=3)
    first = Request("first", num_prompt_tokens=1, num_output_tokens=3)
    second = Request("second", num_prompt_tokens=1, num_output_tokens=3)
    busy_s(engine, (0.0, first), (0.0, second))
    assert first.token_at_s == [1.0, 2.0, 3.0]
    assert second.token_at_s == [1.0, 4.0, 5.0]


def test_accepted_drafts_come_out_together() -> None:
    """Of 3 drafts 2 are accepted: one token, three, and three, of which two fit the answer.

    With async scheduling one more step is planned by then, as all of the drafts might have been rejected.
    """
    for async_scheduling, expected_s in ((False, 3.0), (True, 4.0)):
        request = Request("r", num_prompt_tokens=4, num_output_tokens=6, num_accepted=lambda known: 2)
        engine = settings(num_speculative_tokens=3, async_scheduling=async_scheduling)
        assert busy_s(engine, (0.0, request)) == expected_s
        assert request.token_at_s == [1.0, *[2.0] * 3, *[3.0] * 2]


def test_a_request_without_its_grammar_lets_others_pass_and_an_idle_engine_wakes_for_it() -> None:
    structured = Request("structured", num_prompt_tokens=4, num_output_tokens=1, grammar_ready_at=5.5)
    plain = Request("plain", num_prompt_tokens=4, num_output_tokens=2)
    assert busy_s(settings(), (0.0, structured), (0.0, plain)) == 3.0
    assert plain.token_at_s == [1.0, 2.0]
    assert structured.token_at_s == [6.5]


def test_an_adapter_that_does_not_fit_lets_others_pass() -> None:
    """One adapter at a time: the second's waits for the first's, the base model's request behind it does not."""
    first = Request("first", num_prompt_tokens=4, num_output_tokens=2, lora=1)
    second = Request("second", num_prompt_tokens=4, num_output_tokens=1, lora=2)
    base = Request("base", num_prompt_tokens=4, num_output_tokens=1)
    busy_s(settings(max_loras=1), (0.0, first), (0.0, second), (0.0, base))
    assert (first.token_at_s, second.token_at_s, base.token_at_s) == ([1.0, 2.0], [3.0], [1.0])


def test_an_important_request_goes_first_and_the_last_of_the_least_important_makes_room() -> None:
    """Three blocks of 4 and prompts of 4: all start at once, and 'urgent' ends with its first token.

    Then 'early' and 'late' need a second block each and one is free.
    """
    early = Request("early", num_prompt_tokens=4, num_output_tokens=3, priority=1)
    late = Request("late", num_prompt_tokens=4, num_output_tokens=3, priority=1)
    urgent = Request("urgent", num_prompt_tokens=4, num_output_tokens=1, priority=0)
    engine = settings(scheduling_policy="priority", num_usable_blocks=3, scheduler_reserve_full_isl=False, max_num_seqs=3)
    busy_s(engine, (0.0, early), (0.0, late), (0.0, urgent))
    assert urgent.token_at_s == [1.0]
    assert early.token_at_s == [1.0, 2.0, 3.0]
    assert late.token_at_s == [1.0, 4.0, 5.0]
    assert (early.num_preemptions, late.num_preemptions) == (0, 1)


def test_the_least_important_goes_although_another_came_last() -> None:
    """Two blocks of 4. At 2 s 'first' needs a second one and is itself the victim: nobody behind it gets anything then.

    That step is empty and takes no time; the next one is planned at once, for 'second' alone.
    """
    first = Request("first", num_prompt_tokens=3, num_output_tokens=3, priority=1)
    second = Request("second", num_prompt_tokens=3, num_output_tokens=2, priority=0)
    assert busy_s(settings(scheduling_policy="priority", num_usable_blocks=2), (0.0, first), (0.5, second)) == 4.0
    assert (first.num_preemptions, second.num_preemptions) == (1, 0)
    assert (first.token_at_s, second.token_at_s) == ([1.0, 2.0, 4.0], [2.0, 3.0])
