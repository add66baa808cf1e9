"""How often overloaded engines look at a request, for twice as many requests: `python -m tests.looks`, in plain Python.

A look is a call of `slot_of`, without which nothing compiled gets at a request. They are counted, so the figure is the same on
every machine; compiled code does what the same source does uncompiled.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.contracts.fleets import Constant, classes, engine, run
from replicas.queues import slot_of
from replicas.vllm import admission
from sim.records import ARRIVAL

FEW, MANY = 60, 120


class OneAfter:
    """An autoscaler that wants two replicas at first, and one from an instant on."""

    def __init__(self, at_s: float) -> None:
        self.at_s, self.desired = at_s, 2

    def decide(self, view: Any) -> Constant:
        return Constant(2 if view.now_s < self.at_s else 1)


def served(num: int, kinds: Any = None, *, every_s: float = 1e-4, first_lasts: int = 2, **options: Any) -> None:
    """Serves as good as all at once, four in a step, their classes in an order without pattern; no audit looks on the way.

    The first is of the last class, and may take more steps than the others.
    """
    num_classes = 1 if kinds is None else len(kinds)
    rows = np.zeros(num, ARRIVAL)
    rows["arrived_at_s"] = every_s * np.arange(num)
    rows["num_prompt_tokens"], rows["num_output_tokens"] = 20, 2
    rows["class_id"] = np.arange(num) * 7919 % 10007 % num_classes
    rows["class_id"][0], rows["num_output_tokens"][0] = num_classes - 1, first_lasts
    limits = options.pop("limits", {})
    options = {"timeline_interval_s": 1e6, "interval_s": 1e6} | options
    run(rows, engine(max_num_seqs=4, num_usable_blocks=1000, **limits), classes=kinds, **options)


def held_up(num: int, **limits: Any) -> None:
    """The first has the only place for an adapter for as many steps as there are requests, and all others want another one."""
    kinds = classes((0, 1, 0, 0.0), (1, 1, 0, 0.0), (2, 2, 0, 0.0))
    served(num, kinds, first_lasts=num, limits={"max_loras": 1} | limits)


PRIORITIES = [(priority, 0, 0, 0.0) for priority in (3, 1, 4, 2, 5, 0)]
GRAMMARS = [(0, 0, 0, 1e3), (0, 0, 0, 0.0)]
CASES: dict[str, Callable[[int], None]] = {
    "first_come_first_served": served,
    "priorities": lambda num: served(num, classes(*PRIORITIES), limits={"schedules_by_priority": 1}),
    "adapters": held_up,
    "adapters_of_vllm_0_30": lambda num: held_up(num, passed_by_go_first=1),
    "adapters_by_priority": lambda num: held_up(num, schedules_by_priority=1),
    "adapters_and_paced_prefills": lambda num: held_up(num, prefill_schedule_interval=2),
    "adapters_and_the_longest_prefix": lambda num: held_up(num, schedules_by_prefix=1, enable_prefix_caching=1),
    "grammars": lambda num: served(num, classes(*GRAMMARS), first_lasts=num),
    "a_limit_on_queued_tokens": lambda num: served(num, limits={"max_num_queued_tokens": 10**9}),
    "no_replica_and_an_autoscaler_that_looks": lambda num: served(
        num, every_s=0.01, interval_s=0.01, warm_start=False, stages=lambda: [("ready_at_s", 0.01 * num)]
    ),
    "a_machine_that_leaves_by_priority": lambda num: served(
        num,
        classes(*PRIORITIES),
        limits={"schedules_by_priority": 1},
        replicas=2,
        autoscaler=OneAfter(0.03),
        interval_s=0.01,
        drain_timeout_s=0.0,
    ),
}


def looks_per_request(case: str, num: int) -> float:
    """Returns how often a request of this case is looked at, on average over all of them."""
    found = 0

    def counted(fleet: Any, i: int) -> int:
        nonlocal found
        found += 1
        return slot_of(fleet, i)

    for name, module in list(sys.modules.items()):
        if name.startswith("replicas.") and hasattr(module, "slot_of"):
            module.slot_of = counted  # type: ignore[attr-defined]
    admission.MOST_SORTED = 8  # SGLang's queue is to be longer than what it sorts
    CASES[case](num)
    return found / num


if __name__ == "__main__":
    print(json.dumps({case: [looks_per_request(case, num) for num in (FEW, MANY)] for case in sys.argv[1:] or CASES}))
