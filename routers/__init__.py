"""Routers: which ready replica gets a request.

A router is one function `(loads, candidates, request, state) -> slot`: `loads[r]` is what replica `r` last showed (LOAD),
`candidates` the slots that take requests, `request[0]` the request without its output length (REQUEST_VIEW), `state` the
router's own memory (RouterState). Adding one: a file like `least_loaded.py`, and a line below.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from routers.options import DrawnChoices, NoOptions, VllmClients
from sim.params import Params
from sim.randomness import stream
from sim.records import CLIENT, RouterState, records

Choose = Callable[[Any, Any, Any, RouterState], int]


@dataclass(frozen=True)
class RouterKind:
    """A router and what a config may set of it.

    The router is a function, or named: the module that has it as `choose` is imported for a run, as reading a config needs none
    of the compiled code.
    """

    router: Choose | str
    options: type[Params] = NoOptions
    sees_load: bool = True
    """Whether a replica with less to do is preferred."""
    balances: bool = True
    """Whether it counts what it has sent itself, and so gives equal replicas equal shares, however old the loads."""
    draws_always: bool = False
    """Whether it draws a random number at every request, not only among equals."""

    @property
    def choose(self) -> Choose:
        """The function that routes."""
        if isinstance(self.router, str):
            choose: Choose = import_module(self.router).choose
            return choose
        return self.router


KINDS: dict[str, RouterKind] = {
    "least_loaded": RouterKind("routers.least_loaded"),
    "least_tokens": RouterKind("routers.least_tokens"),
    "power_of_d_choices": RouterKind("routers.power_of_d_choices", DrawnChoices, draws_always=True),
    "random": RouterKind("routers.random", sees_load=False, balances=False, draws_always=True),
    "round_robin": RouterKind("routers.round_robin", sees_load=False),
    "vllm": RouterKind("routers.vllm", VllmClients),
    "vllm_old": RouterKind("routers.vllm_old"),
}


def new_state(seed: int, num_slots: int, options: Params | None = None) -> RouterState:
    """Returns a router's empty memory for a fleet of `num_slots`; options go in, in the order they are declared."""
    chosen = dict(options or NoOptions())
    num_clients = chosen.get("num_clients", 1)
    state = RouterState(
        random=stream(seed, "router").integers(1, 2_000_000_000, size=2),
        drawn=np.zeros(max(num_slots, 1), np.int64),
        memory=np.zeros(max(16, num_clients), np.int64),
        options=np.zeros(16),
        clients=records(CLIENT, max(num_slots, 1), num_clients),
    )
    values = [float(value) for value in chosen.values()]
    state.options[: len(values)] = values
    return state


def is_compiled(choose: Choose) -> bool:
    """Tells whether a router is compiled; a plain function is asked in Python, at every request."""
    return hasattr(choose, "nopython_signatures")
