"""The reference of all keys of a config: as JSON Schema, and as the page docs/config.md (`python -m experiments.reference`)."""

import json
from collections.abc import Iterator
from typing import Any

from experiments.pages.tables import markdown as markdown_table
from experiments.settings.tasks import TASKS, schema_for
from experiments.settings.wording import shown
from sim.kinds import OUTSIDE

Node = dict[str, Any]

UNITS = {
    "gb_per_s": "GB/s",
    "requests_per_s": "requests/s",
    "tokens_per_s": "tokens/s",
    "flops_per_s": "FLOP/s",
    "bytes_per_s": "bytes/s",
    "_per_s": "requests/s",
    "_per_gpu_hour": "$ per GPU-hour",
    "_s": "s",
    "_s_per_request": "s",
    "_tokens": "tokens",
    "_bytes": "bytes",
    "_blocks": "blocks",
    "_hour": "h",
}

LIMITS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}

INTRODUCTION = """# The keys of a config

Made by `make docs` from the classes that read a config; `run_experiment.py --schema` prints the same as JSON Schema.
An unknown key is an error. The end of a key is its unit: `_s` seconds, `_per_s` per second, `_tokens`, `_bytes`.

- The `kind` at the top says what is done: `simulate` (which may be left out), `plan`, `calibrate`, `calibrate_gpu` or
  `validate`.
- Any other `kind` chooses a class; the section's other keys are that class's. `kind: my_module:MyPolicy` loads your own.
- Paths, in `sweep` and in `--set`, are dotted and use the names of pools: `pools.main.replicas.max_num_seqs`.
- `sweep` makes one run of every combination of its lists, `seeds` one of each seed. A mapping in a list is laid over the
  one in the config; if it brings another `kind`, the old keys that the new kind does not have are left out.
"""


def schema(kind: str = "simulate") -> dict[str, Any]:
    """Returns the JSON Schema of a config file of this kind; `simulate` may go without saying."""
    whole = schema_for(kind).model_json_schema()
    whole["required"].remove("name")  # by default the file's
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole}


def whole_schema() -> dict[str, Any]:
    """Returns the JSON Schema of any config file: that of one of the kinds."""
    kinds = [schema(kind) for kind in TASKS]
    definitions = {name: one for kind in kinds for name, one in kind.pop("$defs", {}).items()}
    dialects = [kind.pop("$schema") for kind in kinds]
    return {"$schema": dialects[0], "oneOf": kinds, "$defs": definitions}


def markdown() -> str:
    """Returns the page: a section for every mapping of a config, a table of keys in each; once where kinds share it."""
    done: set[str] = set()
    sections: list[str] = []
    for kind in TASKS:
        whole = schema(kind)
        title = "Top level" if kind == "simulate" else f"Top level of `kind: {kind}`"
        sections += _sections(title, "", whole, whole.get("$defs", {}), done)
    return "\n\n".join(part.strip() for part in (INTRODUCTION, *sections) if part.strip()) + "\n"


def _sections(title: str, path: str, node: Node, definitions: Node, done: set[str]) -> Iterator[str]:
    """Yields the section of one mapping, or of all kinds that it may be, and then those inside it; each once."""
    kinds = [_resolved(one, definitions) for one in node.get("oneOf", [])] or [node]
    kinds = [kind for kind in kinds if kind.get("title") != OUTSIDE]
    key = json.dumps(kinds, sort_keys=True)
    if key in done:
        return
    done.add(key)
    yield f"## {title}"
    if not kinds:
        yield "No kind of it is built in; `kind: my_module:MyKind` loads yours."
        return
    is_kind = "oneOf" in node
    shared = _shared(kinds)
    for kind in kinds:
        if is_kind:
            yield f"### `kind: {kind['properties']['kind']['const']}`"
        yield kind.get("description", "").split(">>>")[0] if path else ""
        yield _table(kind, {*shared, "kind"} if is_kind else set(), definitions)
    if shared:
        yield f"### Keys of every kind of {title}"
        yield _table(kinds[0], set(kinds[0]["properties"]) - shared, definitions)
    for kind in kinds:
        for name, field in kind["properties"].items():
            inner = f"{path}.{name}".lstrip(".")
            for mapping in _mappings(field, definitions):
                yield from _sections(f"`{inner}`", inner, mapping, definitions, done)


def _shared(kinds: list[Node]) -> set[str]:
    """The keys that all kinds have, with the same meaning and default."""
    if len(kinds) == 1:
        return set()
    first = kinds[0]["properties"]
    return {key for key in first if key != "kind" and all(kind["properties"].get(key) == first[key] for kind in kinds)}


def _table(kind: Node, hidden: set[str], definitions: Node) -> str:
    rows = []
    for name, field in kind["properties"].items():
        if name not in hidden:
            default = "required" if name in kind.get("required", []) else _default(field)
            rows.append((f"`{name}`", _type(field, definitions), _unit(name), default, field.get("description", "")))
    return markdown_table(("key", "value", "unit", "default", "meaning"), rows, num_left=5) if rows else ""


def _unit(key: str) -> str:
    """The unit that a key ends in; numbers without one are counts, shares and factors."""
    return next((unit for ending, unit in UNITS.items() if key.endswith(ending)), "")


def _default(field: Node) -> str:
    if "const" in field:
        return ""
    return f"`{shown(field['default'])}`" if "default" in field else "see below"


def _type(field: Node, definitions: Node) -> str:
    """What may be written, with its range."""
    if "const" in field or "enum" in field:
        words = field["enum"] if "enum" in field else [field["const"]]
        return ", ".join(f"`{word}`" for word in words)
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(one, definitions) for one in field["anyOf"]))
    if "$ref" in field or "oneOf" in field or "properties" in field:
        return "mapping"
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}), definitions)}"
    values = [*field.get("patternProperties", {}).values(), field.get("additionalProperties")]
    values = [{} if one is True else one for one in values if one]
    if values:
        return f"mapping to {_type(values[0], definitions)}"
    words = {"number": "number", "integer": "whole number", "boolean": "true or false", "string": "text", "null": "null"}
    limits = [f"{sign} {field[name]:g}" for name, sign in LIMITS.items() if name in field]
    return " ".join([words.get(field.get("type", ""), "anything"), ", ".join(limits)]).strip()


def _mappings(field: Node, definitions: Node) -> Iterator[Node]:
    """Yields the mappings that a field may hold, directly, as one of several, or as the items of a list."""
    field = _resolved(field, definitions)
    if "oneOf" in field or "properties" in field:
        yield field
        return
    inside = [*field.get("anyOf", []), field.get("items"), field.get("additionalProperties")]
    for one in inside:
        if isinstance(one, dict):
            yield from _mappings(one, definitions)


def _resolved(field: Node, definitions: Node) -> Node:
    found: Node = definitions[field["$ref"].split("/")[-1]] if "$ref" in field else field
    return found


if __name__ == "__main__":
    print(markdown(), end="")
