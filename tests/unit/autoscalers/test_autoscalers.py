"""The limits around a policy, and the policies without memory. Times and numbers are worked out by hand."""

import itertools
import math
import pickle
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from autoscalers import Autoscaler, Controller, Fixed, Forecast, Policy, QueueTarget, Wanted
from autoscalers.sizing import replicas_for
from autoscalers.window import Lowest
from tests.pools import view


class Script(Autoscaler):
    """Answers what it is told to, one answer a tick; nothing damps it unless asked."""

    answers: list[Any]
    scale_down_tolerance: float = 0.0
    scale_down_stabilization_s: float = 0.0

    def policy(self, known_rate: Any, seed: int) -> Policy:
        answers = iter(self.answers)
        return lambda view: Wanted(next(answers), "script")


def decide(answers: list[Any], every_s: float = 15.0, draining: Any = None, **limits: Any) -> list[int]:
    """The decisions at 0, 15, 30, ... s, the first one being the start."""
    controller = scripted(answers, **limits)
    drains = draining or [0] * len(answers)
    return [controller.decide(view(i * every_s, num_draining=n)).desired for i, n in enumerate(drains)]


def scripted(answers: list[Any], **limits: Any) -> Controller:
    return Script(answers=answers, **limits).start(lambda start_s, end_s: math.nan, seed=1)


# --- limits -----------------------------------------------------------------------------------------------------


def test_without_limits_the_policy_decides() -> None:
    assert decide([1, 5, 2, 7.2]) == [1, 5, 2, 8]


def test_bounds_hold() -> None:
    assert decide([0, 3, 100], min_replicas=2, max_replicas=8) == [2, 3, 8]


def test_no_upper_bound_when_null() -> None:
    assert decide([1, 1000], max_replicas=None) == [1, 1000]


def test_a_pool_has_room_for_as_many_machines_as_its_bound_says() -> None:
    assert [Script(answers=[], max_replicas=most).max_machines for most in (5, 2000, None)] == [5, 2000, 1024]


def test_first_decision_is_initial_replicas_whatever_the_policy_wants() -> None:
    assert decide([40, 40], initial_replicas=3, max_step_up=1) == [3, 4]


def test_first_decision_is_the_policys_and_no_step_limit_slows_it() -> None:
    assert decide([40, 41], max_step_up=1, scale_up_cooldown_s=600) == [40, 41]


def test_step_limits_bound_each_decision() -> None:
    assert decide([1, 20, 20, 20, 1, 1], max_step_up=8, max_step_down=3) == [1, 9, 17, 20, 17, 14]


def test_scale_up_cooldown_counts_from_the_last_growth() -> None:
    # grows at 15 s; 30 and 45 s are too soon, 60 s is 45 s later
    assert decide([1, 2, 3, 4, 5], scale_up_cooldown_s=45) == [1, 2, 2, 2, 5]


def test_scale_up_cooldown_ignores_shrinking() -> None:
    assert decide([5, 1, 9], scale_up_cooldown_s=45) == [5, 1, 9]


def test_scale_down_cooldown_counts_from_any_change() -> None:
    assert decide([1, 9, 5, 5, 1, 1], scale_down_cooldown_s=30) == [1, 9, 9, 5, 5, 1]


def test_down_window_is_the_maximum_of_recommendations_not_a_cooldown() -> None:
    # 600 s window, 100 s ticks. Wanted 10 last at 100 s, so 10 holds until 600 s and is out of the window at 700 s;
    # then the highest within (100, 700] is 6 (at 200 s), until 800 s. A cool-down would have cut to 2 at 700 s.
    answers = [10, 10, 6, 2, 2, 2, 2, 2, 2, 2]
    assert decide(answers, every_s=100, scale_down_stabilization_s=600) == [10] * 7 + [6, 2, 2]


