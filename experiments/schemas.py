"""Which class describes a config: `kind` at its top chooses, and is `simulate` where it is left out."""

from collections.abc import Mapping
from typing import Any

from experiments.config import Experiment
from experiments.kinds import nearest, unknown_name
from experiments.plans.config import Plan

Config = Experiment | Plan

KINDS: dict[str, type[Experiment] | type[Plan]] = {"simulate": Experiment, "plan": Plan}
"""The table of kinds of config: `kind` at the top of the YAML chooses."""


def schema_of(data: Mapping[str, Any]) -> type[Experiment] | type[Plan]:
    """Returns the class of a config as read from YAML; for a misspelled kind the nearest one."""
    kind = data.get("kind", "simulate")
    return KINDS.get(kind if isinstance(kind, str) else "") or KINDS[nearest(kind, KINDS) or "simulate"]


def wrong_kind(data: Mapping[str, Any]) -> str | None:
    """Returns what is wrong with the config's kind, or None."""
    kind = data.get("kind", "simulate")
    return None if isinstance(kind, str) and kind in KINDS else unknown_name("kind of config", kind, KINDS)
