"""Each option of the scheduler changes a run as vLLM's documentation and the texts say, worked out by hand.

Options go through `Surrogate`, as a user's do. Where a step's time does not matter, every step lasts a second.
"""

from typing import Any

import numpy as np
import pytest

from experiments.contracts.fleets import Ran, Script, arrivals, classes, run
from replicas.catalog import gpu, model
from replicas.surrogate import Surrogate
from sim.metrics import ttft_s
from sim.records import FAILED, FINISHED, REASON_NAMES, REJECTED

LLAMA, H100 = model("llama-3.1-8b"), gpu("h100-sxm")
SMALL: dict[str, Any] = {"max_model_len": 100, "max_num_batched_tokens": 100, "max_num_seqs": 8, "num_gpu_blocks": 101}
SECOND: dict[str, Any] = {"overhead_s": 1.0}
TOKENS: dict[str, Any] = {"flops_per_token": 1.0, "flops_per_s": 100.0}
PLAIN = (0, 0, 0, 0.0)


def engine(step: dict[str, Any] = SECOND, **options: Any) -> Any:
    """(1,) ENGINE of a small engine that schedules plainly unless told otherwise, and whose steps are timed by `step` alone."""
    made = Surrogate(**{"async_scheduling": False, **SMALL, **options}).engine(LLAMA, H100)
    timeless: dict[str, Any] = {
        "flops_per_token": 0.0,
        "flops_per_attended_token": 0.0,
        "dense_weight_bytes": 0.0,
        "kv_bytes_per_token": 0.0,
        "adapter_bytes": 0.0,
        "overhead_s": 0.0,
    }
    for name, value in (timeless | step).items():
        made[name] = value
    return made


def first_tokens(ran: Ran) -> list[float]:
    return [float(at_s) for at_s in ran.requests.first_token_at_s]


def finishes(ran: Ran) -> list[float]:
    return [float(at_s) for at_s in ran.requests.finished_at_s]


# Who is let in


def reasons(ran: Ran) -> list[str]:
    return [REASON_NAMES[reason] for reason in ran.requests.reason]


def test_max_num_queued_reqs_counts_those_that_run_as_well() -> None:
    """Two are served until 3 s; whoever comes before is told to go away, and whoever comes then is let in."""
    rows = [(0.0, 5, 3), (0.0, 5, 3), (0.0, 5, 3), (2.5, 5, 3), (3.0, 5, 3)]
    ran = run(arrivals(rows), engine(max_num_queued_reqs=2))
    full = "max_num_queued_reqs"
    assert reasons(ran) == ["", "", full, full, ""]
    assert (ran.requests.status == [FINISHED, FINISHED, REJECTED, REJECTED, FINISHED]).all()
    assert finishes(ran)[4] == 6.0


def test_max_num_queued_tokens_counts_whole_prompts_until_their_first_token() -> None:
    """40 + 20 prompt tokens are above 50; the first's count until 1 s though they are computed, the second's until 2 s."""
    rows = [(0.0, 40, 9), (0.5, 20, 9), (0.6, 1, 9), (1.5, 30, 9), (1.6, 1, 9), (2.5, 1, 9)]
    ran = run(arrivals(rows), engine(max_num_queued_tokens=50))
    full = "max_num_queued_tokens"
    assert reasons(ran) == ["", "", full, "", full, ""]


def test_queue_limits_count_all_ranks_of_a_machine() -> None:
    """Of two ranks that take turns, the second is full with one request of its own and one of the other's."""
    ran = run(
        arrivals([(0.0, 5, 3)] * 3), engine(max_num_queued_reqs=2, data_parallel_size=2), replicas=2, router="round_robin"
    )
    assert reasons(ran) == ["", "", "max_num_queued_reqs"]
    apart = run(arrivals([(0.0, 5, 3)] * 3), engine(max_num_queued_reqs=2), replicas=2, router="round_robin")
    assert reasons(apart) == ["", "", ""]


