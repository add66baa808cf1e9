"""One small change, and what becomes of it."""

import ast
import difflib
from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """A change to one file, and the arguments of pytest that must notice it."""

    file: str  # from the root of the project
    source: str  # the whole file, changed
    said: str  # the lines that differ, for people
    tests: tuple[str, ...]
    is_compiled: bool = False  # then the tests run it as plain Python: compiling each change anew takes minutes


class Verdict(NamedTuple):
    """What the tests said of a mutant."""

    mutant: Mutant
    is_killed: bool
    seconds: float


class Change(NamedTuple):
    """A mutant as a person writes it down: a text that stands once in a file, and what takes its place."""

    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    is_compiled: bool = False


def applied(root: Path, change: Change) -> Mutant:
    """Returns the mutant that a change makes of the file as it is now.

    Raises:
        ValueError: the text does not stand there once, or what comes out is no Python.
    """
    path = root / change.file
    source = path.read_text(encoding="utf-8") if path.exists() else ""
    if source.count(change.before) != 1:
        raise ValueError(f"{change.file}: stands there {source.count(change.before)} times, not once: {change.before!r}")
    changed = source.replace(change.before, change.after)
    try:
        ast.parse(changed)
    except SyntaxError as error:
        raise ValueError(f"{change.file}: {change.after!r} is no Python there: {error}") from error
    return Mutant(change.file, changed, lines_that_differ(source, changed), change.tests, change.is_compiled)


def is_compiled(source: str) -> bool:
    """Tells whether a module holds compiled code, of which every change would be minutes of compiling."""
    return any(f"@{decorator}" in source for decorator in ("loop", "rare", "router", "verb"))


def lines_that_differ(before: str, after: str) -> str:
    """Returns the lines of two sources that differ, on one line.

    >>> lines_that_differ("a = 1", "a = 2")
    '- a = 1 + a = 2'
    """
    found = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return " ".join(f"{line[0]} {line[1:].strip()}" for line in list(found)[3:] if line[0] in "+-")
