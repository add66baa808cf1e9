"""Names of classes that turn up in a file."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from sim.errors import TraceError
from traces.ids import as_text
from traces.shown import cut

MAX_CLASSES = 1000
"""Assumption: results are reported for each class, and nobody reads more."""


class Labels:
    """Numbers labels in the order in which they first appear, so that two passes over a file agree."""

    def __init__(self, path: str, known: Sequence[str] = ()) -> None:
        """Begins with the labels that are known, by number."""
        self._path = path
        self._ids = {label: number for number, label in enumerate(known)}
        self._most = MAX_CLASSES + len(known)

    def ids(self, column: Any) -> NDArray[np.int64]:
        """Returns the number of each cell's label, an empty cell's being that of `default`.

        Raises:
            TraceError: so many labels that they cannot be classes.
        """
        text = pc.fill_null(as_text(column), "default")
        encoded = pc.dictionary_encode(text)
        here = [self._ids.setdefault(label, len(self._ids)) for label in encoded.dictionary.to_pylist()]
        if len(self._ids) > self._most:
            some = ", ".join(map(cut, list(self._ids)[:3]))
            raise TraceError(
                f"{self._path}: columns.class_name names a column of more than {MAX_CLASSES:,} different values "
                f"({some}, ...); a class is a kind of request, not one request"
            )
        return np.array(here, np.int64)[encoded.indices.to_numpy()] if here else np.empty(0, np.int64)

    @property
    def names(self) -> tuple[str, ...]:
        """The labels met so far, by number; `default` alone when there are none."""
        return tuple(self._ids) or ("default",)
