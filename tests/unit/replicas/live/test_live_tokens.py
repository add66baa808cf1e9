"""Equal content is equal token ids, other content is not; and the recorder's rows."""

import time
from types import SimpleNamespace as Thing
from typing import Any

import numpy as np

from replicas.live.recorder import Recorder
from replicas.live.tokens import TokenStreams
from sim.records import SEGMENT


def segments(*pairs: tuple[int, int]) -> Any:
    return np.array(list(pairs), SEGMENT)


def test_requests_share_the_tokens_of_their_common_segments_and_no_more() -> None:
    streams = TokenStreams(5000)
    one = streams.prompt(1, segments((7, 40), (8, 10)), 60)
    two = streams.prompt(2, segments((7, 30), (8, 10)), 60)
    assert len(one) == len(two) == 60
    assert one[:30] == two[:30]
    assert one[30:40] != two[30:40]
    assert one[40:50] == two[30:40]  # the first ten of stream 8, wherever they stand
    assert one[50:] != two[50:]
    assert one == TokenStreams(5000).prompt(1, segments((7, 40), (8, 10)), 60)


def test_ids_are_in_the_vocabulary_and_spread_over_it() -> None:
    ids = np.array(TokenStreams(100).prompt(3, segments(), 20_000))
    assert (ids.min(), ids.max()) == (1, 99)
    counts = np.bincount(ids, minlength=100)[1:]
    # 99 equally likely ids: chi-squared with 98 degrees of freedom has mean 98 and standard deviation 14; 5 of those
    assert ((counts - 20_000 / 99) ** 2 / (20_000 / 99)).sum() < 98 + 5 * 14


def test_a_prompt_cut_within_its_segments_is_a_beginning() -> None:
    streams = TokenStreams(5000)
    whole = streams.prompt(1, segments((7, 40), (8, 10)), 50)
    assert streams.prompt(2, segments((7, 40), (8, 10)), 45) == whole[:45]
    assert streams.prompt(2, segments((7, 40), (8, 10)), 12) == whole[:12]


def test_what_an_engine_answered_is_in_the_prompts_that_contain_it() -> None:
    """A turn of 10 prompt tokens, 2 of them a system prompt, and 5 answered ones; the next turn has them all in its prompt."""
    streams = TokenStreams(5000)
    streams.remember(segments((7, 2), (9, 13)), 10, [901, 902])
    streams.remember(segments((7, 2), (9, 13)), 12, [903, 904, 905])
    asked = streams.prompt(1, segments((7, 2), (9, 8)), 10)
    after = streams.prompt(2, segments((7, 2), (9, 20)), 22)
    assert after[:15] == [*asked, 901, 902, 903, 904, 905]


def test_answers_beyond_the_segments_belong_to_nobody() -> None:
    streams = TokenStreams(5000)
    before = streams.prompt(2, segments((7, 30)), 30)
    streams.remember(segments((7, 10)), 10, [901, 902])
    assert streams.prompt(2, segments((7, 30)), 30) == before


class Scheduler:
    """Has what the recorder looks at, and one request that is admitted and ends."""

    def __init__(self) -> None:
        request = Thing(request_id="a", num_preemptions=0, num_computed_tokens=0, num_prompt_tokens=5, num_tokens=5)
        self.requests = {"a": request}
        self.running: list[Any] = []
        self.waiting = [request]
        self.kv_cache_manager = Thing(block_pool=Thing(get_num_free_blocks=lambda: 9, num_gpu_blocks=11))

    def schedule(self) -> Any:
        if not self.waiting:
            return Thing(num_scheduled_tokens={})
        self.running.append(self.waiting.pop())
        self.requests["a"].num_computed_tokens += 5
        cached = Thing(resumed_req_ids=set())
        return Thing(num_scheduled_tokens={"a": 5}, scheduled_new_reqs=[Thing(req_id="a")], scheduled_cached_reqs=cached)

    def update_from_output(self, output: Any, model_output: Any) -> Any:
        return {0: Thing(outputs=[Thing(request_id="a", finish_reason="length")])}


def test_the_recorder_notes_a_step_in_order_and_leaves_the_scheduler_its_answers() -> None:
    scheduler = Scheduler()
    recorder = Recorder(scheduler)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 5}
    assert recorder.settling is None
    assert scheduler.update_from_output(output, None)[0].outputs[0].request_id == "a"
    assert scheduler.schedule().num_scheduled_tokens == {}
    planned, done, overhead_s = recorder.take()
    (row,) = done
    assert planned == [row]
    assert row["reqs"] == [["a", 5, 0, 5, 5]]
    assert (row["new"], row["finished"], row["free_blocks"], row["total_blocks"]) == (["a"], ["a"], 9, 11)
    assert row["t0"] <= row["t1"] <= row["t2"] <= row["t3"]
    assert min(overhead_s.values()) > 0
    assert recorder.take() == ([], [], {"t": 0.0, "c": 0.0})


def test_looking_while_others_have_the_core_takes_wall_time_and_no_cpu_time() -> None:
    """A step by the CPU's clock once came out below 0, on a busy machine: the wall's seconds of looking were taken off it."""
    scheduler = Scheduler()
    pool = scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks
    pool.get_num_free_blocks = lambda: (time.sleep(0.05), free())[1]
    recorder = Recorder(scheduler)
    scheduler.schedule()
    overhead_s = recorder.take()[2]
    assert overhead_s["t"] > 0.05
    assert overhead_s["c"] < 0.02  # what looking costs: some microseconds
