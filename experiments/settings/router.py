"""The `router` section of a config: which policy, its options, and how old the loads are that it sees."""

import inspect
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SerializeAsAny

import routers
from routers import RouterKind
from sim.kinds import KindOf
from sim.limits import zero_or_long_enough
from sim.outside import own_code
from sim.params import Params
from sim.routing import Routing


class Snapshots(Params):
    """What a router sees of its replicas, whatever its kind."""

    scrape_interval_s: Annotated[float, AfterValidator(zero_or_long_enough)] = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="Seconds between two scrapes of the replicas' loads; in between the router decides on the last "
        "one and its own count of what it has sent. 0 = it sees them live",
    )


class Router(Snapshots):
    """A router's name and options."""

    kind: str
    options: SerializeAsAny[Params]

    @property
    def is_compiled(self) -> bool:
        """Whether it is compiled; one that is not is asked in Python at every request."""
        return routers.is_compiled(ROUTER.look_up(self.kind).choose)

    def start(self, num_slots: int, seed: int) -> Routing:
        """Returns it at work in a fleet of at most `num_slots` replicas at a time."""
        kind: RouterKind = ROUTER.look_up(self.kind)
        with own_code(kind.choose):  # its declarations are functions too
            return routers.start(kind, num_slots, seed, self.options)


def _takes(function: Any, *arguments: str) -> bool:
    try:
        inspect.signature(getattr(function, "py_func", function)).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


class _RouterOf(KindOf):
    """A router's table holds functions with their options; `scrape_interval_s` belongs to all of them."""

    def parts(self, entry: Any) -> list[type[Params]]:
        return [Snapshots, entry.options]

    def meaning(self, entry: Any) -> str:
        return inspect.cleandoc(entry.choose.__doc__ or "")

    def build(self, kind: str, values: list[Params]) -> Router:
        snapshots, options = values
        return Router(kind=kind, options=options, **snapshots.model_dump())

    def check(self, entry: Any) -> RouterKind:
        if isinstance(entry, RouterKind):
            return entry
        if _takes(entry, "view"):
            return RouterKind(entry)
        if _takes(entry, "loads", "candidates", "request", "state"):
            raise ValueError("takes (loads, candidates, request, state); a router takes one argument, the view, which has them")
        raise ValueError("is neither a function (view) -> slot nor a RouterKind")

    def write(self, value: Any) -> dict[str, Any]:
        return {
            "kind": value.kind,
            "scrape_interval_s": value.scrape_interval_s,
            **value.options.model_dump(mode="json"),
        }


ROUTER = _RouterOf("router", routers.KINDS, Router)