def test_a_request_that_has_tokens_and_finds_the_next_replica_full_has_failed() -> None:
    """Two machines with one each; the second goes at 5 s and its request finds the first one full."""
    ran = run(
        arrivals([(0.0, 5, 20), (0.0, 5, 20)]),
        engine(max_num_queued_reqs=1),
        max_replicas=2,
        router="round_robin",
        autoscaler=Script([2, 1]),
        interval_s=5.0,
        drain_timeout_s=0.0,
    )
    assert sorted(reasons(ran)) == ["", "max_num_queued_reqs"]
    assert sorted(ran.requests.status.tolist()) == [FINISHED, FAILED]
    lost = ran.requests[ran.requests.status == FAILED][0]
    assert 0 < lost.num_generated_tokens < 20


# Who gets how many tokens


@pytest.mark.parametrize(("threshold", "long_s"), [(0, 1.0), (4, 10.0), (10, 4.0)])
def test_long_prefill_token_threshold(threshold: int, long_s: float) -> None:
    """40 tokens are one step, or in company ten of 4 or four of 10; the other is not held up."""
    ran = run(arrivals([(0.0, 40, 1), (0.0, 2, 20)]), engine(long_prefill_token_threshold=threshold))
    assert first_tokens(ran) == [long_s, 1.0]
    assert finishes(ran)[1] == 20.0


@pytest.mark.parametrize(("version", "alone_s"), [("0.32", 1.0), ("0.30", 10.0)])
def test_vllm_version_whether_the_threshold_binds_a_request_alone(version: str, alone_s: float) -> None:
    ran = run(arrivals([(0.0, 40, 1)]), engine(long_prefill_token_threshold=4, vllm_version=version))
    assert first_tokens(ran) == [alone_s]


def test_the_threshold_lets_go_of_a_prefill_that_is_left_alone() -> None:
    """Two steps of 4 beside the short one, which then is done; the other 32 tokens are one step."""
    ran = run(arrivals([(0.0, 40, 1), (0.0, 2, 2)]), engine(long_prefill_token_threshold=4))
    assert first_tokens(ran) == [3.0, 1.0]


# Who goes first, and who has to go

IMPORTANCE = classes((2, 0, 0, 0.0), (0, 0, 0, 0.0), (1, 0, 0, 0.0))


@pytest.mark.parametrize(("policy", "expected_s"), [("fcfs", [1.0, 2.0, 3.0, 4.0]), ("priority", [3.0, 1.0, 4.0, 2.0])])
def test_scheduling_policy_who_is_admitted_first(policy: str, expected_s: list[float]) -> None:
    """One at a time. Lower numbers first: classes 0, 1, 0, 2 have priorities 2, 0, 2, 1; equals in order of arrival."""
    one = engine(scheduling_policy=policy, max_num_seqs=1)
    ran = run(arrivals([(0.0, 5, 1, 0), (0.0, 5, 1, 1), (0.0, 5, 1, 0), (0.0, 5, 1, 2)]), one, classes=IMPORTANCE)
    assert finishes(ran) == expected_s


@pytest.mark.parametrize(
    ("policy", "preemptions", "finished_s"),
    [("fcfs", [0, 1], [3.0, 4.0]), ("priority", [1, 0], [4.0, 3.0])],
)
def test_scheduling_policy_who_is_preempted(policy: str, preemptions: list[int], finished_s: list[float]) -> None:
    """Two blocks of 4; at 2 s the first request needs a second one, and the second holds the other with 1 token to come.

    First come first served takes it from the second, which comes back at 3 s for its last token. By priority the first has to
    go itself: that step schedules nobody and takes no time, the next one runs the second, and the first returns at 3 s.
    """
    tight = engine(scheduling_policy=policy, block_size=4, num_gpu_blocks=3)
    ran = run(arrivals([(0.0, 3, 3, 0), (0.5, 3, 2, 1)]), tight, classes=IMPORTANCE)
    assert ran.requests.num_preemptions.tolist() == preemptions
    assert first_tokens(ran) == [1.0, 2.0]
    assert finishes(ran) == finished_s
    assert ran.plane.fleet.replicas.busy_s[0] == 4.0


