"""What an autoscaler is: a policy, and the limits around whatever it answers."""

from abc import abstractmethod
from collections.abc import Callable

from autoscalers.controller import Controller
from autoscalers.limits import Limits, Policy

KnownRate = Callable[[float, float], float]
"""(start_s, end_s) -> the mean arrival rate per second that the traffic will have then. For oracles only."""


class Autoscaler(Limits):
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
    """

    @property
    def is_oracle(self) -> bool:
        """Whether the policy is told the traffic's future rate. Reports show it; only such a policy gets it."""
        return False

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
