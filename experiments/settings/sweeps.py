"""Changes to a config: `--set path=value` and the combinations of a `sweep`, both by dotted paths with pool names."""

import copy
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from experiments.settings.sections import Path, section_at, step
from experiments.settings.wording import shown
from sim.texts import unknown_name

_DOT = re.compile(r"\.(?!(?<=\bp\d\d\.)\d)")  # a dot, but not the one in p99.9


@dataclass(frozen=True)
class Change:
    """One value for one place."""

    path: str  # as the user wrote it
    value: Any
    label: str = ""  # short, for the name of a run


Point = tuple[Change, ...]
"""One combination of a sweep; empty when nothing is swept."""


def find(data: Any, dotted: str) -> Path:
    """Turns `pools.main.router` into a path of keys and indices; the place itself may be absent.

    Raises:
        ValueError: a list has no such item.

    >>> find({"pools": [{"name": "main"}]}, "pools.main.replicas.max_num_seqs")
    ('pools', 0, 'replicas', 'max_num_seqs')
    """
    path: list[str | int] = []
    for word in _DOT.split(dotted):
        if not word:
            raise ValueError(f"'{dotted}' is not a path such as pools.main.replicas.max_num_seqs")
        part = _item(data, word, ".".join(str(one) for one in path)) if isinstance(data, list) else word
        path.append(part)
        data = step(data, part)
    return tuple(path)


def _item(items: list[Any], word: str, place: str) -> int:
    names = [item.get("name") if isinstance(item, Mapping) else None for item in items]
    if word in names:
        return names.index(word)
    if word.isdigit() and int(word) < len(items):
        return int(word)
    known = list(dict.fromkeys(name for name in names if isinstance(name, str)))
    if not known:
        raise ValueError(f"{place} has {len(items)} items, numbered from 0; there is no '{word}'")
    raise ValueError(unknown_name(f"item of {place}", word, known))


def apply(schema: type[BaseModel], data: Any, change: Change) -> Any:
    """Returns a copy of `data` with one change.

    A mapping is laid over the mapping that is there, key by key. Where it brings another `kind`, the old keys that the
    new kind does not have are left out. Any other value replaces what is there.

    Raises:
        ValueError: the path leads through something that is neither a mapping nor a list.
    """
    data = copy.deepcopy(data)
    path, value = find(data, change.path), change.value
    if path[-1] == "kind" and len(path) > 1:
        path, value = path[:-1], {"kind": value}
    target = data
    for depth, part in enumerate(path[:-1]):
        if isinstance(target, dict) and target.get(part) is None:
            target[part] = {}
        target = target[part]
        if not isinstance(target, (dict, list)):
            place = ".".join(str(one) for one in path[: depth + 1])
            raise ValueError(f"{change.path}: {place} is {shown(target)}, not a mapping")
    target[path[-1]] = laid_over(schema, data, path, value)
    return data


def laid_over(schema: type[BaseModel], data: Any, path: Path, value: Any) -> Any:
    """Returns `value`, or where it and what stands at `path` are mappings, the two combined."""
    base = data
    for part in path:
        base = step(base, part)
    if not (isinstance(value, Mapping) and isinstance(base, Mapping)):
        return copy.deepcopy(value)
    kept = dict(base)
    if "kind" in value and value["kind"] != base.get("kind"):
        section = section_at(schema, _replaced(data, path, {**base, **value}), path)
        kept = {key: one for key, one in base.items() if section is None or key in section.keys}
    for key, one in value.items():
        nested = isinstance(one, Mapping) and isinstance(kept.get(key), Mapping)
        kept[key] = laid_over(schema, data, (*path, key), one) if nested else copy.deepcopy(one)
    return kept


def _replaced(data: Any, path: Path, value: Any) -> Any:
    """A copy of `data` with `value` at an existing path; shares the rest."""
    if not path:
        return value
    inner = _replaced(step(data, path[0]), path[1:], value)
    if isinstance(data, list):
        return [inner if index == path[0] else item for index, item in enumerate(data)]
    return {**data, path[0]: inner}


def points(sweep: Mapping[str, list[Any] | Mapping[str, Any]]) -> Iterator[Point]:
    """Yields every combination, the last axis changing fastest; an axis is a list, or a mapping whose keys are labels.

    >>> [[change.label for change in point] for point in points({"router.kind": ["random", "vllm"], "a.b": [1, 2]})]
    [['random', 'b=1'], ['random', 'b=2'], ['vllm', 'b=1'], ['vllm', 'b=2']]
    """
    axes = []
    for path, axis in sweep.items():
        values = list(axis.values()) if isinstance(axis, Mapping) else axis
        labels = list(axis) if isinstance(axis, Mapping) else _labels(path, values)
        axes.append([Change(path, value, label) for value, label in zip(values, labels, strict=True)])
    return itertools.product(*axes)


def _labels(path: str, values: list[Any]) -> list[str]:
    """The shortest names that tell the values of one axis apart: kinds alone if they differ, else the keys that do."""
    leaf = _DOT.split(path)[-1]
    if leaf == "kind":
        return [str(value) for value in values]
    if not all(isinstance(value, Mapping) for value in values):
        return [f"{leaf}={_word(value)}" for value in values]
    kinds = [value.get("kind") for value in values]
    return [_mapping_label(leaf, value, [v for v, k in zip(values, kinds, strict=True) if k == value.get("kind")])
            for value in values]  # fmt: skip


def _mapping_label(leaf: str, value: Mapping[str, Any], same_kind: list[Mapping[str, Any]]) -> str:
    kind = str(value["kind"]) if "kind" in value else ""
    if len(same_kind) == 1 and kind:
        return kind
    telling = [key for key in value if key != "kind" and any(other.get(key) != value[key] for other in same_kind)]
    words = [f"{key}={_word(value[key])}" for key in telling]
    return ",".join([kind] * bool(kind) + words) or leaf


def _word(value: Any) -> str:
    return shown(value).strip("'\"")


def slug(labels: list[str]) -> str:
    """Returns a folder name made of a run's labels.

    >>> slug(["forecast", "max_num_seqs=64", "seed=2"])
    'forecast,max_num_seqs=64,seed=2'
    >>> slug(["my.module:route", "a={b: 1}"])
    'my.module-route,a=-b-1'
    """
    words = [re.sub(r"[^\w.,=+-]+", "-", label).strip("-.") for label in labels]
    return ",".join(word for word in words if word)[:150]