def test_a_step_in_which_one_is_preempted_admits_nobody() -> None:
    """Four blocks of 4: one for the first, three for the second; the third, more urgent than the second, needs two.

    At 2 s the first needs another block, so the second goes. Two of its three are then free, and yet the third has to wait
    for the next step.
    """
    tight = engine(scheduling_policy="priority", block_size=4, num_gpu_blocks=5)
    ran = run(arrivals([(0.0, 3, 3, 1), (0.0, 11, 3, 0), (0.5, 7, 1, 2)]), tight, classes=IMPORTANCE)
    assert ran.requests.num_preemptions.tolist() == [0, 1, 0]
    assert ran.requests.scheduled_at_s.tolist() == [0.0, 0.0, 3.0]


@pytest.mark.parametrize(("policy", "expected_s"), [("fcfs", [1.0, 2.0, 3.0, 4.0]), ("lpm", [1.0, 4.0, 3.0, 2.0])])
def test_scheduling_policy_longest_prefix_first(policy: str, expected_s: list[float]) -> None:
    """SGLang's. One at a time; once the first is in the cache, those behind it find no, one and three of its blocks."""
    one = engine(scheduling_policy=policy, enable_prefix_caching=True, max_num_seqs=1)
    segments = [[(1, 60)], [(2, 60)], [(1, 20), (3, 40)], [(1, 60)]]
    ran = run(arrivals([(0.0, 60, 1)] * 4), one, segments=segments)
    assert finishes(ran) == expected_s


# What an earlier request has left


@pytest.mark.parametrize(("enable_prefix_caching", "seconds", "cached"), [(False, 0.64, 0), (True, 0.16, 48)])
def test_enable_prefix_caching(enable_prefix_caching: bool, seconds: float, cached: int) -> None:
    """The same 64 tokens again, at 10 ms each: all of them, or the last block of 16, as the last token must be computed."""
    caching = engine(TOKENS, enable_prefix_caching=enable_prefix_caching, enforce_eager=True)
    ran = run(arrivals([(0.0, 64, 1), (5.0, 64, 1)]), caching, segments=[[(7, 64)], [(7, 64)]])
    assert ttft_s(ran.requests).tolist() == pytest.approx([0.64, seconds])
    assert ran.requests.num_cached_tokens.tolist() == [0, cached]


@pytest.mark.parametrize(("method", "cached", "second_at_s"), [("ngram", 48, 0.0), ("eagle", 32, 1.0)])
def test_speculative_method(method: str, cached: int, second_at_s: float) -> None:
    """EAGLE recomputes the last block of a hit, and needs KV slots for its drafts: 14 + 3 tokens do not fit one block of 16."""
    drafting: dict[str, Any] = {"speculative_method": method, "num_speculative_tokens": 3}
    ran = run(
        arrivals([(0.0, 64, 1), (5.0, 64, 1)]),
        engine(enable_prefix_caching=True, **drafting),
        segments=[[(7, 64)], [(7, 64)]],
    )
    assert ran.requests.num_cached_tokens.tolist() == [0, cached]
    two = run(arrivals([(0.0, 14, 1), (0.0, 14, 1)]), engine(num_gpu_blocks=3, **drafting))
    assert two.requests.scheduled_at_s.tolist() == [0.0, second_at_s]


