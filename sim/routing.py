"""A router at work in one fleet: its functions, and what they see and remember."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from sim.params import Params
from sim.records import CLIENT, EVENT, LOAD, REQUEST_VIEW, TIMES, RouterView, records
from sim.views import read_only


@dataclass(eq=False)
class Routing:
    """What the data plane has to know of a router."""

    choose: Callable[[RouterView], int]
    view: RouterView
    observe: Callable[[RouterView], None] | None = None
    observes: int = 0
    """Of which events it is told: a sum of SENT, FIRST_TOKEN, ..."""
    key_block_size: int = 0
    """Tokens of the blocks whose keys it is shown; 0 = it is shown none."""
    sees_sessions: bool = False
    options: Params | None = None
    """As the config gives them; `view.options` for a router in plain Python."""

    @property
    def sees_content(self) -> bool:
        """Whether it is shown what only a request's tokens tell."""
        return self.key_block_size > 0 or self.sees_sessions

    def make_room(self, num_keys: int) -> None:
        """Has the view hold the keys of a prompt of so many blocks."""
        if num_keys > self.view.keys.size:
            self.view = replace(self.view, keys=np.zeros(1 << (num_keys - 1).bit_length(), np.uint64))

    def shown(self, candidates: Any, num_keys: int = 0) -> RouterView:
        """Returns the view as it is when one of `candidates`, (n,) slots, is to be chosen."""
        return replace(self.view, candidates=np.asarray(candidates, np.int64), keys=self.view.keys[:num_keys])

    def in_python(self) -> RouterView:
        """Returns the view as plain Python gets it: options as they are written, and nothing to write to but its own.

        Writing to what it only sees fails where it is written, and not in the books at the end.
        """
        seen = {name: read_only(getattr(self.view, name)[:]) for name in ("candidates", "loads", "keys", "clients")}
        single = {name: read_only(getattr(self.view, name).base[:])[0] for name in ("request", "times", "event")}
        view = replace(self.view, **seen, **single)
        if self.options is not None:
            object.__setattr__(view, "options", self.options)  # what is compiled finds the record by the table
        return view


def new_view(num_slots: int, random: Any, memory: Any, options: Params | None = None, num_clients: int = 1) -> RouterView:
    """Returns what a router sees of a fleet of `num_slots` replicas that has not begun.

    Args:
        num_slots: most replicas at one time, at least 1.
        random: (2,) whole numbers, each from 1 to 2e9: where its own random numbers start.
        memory: (n,) of any dtype, all zero.
        options: as the config gives them; the view has the numbers among them.
        num_clients: API servers, each of which counts what it sends.
    """
    return RouterView(
        candidates=np.full(num_slots, -1),
        request=records(REQUEST_VIEW, 1)[0],
        loads=records(LOAD, num_slots),
        times=records(TIMES, 1)[0],
        keys=np.zeros(0, np.uint64),
        event=records(EVENT, 1)[0],
        random=np.asarray(random, np.int64),
        clients=records(CLIENT, num_slots, num_clients),
        memory=memory,
        options=as_record(options),
    )


def as_record(options: Params | None) -> Any:
    """Returns the options as one record, for compiled code, with a field for each.

    Whole numbers and yes or no are whole numbers there, a word is its place among those allowed, from 0; other numbers are
    floats. No number is -1, or NaN. Options of other types are left out.
    """
    found = [] if options is None else [_field(options, name) for name in type(options).model_fields]
    known = [field for field in found if field is not None]
    record = records(np.dtype([(name, kind) for name, kind, _ in known] or [("none", "i8")], align=True), 1)
    for name, _, value in known:
        record[name] = value
    return record[0]


def _field(options: Params, name: str) -> tuple[str, str, float] | None:
    annotation, value = type(options).model_fields[name].annotation, getattr(options, name)
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kind = next((one for one in kinds if one is not NoneType), None)
    if get_origin(kind) is Literal:
        return name, "i8", get_args(kind).index(value) if value is not None else -1
    if kind is float:
        return name, "f8", np.nan if value is None else value
    return (name, "i8", -1 if value is None else int(value)) if kind in (int, bool) else None
