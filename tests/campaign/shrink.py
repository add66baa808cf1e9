"""Makes a failing config smaller as long as it fails in the same way."""

import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

Path = tuple[Any, ...]


def shrunk(document: Any, still_fails: Callable[[Any], bool], seconds: float = 60.0) -> Any:
    """Returns a smaller config that still fails: every key or item without which it does is left out, until time is up."""
    deadline = time.monotonic() + seconds
    is_changing = True
    while is_changing:
        is_changing = False
        for path in list(paths(document)):
            if time.monotonic() > deadline:
                return document
            smaller = without(document, path)
            if smaller is not None and still_fails(smaller):
                document, is_changing = smaller, True
    return document


def paths(document: Any, before: Path = ()) -> Iterator[Path]:
    """Yields where every key and item is, whole sections before what is in them."""
    keys: list[Any] = list(document) if isinstance(document, dict) else []
    if isinstance(document, list):
        keys = list(reversed(range(len(document))))
    for key in keys:
        yield (*before, key)
    for key in keys:
        yield from paths(document[key], (*before, key))


def without(document: Any, path: Path) -> Any:
    """Returns a copy without what is at `path`; None where nothing is there any more."""
    smaller = deepcopy(document)
    inner = smaller
    try:
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
    except (KeyError, IndexError, TypeError):
        return None
    return smaller