# Drafts


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize(("k", "a"), [(0, 0.7), (1, 0.5), (3, 0.8), (4, 0.3), (2, 1.0), (5, 0.0)])
def test_num_speculative_tokens_and_acceptance_rate(k: int, a: float, async_scheduling: bool) -> None:
    """A step yields 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a) tokens on average: draft j holds if all up to it do.

    One answer of 20,000 tokens: the steps it takes are the tokens over that mean, within 4 standard errors of what independent
    steps would show (or within one step, where nothing is left to chance: the last step may yield more than is asked for).
    """
    num_tokens = 20_000
    options: dict[str, Any] = {"max_model_len": 30_000, "max_num_batched_tokens": 30_000, "num_gpu_blocks": 2000}
    options |= {"num_speculative_tokens": k, "acceptance_rate": a, "async_scheduling": async_scheduling}
    ran = run(arrivals([(0.0, 10, num_tokens)]), engine(**options), timeline_interval_s=1e6)
    chances = np.array([a**j * (1 - a) for j in range(k)] + [a**k])
    mean = float(chances @ np.arange(1, k + 2))
    assert mean == pytest.approx(k + 1 if a == 1.0 else (1 - a ** (k + 1)) / (1 - a))
    std = float(chances @ np.arange(1, k + 2) ** 2 - mean**2) ** 0.5
    num_steps = finishes(ran)[0] - 1.0  # without the prefill, which yields the first token
    standard_error = std / num_steps**0.5
    assert 4 * standard_error < 0.04 * mean
    assert (num_tokens - 1) / num_steps == pytest.approx(mean, abs=4 * standard_error + mean / num_steps)
    if mean > 1:
        assert ran.plane.fleet.itl_counts[0, 0] == pytest.approx(num_tokens - num_steps, abs=1)  # came with another: no gap


def test_draft_s_lengthens_every_step() -> None:
    steps_s = []
    for draft_s in (0.0, 0.25):
        surrogate = Surrogate(num_speculative_tokens=1, acceptance_rate=0.0, draft_s=draft_s, num_gpu_blocks=9000)
        ran = run(arrivals([(0.0, 10, 2)]), surrogate.engine(LLAMA, H100))
        steps_s.append(ran.plane.fleet.itl_sums[0, 2])
    assert steps_s[1] - steps_s[0] == pytest.approx(0.25)


# Adapters

TWO_ADAPTERS = classes(PLAIN, (0, 1, 0, 0.0), (0, 2, 0, 0.0))


@pytest.mark.parametrize(("max_loras", "expected_s"), [(1, [2.0, 3.0, 1.0]), (2, [2.0, 1.0, 1.0])])
def test_max_loras(max_loras: int, expected_s: list[float]) -> None:
    """One adapter a step: the second's request waits for the first's two steps, and lets the one without an adapter pass."""
    rows = [(0.0, 4, 2, 1), (0.0, 4, 1, 2), (0.0, 4, 1, 0)]
    assert finishes(run(arrivals(rows), engine(max_loras=max_loras), classes=TWO_ADAPTERS)) == expected_s


def decode_of_64_s(num_adapters: int, **options: Any) -> float:
    """The step in which 64 requests each get their second token at 2,048 tokens of context, on the textbook's machine."""
    surrogate = Surrogate(max_loras=64, num_gpu_blocks=9000, max_num_batched_tokens=64 * 2047, enforce_eager=True, **options)
    kinds = classes(PLAIN, *[(0, adapter, 0, 0.0) for adapter in range(1, num_adapters + 1)])
    rows = [(0.0, 2047, 2, 1 + i % num_adapters if num_adapters else 0) for i in range(64)]
    ran = run(arrivals(rows), surrogate.engine(LLAMA, H100), classes=kinds)
    assert ran.plane.fleet.replicas.num_steps[0] == 2  # all prefills together, then all decodes
    return float(ran.plane.fleet.itl_sums[0, 2])


@pytest.mark.parametrize(("num_adapters", "expected_ms"), [(0, 9.92), (1, 9.95), (64, 11.52)])
def test_each_distinct_adapter_of_a_step_is_read(num_adapters: int, expected_ms: float) -> None:
    """The count of docs/sources.md [1], section on adapters: 84 MB each, free in FLOPs and not in bytes."""
    assert 1000 * decode_of_64_s(num_adapters) == pytest.approx(expected_ms, abs=0.01)


