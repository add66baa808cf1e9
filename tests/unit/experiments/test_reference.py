"""The reference of the keys: current, complete, and in agreement with the schema."""

import json
from collections.abc import Iterator
from typing import Any

from experiments.reference import markdown, schema, whole_schema
from experiments.settings.tasks import TASKS
from tests.commands import ROOT


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert page == markdown(), "docs/config.md is old: run `make docs`"


def properties(node: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key of every mapping in the schema."""
    if isinstance(node, dict):
        if isinstance(node.get("properties"), dict):
            yield from node["properties"].items()
        for value in node.values():
            yield from properties(value)
    elif isinstance(node, list):
        for value in node:
            yield from properties(value)


def test_every_key_says_what_it_means() -> None:
    silent = {name for name, field in properties(whole_schema()) if name != "kind" and not field.get("description")}
    assert silent == set()


def test_every_kind_is_in_the_schema_and_on_the_page() -> None:
    import autoscalers
    import replicas
    import routers
    import traces

    whole, page = json.dumps(schema()), markdown()
    for table in (traces.KINDS, routers.KINDS, replicas.KINDS, autoscalers.KINDS):
        for kind in table:
            assert f'"const": "{kind}"' in whole
            assert f"`kind: {kind}`" in page


def test_the_name_may_be_left_out() -> None:
    assert all("name" not in schema(kind).get("required", []) for kind in TASKS)


def test_the_kind_may_be_left_out_of_a_simulation_only() -> None:
    assert [kind for kind in TASKS if "kind" not in schema(kind)["required"]] == ["simulate"]
