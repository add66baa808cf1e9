"""Walks a config, alone and next to the classes that describe it: which keys may stand where."""

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Path = tuple[str | int, ...]


def dotted(data: Any, path: Path) -> str:
    """Writes a path as users do, list items by their name.

    >>> dotted({"pools": [{"name": "main"}]}, ("pools", 0, "autoscaler"))
    'pools.main.autoscaler'
    """
    words = ""
    for part in path:
        name = _own_name(data, part)
        words += f"[{part}]" if isinstance(part, int) and name is None else f".{name or part}"
        data = step(data, part)
    return words.lstrip(".")


def _own_name(data: Any, part: str | int) -> str | None:
    """The name of a list's item, where it tells it from the others."""
    names = [item.get("name") if isinstance(item, Mapping) else None for item in data] if isinstance(data, list) else []
    name = names[part] if isinstance(part, int) and part < len(names) else None
    return name if isinstance(name, str) and names.count(name) == 1 else None


def step(data: Any, part: str | int) -> Any:
    """Returns what stands at one key or index; None when nothing does."""
    if isinstance(data, Mapping):
        return data.get(part)
    if isinstance(data, list) and isinstance(part, int) and part < len(data):
        return data[part]
    return None


@dataclass(frozen=True)
class Section:
    """One mapping of a config: where it is, and the fields it may hold."""

    path: Path
    fields: dict[str, FieldInfo]
    is_kind: bool  # `kind` is one of its keys too

    @property
    def keys(self) -> list[str]:
        """All keys, in the order of the classes."""
        return (["kind"] if self.is_kind and "kind" not in self.fields else []) + list(self.fields)


def sections(schema: type[BaseModel], data: object, path: Path = ()) -> Iterator[Section]:
    """Yields every section of `data`, and the absent ones that it could have; outer ones first.

    Args:
        schema: the class of the whole.
        data: the config as read from YAML, possibly wrong anywhere.
        path: where `data` stands in the whole.
    """
    return _of_models([schema], data, path, False)


def section_at(schema: type[BaseModel], data: object, path: Path) -> Section | None:
    """Returns the section whose mapping stands at `path`, all alternatives merged; None where no class describes it."""
    found = [section for section in sections(schema, data) if section.path == path]
    if not found:
        return None
    fields = {name: field for section in found for name, field in section.fields.items()}
    return Section(path, fields, any(section.is_kind for section in found))


def _of_models(models: Sequence[type[BaseModel]], data: object, path: Path, is_kind: bool) -> Iterator[Section]:
    fields = {name: field for model in models for name, field in model.model_fields.items()}
    if is_kind or models:
        yield Section(path, fields, is_kind)
    for name, field in fields.items():
        value = data.get(name) if isinstance(data, Mapping) else None
        yield from _of_annotation(field.annotation, field.metadata, value, (*path, name))


def _of_annotation(annotation: Any, metadata: list[Any], data: object, path: Path) -> Iterator[Section]:
    for mark in metadata:
        if hasattr(mark, "models"):  # a KindOf
            yield from _of_models(mark.models(data), data, path, True)
            return
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _of_annotation(arguments[0], [*metadata, *arguments[1:]], data, path)
    elif origin in (typing.Union, types.UnionType):
        for argument in arguments:
            yield from _of_annotation(argument, [], data, path)
    elif origin in (list, tuple):
        for index, item in enumerate(data if isinstance(data, list) else []):
            yield from _of_annotation(arguments[0], [], item, (*path, index))
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        for key, value in (data if isinstance(data, Mapping) else {}).items():
            yield from _of_annotation(arguments[1], [], value, (*path, key))
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _of_models([annotation], data, path, False)