def test_max_lora_rank() -> None:
    """An adapter of rank 16 is 83,886,080 bytes; one of rank 64 takes four times as long to read."""
    without_s = decode_of_64_s(0)
    for rank, num_bytes in ((16, 83_886_080), (64, 4 * 83_886_080)):
        assert decode_of_64_s(1, max_lora_rank=rank) - without_s == pytest.approx(num_bytes / 3.35e12, rel=1e-6)


# Batching before vLLM


@pytest.mark.parametrize(
    ("batching", "expected_s"), [("continuous", [3.0, 1.0, 2.0]), ("orca", [3.0, 1.0, 2.0]), ("static", [3.0, 1.0, 4.0])]
)
def test_batching_who_joins_a_running_batch(batching: str, expected_s: list[float]) -> None:
    """Two at a time: the third takes the place of the second at 1 s, or waits until the first is done as well."""
    rows = [(0.0, 5, 3), (0.0, 5, 1), (0.0, 5, 1)]
    assert finishes(run(arrivals(rows), engine(batching=batching, max_num_seqs=2))) == expected_s


@pytest.mark.parametrize(
    ("batching", "scheduled_s", "preempted"), [("continuous", 0.0, 1), ("orca", 17.0, 0), ("static", 17.0, 0)]
)
def test_batching_what_is_set_aside(batching: str, scheduled_s: float, preempted: int) -> None:
    """Three blocks of 16 and two requests of 16 + 17 tokens, 32 of which get KV: one block for the prompt, or two for all.

    Set aside in full, there is room for the second when the first is done, at 17 s; else it is there from the start, and has
    to go when both want a third block.
    """
    ran = run(arrivals([(0.0, 16, 17), (0.0, 16, 17)]), engine(batching=batching, num_gpu_blocks=4))
    assert ran.requests.scheduled_at_s.tolist() == [0.0, scheduled_s]
    assert ran.requests.num_preemptions.tolist() == [0, preempted]


@pytest.mark.parametrize(("batching", "scheduled_s"), [("continuous", 0.0), ("orca", 1.0), ("static", 1.0)])
def test_batching_prompts_are_split_or_not(batching: str, scheduled_s: float) -> None:
    """A budget of 100: the second prompt of 60 gets the 40 that are left, or waits for the next step to be whole."""
    ran = run(arrivals([(0.0, 60, 1), (0.0, 60, 1)]), engine(batching=batching))
    assert ran.requests.scheduled_at_s.tolist() == [0.0, scheduled_s]
    assert first_tokens(ran) == [1.0, 2.0]


def test_static_batches_of_different_lengths_end_with_their_longest() -> None:
    """Batches of two in order of arrival: 4 steps, then 2, then 6; nobody joins before all have left."""
    rows = [(0.0, 5, num_output_tokens) for num_output_tokens in (4, 1, 2, 2, 1, 6)]
    ran = run(arrivals(rows), engine(batching="static", max_num_seqs=2))
    assert ran.requests.scheduled_at_s.tolist() == [0.0, 0.0, 4.0, 4.0, 6.0, 6.0]
    assert finishes(ran) == [4.0, 1.0, 6.0, 6.0, 7.0, 12.0]


# Graphs, grammars, limits


@pytest.mark.parametrize(("enforce_eager", "num_tokens"), [(False, 16), (True, 9)])
def test_enforce_eager_a_batch_of_9_runs_as_16(enforce_eager: bool, num_tokens: int) -> None:
    """10 ms of arithmetic a token; the decodes of nine requests are one step of 160 ms with CUDA graphs, of 90 without."""
    nine = engine(TOKENS, enforce_eager=enforce_eager, max_num_seqs=9)
    ran = run(arrivals([(0.0, 5, 10)] * 9), nine)
    gaps_s = ran.plane.fleet.itl_sums[0]
    assert ran.plane.fleet.itl_counts.sum() == 9 * 9
    assert gaps_s[0] / (9 * 9) == pytest.approx(num_tokens * 0.01)
    assert gaps_s[2] == pytest.approx(num_tokens * 0.01)


