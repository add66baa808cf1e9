"""One seed, many independent named streams, so that two policies compared see the same traffic."""

import hashlib

import numpy as np


def stream(seed: int, name: str) -> np.random.Generator:
    """Returns the generator of sub-stream `name`; it depends on nothing but (seed, name).

    >>> bool(stream(1, "arrivals").random() == stream(1, "arrivals").random())
    True
    >>> bool(stream(1, "arrivals").random() == stream(1, "lengths").random())
    False
    """
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    words = np.frombuffer(digest, dtype=np.uint32).tolist()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *words])))
