"""Routers: which ready replica gets a request.

A router is one function `(loads, candidates, request, state) -> slot`: `loads[r]` is what replica `r` last showed (LOAD),
`candidates` the slots that take requests, `request[0]` the request without its output length (REQUEST_VIEW), `state` the
router's own memory (RouterState). Adding one: a file like `least_loaded.py`, and a line below.
"""

from typing import NamedTuple

import numpy as np

from routers import least_loaded, least_tokens, power_of_d_choices, random, round_robin, vllm, vllm_old
from routers.pick import Choose
from sim.params import Params
from sim.randomness import stream
from sim.records import CLIENT, RouterState, records


class NoOptions(Params):
    """A router that takes no options."""


class RouterKind(NamedTuple):
    """A router and what a config may set of it."""

    choose: Choose
    options: type[Params] = NoOptions


KINDS: dict[str, RouterKind] = {
    "least_loaded": RouterKind(least_loaded.choose),
    "least_tokens": RouterKind(least_tokens.choose),
    "power_of_d_choices": RouterKind(power_of_d_choices.choose, power_of_d_choices.Options),
    "random": RouterKind(random.choose),
    "round_robin": RouterKind(round_robin.choose),
    "vllm": RouterKind(vllm.choose, vllm.Options),
    "vllm_old": RouterKind(vllm_old.choose),
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