def test_a_single_high_recommendation_in_the_window_keeps_the_pool_up() -> None:
    answers = [10, 2, 2, 8, 2, 2, 2, 2]  # 8 at 300 s holds to 500 s
    assert decide(answers, every_s=100, scale_down_stabilization_s=300) == [10, 10, 10, 8, 8, 8, 2, 2]


def test_up_window_is_the_minimum_of_recommendations() -> None:
    answers = [2, 8, 6, 7, 9]
    assert decide(answers, every_s=100, scale_up_stabilization_s=250) == [2, 2, 2, 6, 6]


def test_a_recommendation_exactly_as_old_as_the_window_no_longer_counts() -> None:
    """Ticks of 100 s, a window of 300 s: what was recommended three ticks ago is out of it, in both directions."""
    assert decide([10, 2, 2, 2], every_s=100, scale_down_stabilization_s=300) == [10, 10, 10, 2]
    assert decide([2, 10, 10, 10], every_s=100, scale_up_stabilization_s=300) == [2, 2, 2, 10]
    assert decide([10, 2, 2, 2], every_s=100, scale_down_stabilization_s=301) == [10, 10, 10, 10]
    assert decide([2, 10, 10, 10], every_s=100, scale_up_stabilization_s=301) == [2, 2, 2, 2]


def test_the_two_windows_do_not_share_a_length() -> None:
    limits = {"scale_up_stabilization_s": 100.0, "scale_down_stabilization_s": 300.0}
    assert decide([5, 9, 9, 1, 1, 1, 1], every_s=50, **limits) == [5, 5, 9, 9, 9, 9, 9]
    assert decide([5, 1, 1, 9, 9, 9, 9], every_s=50, **limits) == [5, 5, 5, 5, 9, 9, 9]


class Counted(int):
    """A number that counts how often it is compared."""

    num_compared = 0

    def __le__(self, other: int) -> bool:
        Counted.num_compared += 1
        return int(self) <= int(other)

    def __ge__(self, other: int) -> bool:
        Counted.num_compared += 1
        return int(self) >= int(other)

    def __lt__(self, other: int) -> bool:
        Counted.num_compared += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Counted.num_compared += 1
        return int(self) > int(other)


@pytest.mark.parametrize("step", [1, -1, 7919])
def test_a_tick_of_a_long_stabilisation_window_does_not_look_at_all_of_it(step: int) -> None:
    """10,000 ticks within one window, rising, falling and scattered: about two comparisons each, not ten thousand."""
    lowest, num_ticks = Lowest(window_s=1e9), 10_000
    Counted.num_compared = 0
    for i in range(num_ticks):
        lowest.add(float(i), Counted(i * step % 10_007))
    assert Counted.num_compared <= 3 * num_ticks


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 1.0, 10.0, 25.0]), st.integers(0, 9)), max_size=60),
    st.sampled_from([0.0, 10.0, 30.0]),
)
def test_the_sliding_minimum_is_the_minimum_of_what_is_younger_than_the_window(steps: list[Any], window_s: float) -> None:
    lowest, now_s, seen = Lowest(window_s), 0.0, []
    for gap_s, number in steps:
        now_s += gap_s
        seen.append((now_s, number))
        assert lowest.add(now_s, number) == min([number, *(n for at_s, n in seen if at_s > now_s - window_s)])


def test_window_does_not_delay_growth() -> None:
    assert decide([1, 9, 1], scale_down_stabilization_s=600) == [1, 9, 9]


def test_tolerance_leaves_small_changes_undone() -> None:
    limits = {"scale_up_tolerance": 0.1, "scale_down_tolerance": 0.2}
    assert decide([10, 11, 12, 10, 9, 0], **limits, min_replicas=0) == [10, 10, 12, 12, 9, 0]


def test_tolerance_is_a_share_of_what_there_is_not_of_what_is_wanted() -> None:
    """9 -> 10 is a ninth of nine and a tenth of ten; 10 -> 9 the other way round."""
    assert decide([9, 10], scale_up_tolerance=0.1) == [9, 10]
    assert decide([10, 9], scale_down_tolerance=0.1) == [10, 10]