def test_a_step_above_the_largest_graph_is_not_padded() -> None:
    """Graphs up to twice max_num_seqs tokens, here 16: a prefill of 45 is computed as 45."""
    ran = run(arrivals([(0.0, 45, 2)]), engine(TOKENS))
    assert ttft_s(ran.requests).tolist() == pytest.approx([0.45])


GRAMMARS = classes(PLAIN, (0, 0, 0, 5.5), (0, 0, 0, 2.0))


def test_grammar_s_the_first_request_waits_for_the_compiler_and_later_ones_do_not() -> None:
    """Asked for at 0 s, there at 5.5 s: the idle engine wakes then, and takes both. From then on it is there."""
    ran = run(arrivals([(0.0, 4, 1, 1), (2.0, 4, 1, 1), (10.0, 4, 1, 1)]), engine(), classes=GRAMMARS)
    assert ran.requests.scheduled_at_s.tolist() == [5.5, 5.5, 10.0]
    assert finishes(ran) == [6.5, 6.5, 11.0]


def test_grammar_s_is_per_class_and_others_pass() -> None:
    """The plain request behind goes first; the other grammar is ready at 2 s, within the plain one's third step."""
    ran = run(arrivals([(0.0, 4, 1, 1), (0.0, 4, 1, 2), (0.0, 4, 4, 0)]), engine(), classes=GRAMMARS)
    assert ran.requests.scheduled_at_s.tolist() == [5.5, 2.0, 0.0]
    assert finishes(ran) == [6.5, 3.0, 4.0]


def test_grammar_s_is_paid_on_each_replica() -> None:
    ran = run(
        arrivals([(0.0, 4, 1, 1), (0.0, 4, 1, 1), (20.0, 4, 1, 1), (20.0, 4, 1, 1)]),
        engine(),
        replicas=2,
        router="round_robin",
        classes=GRAMMARS,
    )
    assert sorted(ran.requests.machine.tolist()) == [0, 0, 1, 1]
    assert ran.requests.scheduled_at_s.tolist() == [5.5, 5.5, 20.0, 20.0]


@pytest.mark.parametrize(("version", "scheduled_s"), [("0.32", [0.0, 4.0, 5.0]), ("0.30", [0.0, 5.0, 4.0])])
def test_vllm_version_whether_structured_output_goes_ahead(version: str, scheduled_s: list[float]) -> None:
    """A place for one, taken until 4 s; a plain request waits, and behind it one whose grammar is compiled by then."""
    rows = [(0.0, 4, 4, 0), (0.5, 4, 1, 0), (1.5, 4, 1, 2)]
    ran = run(arrivals(rows), engine(max_num_seqs=1, async_scheduling=False, vllm_version=version), classes=GRAMMARS)
    assert ran.requests.scheduled_at_s.tolist() == scheduled_s


