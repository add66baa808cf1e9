"""Finds what is wrong with a config, all of it at once, each mistake at its place in the user's file."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from experiments.settings.sections import Path, dotted, step
from experiments.settings.wording import WANTED, sentence
from sim.errors import TraceError
from sim.texts import bounded

M = TypeVar("M", bound=BaseModel)

LONGEST_SENTENCE = 1200
"""Characters of what is said of one mistake: the longest list of known keys, whole."""


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong, at one place of a config."""

    path: Path
    where: str
    text: str

    def __str__(self) -> str:
        text = bounded(self.text, LONGEST_SENTENCE)
        return f"{bounded(self.where)}: {text}" if self.where else text


def mistakes_in(schema: type[BaseModel], data: Any, error: ValidationError) -> list[Mistake]:
    """Returns every mistake of one validation, in the order of the config, each once."""
    found: dict[Mistake, None] = {}
    for line in _without_other_branches(error, data):
        path = _place(data, line["loc"], line["type"])
        found[Mistake(path, dotted(data, path), sentence(schema, data, path, line))] = None
    return sorted(found, key=lambda mistake: _position(data, mistake.path))


def validated(schema: type[M], document: Any, where: str) -> M:
    """Returns what a document says that is no file of the user's, but was made of what `where` names.

    Raises:
        TraceError: all that is wrong with it, in one line.
    """
    try:
        return schema.model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise TraceError(
            f"{where}: cannot be simulated: {'; '.join(map(str, mistakes_in(schema, document, error)))}"
        ) from error


def _position(data: Any, path: Path) -> list[int]:
    """Where in the file a path stands; what is missing stands at the end of its section."""
    position = []
    for part in path:
        keys: list[Any] = list(data) if isinstance(data, Mapping) else []
        position.append(part if isinstance(part, int) else keys.index(part) if part in keys else len(keys))
        data = step(data, part)
    return position


def _place(data: Any, loc: Path, kind: str) -> Path:
    """An error's place in the user's file: pydantic's, less the names of classes and alternatives it went through."""
    path: list[str | int] = []
    for index, part in enumerate(loc):
        is_there = (isinstance(data, Mapping) and part in data) or step(data, part) is not None
        is_missing_key = kind in ("missing", "kind") and index == len(loc) - 1
        if is_there or is_missing_key:
            path.append(part)
            data = step(data, part)
    return tuple(path)


def _without_other_branches(error: ValidationError, data: Any) -> Iterator[Any]:
    """Where a value may be of several types, drops the complaints of the types that were clearly not meant."""
    lines = error.errors(include_url=False)
    places = [_place(data, line["loc"], line["type"]) for line in lines]
    pairs = zip(lines, places, strict=True)
    is_other = [_is_wrong_type(line["type"]) and len(place) < len(line["loc"]) for line, place in pairs]
    for index, line in enumerate(lines):
        if not is_other[index]:
            yield line
            continue
        rivals = [i for i, p in enumerate(places) if i != index and p[: len(places[index])] == places[index]]
        if not any(not is_other[i] for i in rivals):
            words = dict.fromkeys(WANTED.get(lines[i]["type"], "something else") for i in sorted([index, *rivals]))
            yield {**line, "type": "alternatives", "wanted": " or ".join(words)}


def _is_wrong_type(kind: str) -> bool:
    return kind in WANTED or kind in ("none_required", "is_instance_of")
