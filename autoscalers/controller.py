"""The deciders: they ask the policy, then hold what it answers for each pool within that pool's limits."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import NamedTuple

from autoscalers.limits import JointPolicy, Limits, Policy, Wanted
from autoscalers.window import Lowest
from sim.texts import unknown_name
from sim.views import PoolView


class Decision(NamedTuple):
    """How many replicas a pool should have from now on, and why."""

    desired: int
    """Replicas ready or starting that the fleet must now have; draining ones are not counted."""
    wanted: int
    """The policy's own answer, rounded up, before any limit; where that was no number, `desired`."""
    reason: str


class Limiter:
    """Holds what is wanted of one pool to its limits; the memory is the last decision and two stabilisation windows.

    Limits are measured from the last decision, not from what is there: a replica that died, or never came up, is
    replaced at once and blocks nothing. Whatever the policy answers, a pool that owes work keeps one replica: only an idle
    pool goes to zero.
    """

    def __init__(self, limits: Limits) -> None:
        self.desired: int | None = None
        """The last decision; None before the first."""
        self.num_scale_ups = 0
        self.num_scale_downs = 0
        self.num_reversals = 0
        """Changes against the direction of the one before; one smooth day has one or two, a flapping pool hundreds."""
        self.num_dropped_answers = 0
        """Answers of the policy that were NaN or infinite."""
        self._limits = limits
        self._lowest = Lowest(limits.scale_up_stabilization_s)  # of what was recommended
        self._highest = Lowest(limits.scale_down_stabilization_s)  # of the same, negated
        self._grew_at_s = self._changed_at_s = -math.inf
        self._last_change = 0

    def hold(self, answer: Wanted, view: PoolView) -> Decision:
        """Returns the decision for this tick and remembers it.

        The first call, before any replica exists, sets the size the pool starts with: `initial_replicas`, else the
        policy's answer within the bounds. No other limit applies to it.

        Raises:
            TypeError: the policy's answer is no Wanted.
        """
        wanted, reasons = self._as_number(answer)
        if self.desired is None:
            desired = self._first(wanted, reasons)
            self._recommend(desired, view.now_s)
        else:
            desired = self._limit(wanted, self.desired, view, reasons)
            self._remember(desired - self.desired, view.now_s)
        self.desired = desired
        if view.age_s > 0:
            reasons.append(f"as of {view.age_s:g} s ago")
        return Decision(desired, desired if wanted is None else wanted, "; ".join(filter(None, reasons)))

    def _as_number(self, answer: Wanted) -> tuple[int | None, list[str]]:
        """Rounds up; never negative. None for what is no number: it is dropped and counted, and the pool held.

        Raises:
            TypeError: the policy's answer is no Wanted.
        """
        if not isinstance(getattr(answer, "replicas", None), Real) or not isinstance(getattr(answer, "reason", None), str):
            raise TypeError(f"a policy answers Wanted(replicas, reason), a number and a text; it answered {repr(answer)[:80]}")
        if not math.isfinite(answer.replicas):
            self.num_dropped_answers += 1
            return None, [answer.reason, f"dropped the answer {answer.replicas}"]
        if answer.replicas < 0:
            return 0, [answer.reason, f"{answer.replicas:g} counted as 0"]
        return math.ceil(answer.replicas), [answer.reason]

    def _first(self, wanted: int | None, reasons: list[str]) -> int:
        if self._limits.initial_replicas is not None:
            reasons.append("initial_replicas")
            return self._limits.initial_replicas
        return self._limits.bounded(wanted or 0)

    def _limit(self, wanted: int | None, held: int, view: PoolView, reasons: list[str]) -> int:
        desired = held if wanted is None else wanted
        for name, limit in (
            ("bounds", self._within_bounds),
            ("owed work", self._for_owed_work),
            ("tolerance", self._within_tolerance),
            ("stabilization", self._stabilise),
            ("cooldown", self._cooled_down),
            ("step limit", self._within_step),
            ("draining", self._beside_draining),
        ):
            before, desired = desired, limit(desired, held, view)
            if desired != before:
                reasons.append(f"{name}: {before} -> {desired}")
        return desired

    def _within_bounds(self, number: int, held: int, view: PoolView) -> int:
        return self._limits.bounded(number)

    def _for_owed_work(self, number: int, held: int, view: PoolView) -> int:
        return max(number, self._limits.fewest_for(view))

    def _within_tolerance(self, number: int, held: int, view: PoolView) -> int:
        limits = self._limits
        tolerance = limits.scale_up_tolerance if number > held else limits.scale_down_tolerance
        return held if abs(number - held) <= tolerance * held else number

    def _stabilise(self, number: int, held: int, view: PoolView) -> int:
        """Kubernetes' rule: grow to the window's lowest recommendation, shrink to its highest.

        Source: `stabilizeRecommendationWithBehaviors` in pkg/controller/podautoscaler/horizontal.go. As there, the
        present recommendation counts, and one exactly as old as the window no longer does.
        """
        lowest, highest = self._recommend(number, view.now_s)
        return min(max(held, lowest), highest)

    def _recommend(self, number: int, now_s: float) -> tuple[int, int]:
        """Remembers a recommendation; returns the lowest of the window for growing and the highest of that for shrinking."""
        return self._lowest.add(now_s, number), -self._highest.add(now_s, -number)

    def _cooled_down(self, number: int, held: int, view: PoolView) -> int:
        if number > held:
            wait_s, since_s = self._limits.scale_up_cooldown_s, self._grew_at_s
        else:
            wait_s, since_s = self._limits.scale_down_cooldown_s, self._changed_at_s
        return number if view.now_s - since_s >= wait_s else held

    def _within_step(self, number: int, held: int, view: PoolView) -> int:
        up, down = self._limits.max_step_up, self._limits.max_step_down
        if up is not None:
            number = min(number, held + up)
        return number if down is None else max(number, held - down)

    def _beside_draining(self, number: int, held: int, view: PoolView) -> int:
        """Leaves room for machines that are still draining: they occupy GPUs until they are released."""
        if self._limits.max_replicas is None:
            return number
        return min(number, max(self._limits.max_replicas - view.num_draining, self._limits.min_replicas))

    def _remember(self, change: int, now_s: float) -> None:
        if change == 0:
            return
        self._changed_at_s = now_s
        if change > 0:
            self._grew_at_s = now_s
        self.num_scale_ups += change > 0
        self.num_scale_downs += change < 0
        self.num_reversals += change * self._last_change < 0
        self._last_change = change


