"""Tables of what `kind` can be in a config."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


class Kinds(Mapping[str, T]):
    """Maps the kinds of one thing to their classes; one that is given by its place is imported when it is first asked for.

    A config names few of all kinds that there are, and must not wait for the others to be imported.

    Args:
        entries: kind -> the class, or `module:class`.

    >>> numbers = Kinds[type]({"whole": int, "fraction": "fractions:Fraction"})
    >>> numbers["fraction"](1, 2), numbers.kind_of(int), numbers.kind_of(float)
    (Fraction(1, 2), 'whole', None)
    """

    def __init__(self, entries: Mapping[str, T | str]) -> None:
        self._entries = dict(entries)

    def __getitem__(self, kind: str) -> T:
        entry = self._entries[kind]
        if not isinstance(entry, str):
            return entry
        module, _, name = entry.partition(":")
        found: T = getattr(import_module(module), name)
        return found

    def __contains__(self, kind: object) -> bool:
        return kind in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def kind_of(self, found: type[Any]) -> str | None:
        """Returns what a class is called in the table, which need not be imported for that; None where it is not in it."""
        place = f"{found.__module__}:{found.__qualname__}"
        return next((kind for kind, entry in self._entries.items() if entry is found or entry == place), None)
