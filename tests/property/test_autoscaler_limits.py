"""Whatever a policy answers, and whatever the pool looks like, the limits hold."""

import itertools
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from autoscalers import Autoscaler, Policy, Wanted
from sim.views import PoolView

COLD_START_S = 45.0


class Script(Autoscaler):
    """Answers what it is told to, one answer a tick."""

    answers: list[Any]

    def policy(self, known_rate: Any, seed: int) -> Policy:
        answers = iter(self.answers)
        return lambda view: Wanted(next(answers))


answers = st.lists(st.one_of(st.integers(-5, 80), st.floats(allow_nan=True, allow_infinity=True)), min_size=1, max_size=40)
seconds = st.sampled_from([0.0, 15.0, 40.0, 100.0, 300.0])
steps = st.one_of(st.none(), st.integers(1, 10))


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    low, high = sorted(draw(st.tuples(st.integers(0, 40), st.integers(1, 40))))
    return Script(
        answers=draw(answers),
        min_replicas=low,
        max_replicas=max(1, high),
        initial_replicas=draw(st.one_of(st.none(), st.integers(low, max(1, high)))),
        scale_up_tolerance=draw(st.floats(0.0, 0.5)),
        scale_down_tolerance=draw(st.floats(0.0, 0.5)),
        scale_up_stabilization_s=draw(seconds),
        scale_down_stabilization_s=draw(seconds),
        scale_up_cooldown_s=draw(seconds),
        scale_down_cooldown_s=draw(seconds),
        max_step_up=draw(steps),
        max_step_down=draw(steps),
    )


@dataclass
class ToyPool:
    """Does what it is told: starts take one cold start; a drain takes as long as it is given."""

    num_ready: int = 0
    starting: list[float] = field(default_factory=list)  # when each is ready
    draining: list[float] = field(default_factory=list)  # when each is gone

    def advance(self, now_s: float) -> None:
        self.num_ready += sum(at_s <= now_s for at_s in self.starting)
        self.starting = [at_s for at_s in self.starting if at_s > now_s]
        self.draining = [at_s for at_s in self.draining if at_s > now_s]

    def obey(self, desired: int, now_s: float, drain_s: float) -> None:
        change = desired - self.num_ready - len(self.starting)
        self.starting += [now_s + COLD_START_S] * change
        num_cancelled = min(-change, len(self.starting)) if change < 0 else 0
        del self.starting[len(self.starting) - num_cancelled :]
        num_drained = max(0, -change) - num_cancelled
        self.num_ready -= num_drained
        self.draining += [now_s + drain_s] * num_drained

    def view(self, now_s: float) -> PoolView:
        return PoolView(
            now_s, self.num_ready, len(self.starting), len(self.draining), 0, 0, 0, 0, 0, 0.0, COLD_START_S, 5.0, 1000.0
        )


@given(scripts(), st.lists(st.integers(0, 60), min_size=40, max_size=40))
def test_desired_stays_within_bounds_whatever_is_seen(scaler: Script, draining: list[int]) -> None:
    controller = scaler.start(lambda start_s, end_s: 0.0, seed=1)
    for i in range(len(scaler.answers)):
        view = PoolView(15.0 * i, 0, 0, draining[i], 0, 0, 0, 0, 0, 0.0, COLD_START_S, 5.0, 1000.0)
        decision = controller.decide(view)
        assert scaler.max_replicas is not None
        assert scaler.min_replicas <= decision.desired <= scaler.max_replicas
        assert decision.wanted >= 0


@given(scripts(), st.lists(st.floats(0.0, 200.0), min_size=40, max_size=40))
def test_machines_never_exceed_the_cap_at_any_instant(scaler: Script, drains_s: list[float]) -> None:
    controller, pool = scaler.start(lambda start_s, end_s: 0.0, seed=1), ToyPool()
    for i, drain_s in enumerate(drains_s[: len(scaler.answers)]):
        pool.advance(15.0 * i)
        pool.obey(controller.decide(pool.view(15.0 * i)).desired, 15.0 * i, drain_s)
        assert scaler.max_replicas is not None
        assert pool.num_ready + len(pool.starting) + len(pool.draining) <= scaler.max_replicas
        assert pool.num_ready + len(pool.starting) >= scaler.min_replicas


@given(scripts())
def test_steps_and_cooldowns_hold_between_any_two_decisions(scaler: Script) -> None:
    controller = scaler.start(lambda start_s, end_s: 0.0, seed=1)
    view = ToyPool().view
    history = [controller.decide(view(15.0 * i)).desired for i in range(len(scaler.answers))]
    grew_at_s = changed_at_s = -1e9
    for i, (before, after) in enumerate(itertools.pairwise(history), start=1):
        assert after - before <= (scaler.max_step_up or 1000)
        assert before - after <= (scaler.max_step_down or 1000)
        if after > before:
            assert 15.0 * i - grew_at_s >= scaler.scale_up_cooldown_s
            grew_at_s = changed_at_s = 15.0 * i
        elif after < before:
            assert 15.0 * i - changed_at_s >= scaler.scale_down_cooldown_s
            changed_at_s = 15.0 * i


@given(scripts(), st.integers(2, 8))
def test_deciding_on_a_slower_clock_changes_nothing_but_the_clock(scaler: Script, k: int) -> None:
    slower = scaler.model_copy(
        update={name: k * getattr(scaler, name) for name in type(scaler).model_fields if name.endswith("_s")}
    )
    runs = []
    for limits, every_s in [(scaler, 15.0), (slower, 15.0 * k)]:
        controller = limits.start(lambda start_s, end_s: 0.0, seed=1)
        runs.append([controller.decide(ToyPool().view(every_s * i)).desired for i in range(len(scaler.answers))])
    assert runs[0] == runs[1]