def test_the_window_remembers_what_the_tolerance_has_left_undone() -> None:
    """At 100 s nine of ten are tolerated, and so ten is the lowest of the window that growth waits for at 200 s."""
    limits = {"max_replicas": 10, "scale_down_tolerance": 0.1, "scale_up_stabilization_s": 150.0}
    assert decide([10, 9, 10], every_s=100, draining=[0, 4, 0], **limits) == [10, 6, 10]


def test_tolerance_never_keeps_the_last_replica_nor_holds_back_the_first() -> None:
    assert decide([1, 0, 1], min_replicas=0, scale_up_tolerance=0.9, scale_down_tolerance=0.9) == [1, 0, 1]


@pytest.mark.parametrize("owed", [{"num_waiting": 1}, {"num_running": 1}])
def test_a_pool_that_owes_work_keeps_one_replica_whatever_the_policy_answers(owed: dict[str, int]) -> None:
    controller = scripted([3, 0, math.nan, 0, 0], min_replicas=0)
    controller.decide(view())
    decisions = [controller.decide(view(15.0, **owed)), controller.decide(view(30.0, **owed)), controller.decide(view(45.0))]
    assert [d.desired for d in decisions] == [1, 1, 0]
    assert decisions[0].reason == "script; owed work: 0 -> 1"
    assert controller.decide(view(60.0, **owed)).desired == 1  # and gets one back


def test_draining_replicas_count_against_the_cap() -> None:
    # 32 -> 20: the 12 that drain still hold their GPUs, so 32 may only come back as they are released
    assert decide([32, 20, 32, 32], draining=[0, 0, 12, 5], max_replicas=32) == [32, 20, 20, 27]


def test_negative_answer_counts_as_zero() -> None:
    assert decide([100, 40, 10, -20], min_replicas=0, max_replicas=None) == [100, 40, 10, 0]


@pytest.mark.parametrize("broken", [math.inf, -math.inf, math.nan])
def test_an_answer_that_is_no_number_is_dropped_counted_and_told(broken: float) -> None:
    controller = scripted([10, broken, 12])
    decisions = [controller.decide(view(15.0 * i)) for i in range(3)]
    assert [d.desired for d in decisions] == [10, 10, 12]
    assert [d.wanted for d in decisions] == [10, 10, 12]
    assert decisions[1].reason == f"script; dropped the answer {broken}"
    assert controller.num_dropped_answers == 1


def test_first_answer_that_is_no_number_starts_the_smallest_pool() -> None:
    assert decide([math.nan, 4], min_replicas=2) == [2, 4]


def test_policy_that_raises_is_not_taken_for_one_that_holds() -> None:
    controller = scripted([])
    with pytest.raises(StopIteration):
        controller.decide(view())


def test_replica_that_never_starts_does_not_block_scale_down() -> None:
    controller = scripted([3, 1])
    controller.decide(view())
    assert controller.decide(view(15.0, num_ready=0, num_starting=3)).desired == 1


def test_unready_replicas_do_not_stop_decisions() -> None:
    controller = scripted([7, 9])
    controller.decide(view())
    assert controller.decide(view(15.0, num_ready=6)).desired == 9


def test_lost_replica_is_replaced_and_is_no_scale_down() -> None:
    controller = scripted([5, 5], scale_up_cooldown_s=600)
    controller.decide(view())
    assert controller.decide(view(15.0, num_ready=3)).desired == 5
    assert controller.num_scale_ups == controller.num_scale_downs == 0


def test_flaps_are_counted() -> None:
    controller = scripted([1, 0, 1, 0, 1, 1], min_replicas=0)
    for i in range(6):
        controller.decide(view(15.0 * i))
    assert (controller.num_scale_ups, controller.num_scale_downs, controller.num_reversals) == (2, 2, 3)