class Controller(Limiter):
    """Decides for one pool."""

    def __init__(self, limits: Limits, policy: Policy) -> None:
        super().__init__(limits)
        self._policy = policy

    def decide(self, view: PoolView) -> Decision:
        """Returns the decision for this tick and remembers it."""
        return self.hold(self._policy(view), view)


class JointController:
    """Decides for several pools by one policy, each within its own limits."""

    def __init__(self, limits: Mapping[str, Limits], policy: JointPolicy) -> None:
        self.limiters = {name: Limiter(one) for name, one in limits.items()}
        self._policy = policy

    def decide(self, views: Mapping[str, PoolView]) -> dict[str, Decision]:
        """Returns the decision for each pool and remembers them.

        Raises:
            TypeError: the policy answers something else than one Wanted for each pool that it was shown.
        """
        answers = self._policy(views)
        if not isinstance(answers, Mapping):
            raise TypeError(f"a joint policy answers a mapping of pools to Wanted; it answered {repr(answers)[:80]}")
        for name in answers:
            if name not in views:
                raise TypeError(f"answered for a pool that it does not decide for: {unknown_name('pool', name, views)}")
        missing = [name for name in views if name not in answers]
        if missing:
            raise TypeError(f"a joint policy answers for every pool; it left out '{missing[0]}'")
        return {name: self.limiters[name].hold(answers[name], view) for name, view in views.items()}
