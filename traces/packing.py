"""A sample of requests as text, kept in a file's metadata."""

import base64
import zlib

import numpy as np

from sim.records import ARRIVAL
from traces.traffic import Arrivals

_SAMPLED = ("class_id", "num_prompt_tokens", "num_output_tokens")


def packed(sample: Arrivals) -> str:
    """Returns the classes and lengths of a sample as text: some 4 bytes a request."""
    columns = [sample[name].astype("<i4").tobytes() for name in _SAMPLED]
    return base64.b64encode(zlib.compress(b"".join(columns))).decode("ascii")


def unpacked(text: str) -> Arrivals:
    """Returns the sample that `packed` was given, all at 0."""
    columns = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i4").reshape(len(_SAMPLED), -1)
    rows = np.zeros(columns.shape[1], ARRIVAL)
    for name, values in zip(_SAMPLED, columns, strict=True):
        rows[name] = values
    return rows
