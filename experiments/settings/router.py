"""The `router` section of a config: which policy, its options, and how old the loads are that it sees."""

import inspect
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SerializeAsAny

import routers
from routers import Choose, RouterKind, is_compiled
from sim.kinds import KindOf
from sim.limits import zero_or_long_enough
from sim.outside import guarded
from sim.params import Params


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
    def choose(self) -> Choose:
        """The function that routes."""
        choose: Choose = ROUTER.look_up(self.kind).choose
        return choose if is_compiled(choose) else guarded(choose)


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
        try:
            inspect.signature(getattr(entry, "py_func", entry)).bind("loads", "candidates", "request", "state")
        except (TypeError, ValueError):
            message = "is neither a function (loads, candidates, request, state) -> slot nor a RouterKind"
            raise ValueError(message) from None
        return RouterKind(entry)

    def write(self, value: Any) -> dict[str, Any]:
        return {
            "kind": value.kind,
            "scrape_interval_s": value.scrape_interval_s,
            **value.options.model_dump(mode="json"),
        }


ROUTER = _RouterOf("router", routers.KINDS, Router)