@pytest.mark.parametrize(("async_scheduling", "expected_s"), [(False, 0.01 + 64 * 40e-6), (True, 0.01)])
def test_grammar_cpu_s_per_request(async_scheduling: bool, expected_s: float) -> None:
    """64 masks of 40 us are 2.6 ms of CPU (docs/sources.md [1]): after a GPU step of 10 ms, or hidden behind it."""
    options: dict[str, Any] = {"grammar_cpu_s_per_request": 40e-6, "async_scheduling": async_scheduling}
    filling = engine({"overhead_s": 0.01}, max_num_seqs=64, max_num_batched_tokens=640, num_gpu_blocks=201, **options)
    constrained, free = (
        run(arrivals([(0.0, 10, 5, kind)] * 64), filling, classes=classes(PLAIN, (0, 0, 0, 1e-3))) for kind in (1, 0)
    )
    assert free.plane.fleet.itl_sums[0, 2] == pytest.approx(0.01)
    assert constrained.plane.fleet.itl_sums[0, 2] == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("async_scheduling", "max_tokens", "steps"), [(False, 10, 2), (True, 10, 3), (False, 2, 2), (True, 2, 2), (True, 0, 2)]
)
def test_max_tokens_an_unseen_end_costs_a_step_with_async_scheduling(
    async_scheduling: bool, max_tokens: int, steps: int
) -> None:
    """An answer of 2 tokens whose client allows 10: a third step is planned before the second token says it is the last."""
    ran = run(arrivals([(0.0, 4, 2)]), engine(async_scheduling=async_scheduling), classes=classes((0, 0, max_tokens, 0.0)))
    assert finishes(ran) == [2.0]
    assert ran.requests.num_generated_tokens.tolist() == [2]
    assert ran.plane.fleet.replicas.num_steps[0] == steps
    assert ran.plane.fleet.replicas.busy_s[0] == steps
    assert ran.plane.fleet.replicas.num_delivered_tokens[0] == 2


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize(("max_tokens", "prompt", "given"), [(5, 10, 5), (50, 94, 6), (20, 10, 20)])
def test_max_tokens_and_max_model_len_cut_longer_answers(
    async_scheduling: bool, max_tokens: int, prompt: int, given: int
) -> None:
    """20 tokens wanted: 5 allowed; 50 allowed, but after a prompt of 94 the sequence may have 6 more; all allowed."""
    plain = engine(async_scheduling=async_scheduling)
    ran = run(arrivals([(0.0, prompt, 20)]), plain, classes=classes((0, 0, max_tokens, 0.0)))
    assert (ran.requests.status[0], ran.requests.num_generated_tokens[0]) == (FINISHED, given)
    assert finishes(ran) == [given]
    assert ran.plane.fleet.replicas.num_steps[0] == given  # the end is foreseen: no step is wasted


# Memory


@pytest.mark.parametrize(("watermark", "scheduled_s"), [(0.0, 0.0), (0.2, 3.0)])
def test_watermark(watermark: float, scheduled_s: float) -> None:
    """Ten blocks of which a fifth stays free: the first is alone and need not mind, the second would leave one and waits."""
    ran = run(arrivals([(0.0, 80, 3), (0.0, 60, 1)]), engine(num_gpu_blocks=11, watermark=watermark))
    assert ran.requests.scheduled_at_s.tolist() == [0.0, scheduled_s]


def test_one_that_is_alone_may_take_the_last_block_whatever_the_watermark() -> None:
    """Six blocks, of which a fifth stays free for others: a prompt of 96 tokens takes them all."""
    ran = run(arrivals([(0.0, 96, 1)]), engine(num_gpu_blocks=7, watermark=0.2))
    assert ran.requests.scheduled_at_s.tolist() == [0.0]


def test_prompts_that_are_not_cut_may_take_the_whole_budget() -> None:
    ran = run(arrivals([(0.0, 60, 1), (0.0, 40, 1)]), engine(enable_chunked_prefill=False))
    assert ran.requests.scheduled_at_s.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("scheduler_reserve_full_isl", "scheduled_s"), [(True, 3.0), (False, 0.0)])
def test_scheduler_reserve_full_isl(scheduler_reserve_full_isl: bool, scheduled_s: float) -> None:
    """The budget leaves 20 tokens for the second prompt of 80: two blocks of the four that are free, or all five."""
    ran = run(
        arrivals([(0.0, 80, 3), (0.0, 80, 1)]),
        engine(num_gpu_blocks=10, scheduler_reserve_full_isl=scheduler_reserve_full_isl),
    )
    assert ran.requests.scheduled_at_s.tolist() == [0.0, scheduled_s]
