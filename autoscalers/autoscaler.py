"""What an autoscaler is: a policy, and the limits around whatever it answers."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from autoscalers.controller import Controller, JointController
from autoscalers.limits import JointPolicy, Limits, Policy
from sim.limits import MIN_INTERVAL_S, zero_or_long_enough

KnownRate = Callable[[float, float], float]
"""(start_s, end_s) -> the mean arrival rate per second that the traffic will have then. For oracles only."""


class Deciding(Limits):
    """What decides for one pool or several: how often, how old what it then sees is, and how far back it looks."""

    interval_s: float = Field(
        default=15.0, ge=MIN_INTERVAL_S, description="Time between two decisions. Source: Kubernetes' default sync period."
    )
    scrape_interval_s: Annotated[float, AfterValidator(zero_or_long_enough)] = Field(
        default=0.0,
        ge=0,
        description="Time between two scrapes of the gauges and counters that it decides by: the age that they reach. How many "
        "machines there are is known without. 0 = they are live.",
    )

    @property
    def decided_with(self) -> str | None:
        """None: it decides for its pool itself."""
        return None

    @property
    def is_oracle(self) -> bool:
        """Whether the policy is told the traffic's future rate. Reports show it; only such a policy gets it."""
        return False

    @property
    def past_s(self) -> float:
        """How far back the policy looks in its views: scrapes that old, and latencies, are kept for it. 0 = nothing is."""
        return 0.0

    @abstractmethod
    def policy(self, known: Any, seed: int) -> Callable[[Any], Any]:
        """Returns the policy with a fresh memory."""


class Autoscaler(Deciding):
    """A policy's parameters and the limits around it. A new one adds its fields and `policy`, nothing else.

    A decision passes, in this order: the bounds, the one replica of a pool that owes work, the tolerance, the stabilisation
    window, the cool-downs, the step limits. The field names are Kubernetes' where it has the option (`autoscaling/v2`
    behavior), with our unit suffix.

    >>> from autoscalers import Wanted
    >>> class HalfFull(Autoscaler):
    ...     max_running: int
    ...     def policy(self, known_rate, seed):
    ...         return lambda view: Wanted(view.num_running / (0.5 * self.max_running), "half full")
    >>> HalfFull(max_running=100, max_replicas=8).start(lambda start_s, end_s: 0.0, seed=1).desired is None
    True

    What a view offers is in `sim.views.PoolView`. A policy that looks back says how far, and gets the scrapes since then:

    >>> from statistics import fmean
    >>> class QuietMinute(HalfFull):
    ...     past_s = property(lambda self: 60.0)
    ...     def policy(self, known_rate, seed):
    ...         def wanted(view):
    ...             running = fmean(one.num_running for one in view.past(60.0))
    ...             is_late = view.latency_s("ttft_s", percent=95, window_s=60.0) > 1.0
    ...             return Wanted(running / (0.5 * self.max_running) + is_late, "half full over a minute")
    ...         return wanted
    """

    @abstractmethod
    def policy(self, known_rate: KnownRate | None, seed: int) -> Policy:
        """Returns the policy with a fresh memory.

        Args:
            known_rate: The traffic's own expected rate; None unless `is_oracle` (invariant 10).
            seed: The run's seed; a policy with chance draws from `sim.randomness.stream(seed, "autoscaler")`.
        """

    def start(self, known_rate: KnownRate, seed: int) -> Controller:
        """Returns the decider of one pool for one run."""
        return Controller(self, self.policy(known_rate if self.is_oracle else None, seed))


class JointAutoscaler(Deciding):
    """A policy that decides for its pool and for those whose autoscaler is `{kind: joint, with_pool: NAME}`, all at one tick.

    A new one adds its fields and `policy`. Each pool keeps limits of its own; its own are those of the pool that names it.

    >>> from autoscalers import Wanted
    >>> class TwoToOne(JointAutoscaler):
    ...     one: str
    ...     two: str
    ...     def policy(self, known_rates, seed):
    ...         def wanted(views):
    ...             number = max(1, views[self.one].num_waiting // 10)
    ...             return {self.one: Wanted(number, "ten wait for each"), self.two: Wanted(2 * number, f"twice {self.one}")}
    ...         return wanted
    """

    @abstractmethod
    def policy(self, known_rates: Mapping[str, KnownRate] | None, seed: int) -> JointPolicy:
        """Returns the policy with a fresh memory.

        Args:
            known_rates: What the traffic is expected to ask of each pool; None unless `is_oracle` (invariant 10).
            seed: The run's seed; a policy with chance draws from `sim.randomness.stream(seed, "autoscaler")`.
        """

    def start(self, limits: Mapping[str, Limits], known_rates: Mapping[str, KnownRate], seed: int) -> JointController:
        """Returns the decider of these pools for one run."""
        return JointController(limits, self.policy(known_rates if self.is_oracle else None, seed))