def test_reason_names_every_limit_that_changed_the_answer() -> None:
    controller = scripted([4, 100], max_replicas=50, max_step_up=8)
    controller.decide(view())
    decision = controller.decide(view(15.0))
    assert decision == (12, 100, "script; bounds: 100 -> 50; step limit: 50 -> 12")


def test_policy_that_is_no_oracle_is_not_given_the_future() -> None:
    class Peeking(Script):
        def policy(self, known_rate: Any, seed: int) -> Policy:
            return lambda view: Wanted(1 if known_rate is None else 2)

    class Declared(Peeking):
        @property
        def is_oracle(self) -> bool:
            return True

    for kind, told in [(Peeking, 1), (Declared, 2)]:
        controller = kind(answers=[]).start(lambda start_s, end_s: 0.0, seed=1)
        assert controller.decide(view()).wanted == told


# --- what a config may say --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"min_replicas": 5, "max_replicas": 4}, "min_replicas 5 is above max_replicas 4"),
        ({"initial_replicas": 80}, "initial_replicas 80 lies outside min_replicas 1 to max_replicas 64"),
        ({"interval_s": 0}, "interval_s"),
        ({"interval_ms": 15_000}, "interval_ms"),
        ({"max_step_up": 0}, "max_step_up"),
        ({"min_replicas": 1.5}, "min_replicas"),
    ],
)
def test_bad_limits_are_refused_by_name(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        QueueTarget(**limits)


@pytest.mark.parametrize("target", [50, 0, -0.7, math.nan])
def test_target_utilization_outside_0_to_1_is_refused(target: float) -> None:
    with pytest.raises(ValidationError, match="target_utilization"):
        QueueTarget(target_utilization=target)


# --- fixed ------------------------------------------------------------------------------------------------------


def test_fixed_keeps_its_number_whatever_the_load() -> None:
    controller = Fixed(replicas=100).start(lambda start_s, end_s: 0.0, seed=1)
    assert [controller.decide(view(15.0 * i, waiting_tokens=10**i)).desired for i in range(9)] == [100] * 9


def test_fixed_at_none_does_not_start_one_for_work_that_waits() -> None:
    controller = Fixed(replicas=0).start(lambda start_s, end_s: 0.0, seed=1)
    assert [controller.decide(view(15.0 * i, num_waiting=5)).desired for i in range(2)] == [0, 0]


def test_fixed_goes_to_its_number_from_another_start() -> None:
    controller = Fixed(replicas=10, initial_replicas=11).start(lambda start_s, end_s: 0.0, seed=1)
    assert [controller.decide(view(15.0 * i)).desired for i in range(2)] == [11, 10]


def test_a_pool_may_start_with_none() -> None:
    assert decide([3, 3], initial_replicas=0, min_replicas=0) == [0, 3]


def test_fixed_at_less_than_none_is_refused() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        Fixed(replicas=-1)


def test_a_fleet_of_none_has_room_for_one() -> None:
    assert [Fixed(replicas=n).max_machines for n in (0, 1, 7)] == [1, 1, 7]


def test_fixed_outside_given_bounds_is_refused_not_clamped() -> None:
    with pytest.raises(ValidationError, match="replicas 100 lies outside min_replicas 0 to max_replicas 64"):
        Fixed(replicas=100, max_replicas=64)


# --- queue_target -----------------------------------------------------------------------------------------------


def first(autoscaler: Autoscaler, **seen: Any) -> int:
    return autoscaler.start(lambda start_s, end_s: 0.0, seed=1).decide(view(**seen)).desired


def test_queue_target_by_hand() -> None:
    # (9,000 + 5,000) / 0.7 / 1,000 = 20, plus the 2 warm ones
    assert first(QueueTarget(), waiting_tokens=9000, running_tokens=5000) == 22


def test_queue_target_equals_the_law_in_exact_arithmetic() -> None:
    loads, targets = [0, 1, 999, 1000, 14_001, 21_000, 123_456], ["0.1", "0.3", "0.7", "0.9", "1"]
    for load, target, capacity in itertools.product(loads, targets, [1, 7, 1000]):
        exact = math.ceil(Fraction(load) / Fraction(target) / capacity) + 2
        scaler = QueueTarget(target_utilization=float(target), replica_token_capacity=capacity, max_replicas=64)
        assert first(scaler, waiting_tokens=load) == max(1, min(64, exact))


def test_given_token_capacity_replaces_the_computed_one() -> None:
    assert first(QueueTarget(replica_token_capacity=7000, warm_buffer=0), running_tokens=9800) == 2


def test_all_replicas_reporting_zero_is_data() -> None:
    controller = QueueTarget(scale_down_stabilization_s=0).start(lambda start_s, end_s: 0.0, seed=1)
    controller.decide(view(running_tokens=70_000))
    assert controller.decide(view(15.0, num_ready=64)).desired == 2


def test_idle_pool_goes_to_zero_and_comes_back() -> None:
    scaler = QueueTarget(min_replicas=0, warm_buffer=0, scale_down_stabilization_s=120)
    controller = scaler.start(lambda start_s, end_s: 0.0, seed=1)
    controller.decide(view(running_tokens=500))
    idle = [controller.decide(view(15.0 * i)).desired for i in range(1, 13)]
    assert idle == [1] * 7 + [0] * 5  # 180 s idle; the window holds it for the first 120 s
    assert controller.decide(view(195.0, num_ready=0, waiting_tokens=1)).desired == 1


def test_full_replicas_with_a_queue_exceed_a_target_of_one() -> None:
    full = QueueTarget(target_utilization=1.0, warm_buffer=0)
    assert first(full, running_tokens=1000) == 1
    assert first(full, running_tokens=1000, waiting_tokens=500) == 2


def test_settles_at_5_to_6_replicas_and_stays() -> None:
    """1 s of service, 5 requests a second, one at a time: a token stands for a request here."""
    controller = QueueTarget(
        target_utilization=0.9, warm_buffer=0, replica_token_capacity=1, interval_s=1, scale_down_stabilization_s=30
    ).start(lambda start_s, end_s: 0.0, seed=1)
    in_system, history = 0, []
    for second in range(200):
        desired = controller.decide(view(float(second), waiting_tokens=in_system)).desired  # ready at once
        in_system = max(0, in_system - desired) + 5
        history.append(desired)
    assert set(history[100:]) <= {5, 6}
    assert controller.num_reversals <= 2


def test_noise_of_a_few_percent_changes_nothing() -> None:
    controller = QueueTarget(interval_s=15).start(lambda start_s, end_s: 0.0, seed=1)
    controller.decide(view(running_tokens=14_700))
    for i in range(1, 400):
        load = 14_000 + 700 * (-1, 1, 0, 1)[i % 4]  # 5 % either side of 20 replicas
        assert controller.decide(view(15.0 * i, running_tokens=load)).desired == 23
    assert controller.num_scale_ups == controller.num_scale_downs == 0


def test_the_split_between_two_replicas_does_not_matter() -> None:
    totals = [first(QueueTarget(), running_tokens=a + b) for a, b in [(7000, 3000), (6000, 4000), (7500, 2500)]]
    assert len(set(totals)) == 1


def looked_once(warm_buffer: int = 0) -> Policy:
    """A policy that looked at an idle pool at 0 s. 500 tokens, or half a request/s, are a replica."""
    policy = QueueTarget(target_utilization=0.5, warm_buffer=warm_buffer).policy(None, 1)
    assert policy(view(0.0)).replicas == warm_buffer
    return policy


def owing(waiting_tokens: int, running_tokens: int, now_s: float = 15.0, **seen: Any) -> Any:
    """What it is shown next: a request for every hundred tokens, and one that has arrived in each second."""
    counts = {"num_waiting": waiting_tokens // 100, "num_running": running_tokens // 100, "num_arrived": round(now_s)}
    tokens = {"waiting_tokens": waiting_tokens, "running_tokens": running_tokens}
    return view(now_s, replica_requests_per_s=1.0, **counts, **tokens, **seen)


def test_a_queue_that_replicas_ready_and_starting_work_off_in_a_cold_start_asks_for_no_more() -> None:
    """5,000 tokens are ten replicas. Four do 2 requests/s, one more than arrive: 60 of the 50 owed in a minute.

    What is left is what the arrivals keep in flight: a second of service each, 1,000 tokens.
    """
    wanted = looked_once()(owing(4000, 1000, num_ready=2, num_starting=2))
    assert wanted.replicas == 4
    assert wanted.reason.endswith("= 10, but 1000 one cold start from now: 4")


def test_a_queue_that_they_leave_in_part_asks_for_that_part() -> None:
    """In 20 s four replicas do 20 of the 50 owed beyond what arrives: 3,000 of the 5,000 tokens are left, six replicas."""
    assert looked_once()(owing(4000, 1000, num_ready=4, cold_start_s=20.0)).replicas == 6


def test_the_warm_buffer_is_on_top_of_what_the_arrivals_keep_in_flight() -> None:
    """Three do half a request/s beyond what arrives, all of the 50 in 100 s. 1,000 tokens in flight are two, and two warm."""
    assert looked_once(warm_buffer=2)(owing(4500, 500, num_ready=3, cold_start_s=100.0)).replicas == 4


def test_tokens_that_run_on_just_as_many_replicas_as_there_are_leave_the_rest_a_queue() -> None:
    """2,000 running tokens are the four replicas that there are; 2,500 would be five, and a load and no queue."""
    assert looked_once()(owing(3000, 2000, num_ready=4)).replicas == 4
    assert looked_once()(owing(2500, 2500, num_ready=4)).replicas == 10


def test_a_queue_that_is_being_worked_off_stays_one_while_more_of_it_runs() -> None:
    policy = looked_once()
    assert policy(owing(4000, 1000, num_ready=4)).replicas == 4
    assert policy(owing(1500, 2500, 30.0, num_ready=4)).replicas == 4  # 2,500 running tokens alone would be five


def test_a_load_that_is_just_what_the_replicas_hold_is_no_queue_to_be_worked_off() -> None:
    policy = looked_once()
    assert policy(owing(1000, 1000, num_ready=4)).replicas == 4
    assert policy(owing(2500, 2500, 30.0, num_ready=4)).replicas == 10


def test_a_second_look_at_one_scrape_goes_by_the_rate_that_it_showed() -> None:
    policy = looked_once()
    assert policy(owing(4000, 1000, num_ready=4)).replicas == 4
    assert policy(owing(4000, 1000, 30.0, scraped_at_s=15.0, num_ready=4)).replicas == 4


@pytest.mark.parametrize("capacity", [0.0, math.nan, math.inf, -1.0])
def test_unknown_capacity_is_an_error_not_a_number(capacity: float) -> None:
    with pytest.raises(ValueError, match="capacity must be a positive number"):
        replicas_for(10, capacity)
    with pytest.raises(ValueError, match="capacity must be a positive number"):
        first(QueueTarget(), replica_tokens=capacity)


@pytest.mark.parametrize("scaler", [QueueTarget(min_replicas=0), Forecast(forecaster="naive", min_replicas=0)])
def test_a_pool_that_can_serve_none_of_the_traffic_asks_for_no_replica(scaler: Autoscaler) -> None:
    controller = scaler.start(lambda start_s, end_s: 0.0, seed=1)
    useless: dict[str, Any] = {"replica_tokens": None, "replica_requests_per_s": None}
    decisions = [controller.decide(view(15.0 * i, num_arrived=100 * i, **useless)) for i in range(3)]
    assert [decision.desired for decision in decisions] == [0, 0, 0]
    assert decisions[0].reason == "no replica can serve any of the traffic"


def test_parameters_pickle() -> None:
    assert pickle.loads(pickle.dumps(QueueTarget(max_replicas=9))) == QueueTarget(max_replicas=9)
