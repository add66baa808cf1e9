"""Routers: which ready replica gets a request.

A router is one function `view -> slot`. Of the view (`sim.records.RouterView`), `loads[r]` is what replica `r` last showed,
`candidates` are the slots that take requests, `request` is the request without its output length, `options` are the router's by
name, `memory` is its own. Adding one: a file like `least_loaded.py`, and a line below.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from routers.options import DrawnChoices, NoOptions, VllmClients
from sim.params import Params
from sim.randomness import stream
from sim.records import EVENT_NAMES, RouterView, records
from sim.routing import Routing, new_view

Choose = Callable[[RouterView], int]
Observe = Callable[[RouterView], None]


@dataclass(frozen=True)
class RouterKind:
    """A router, what a config may set of it, and what it asks to see.

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
    memory: Any = "i8"
    """The dtype of what it remembers, `view.memory`; zero at first."""
    memory_size: Callable[[int, Any], int] = lambda num_slots, options: 16
    """(most replicas, its options) -> entries of its memory."""
    key_block_size: Callable[[Any], int] = lambda options: 0
    """its options -> tokens of the blocks whose keys are `view.keys`; 0 = it is shown none. Prompts that have the tokens of
    their first n blocks in common have n keys in common. Those of an engine's cache are the same if its blocks are as long."""
    sees_sessions: bool = False
    """Whether it asks for `view.request.session`."""
    observe: Observe | None = None
    """What it is told of, as `view.event` (`sim.records.EVENT`), in order, before it next has to choose."""
    observes: tuple[str, ...] = ()
    """Of which events: sent, first_token, ended, cached, evicted, cleared."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.observes if name not in EVENT_NAMES]
        if unknown:
            raise ValueError(f"observes {unknown[0]!r}, which is none of {', '.join(EVENT_NAMES)}")
        if bool(self.observes) != (self.observe is not None):
            raise ValueError("observes events without a function `observe`, or has one and observes none")
        if self.observe is not None and is_compiled(self.choose) != is_compiled(self.observe):
            raise ValueError("has one function that is compiled and one in plain Python; both must be alike")

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
    "power_of_d_choices": RouterKind(
        "routers.power_of_d_choices", DrawnChoices, draws_always=True, memory_size=lambda num_slots, options: num_slots
    ),
    "random": RouterKind("routers.random", sees_load=False, balances=False, draws_always=True),
    "round_robin": RouterKind("routers.round_robin", sees_load=False),
    "vllm": RouterKind("routers.vllm", VllmClients, memory_size=lambda num_slots, options: options.num_clients),
    "vllm_old": RouterKind("routers.vllm_old"),
}


def start(kind: RouterKind, num_slots: int, seed: int, options: Params | None = None) -> Routing:
    """Returns a router that remembers nothing yet, for a fleet of at most `num_slots` replicas at a time."""
    options = options or kind.options()
    num_slots = max(num_slots, 1)
    size, memory = max(1, kind.memory_size(num_slots, options)), np.dtype(kind.memory)
    view = new_view(
        num_slots,
        stream(seed, "router").integers(1, 2_000_000_000, size=2),
        records(memory, size) if memory.names else np.zeros(size, memory),
        options,
        getattr(options, "num_clients", 1),
    )
    observes = sum(1 << EVENT_NAMES.index(name) for name in kind.observes)
    return Routing(kind.choose, view, kind.observe, observes, kind.key_block_size(options), kind.sees_sessions, options)


def is_compiled(function: Any) -> bool:
    """Tells whether a router is compiled; a plain function is asked in Python, at every request."""
    return hasattr(function, "nopython_signatures")
