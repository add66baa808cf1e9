"""More or fewer of recorded requests, keeping the trace's rhythm."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from sim.randomness import stream
from traces.traffic import CHUNK_ROWS, Arrivals, count


def repeat(
    chunks: Iterator[Arrivals], rate_scale: float, seed: int, counts: Counter[str], *, copies_have_segments: bool = False
) -> Iterator[Arrivals]:
    """Yields every arrival `rate_scale` times on average.

    The whole part of `rate_scale` is the number of times an arrival comes for certain, the fraction is the chance of once
    more (an independent coin; below 1 this is thinning). The first comes at its own instant; each further one, with the
    same lengths, at a uniformly chosen instant before the next arrival of the trace, so that bursts and holes stay where
    they are. The last arrival's copies come with it. Sub-streams: rate_scale, rate_scale_instants.

    `counts` gets `dropped_by_rate_scale` and `copied`. With `copies_have_segments`, the segments of a row are followed by
    those of its first copy, its second and so on; otherwise a copy has the segments of its original.
    """
    if rate_scale == 1:
        yield from chunks
        return
    coins, instants = stream(seed, "rate_scale"), stream(seed, "rate_scale_instants")
    for rows, next_at_s in _with_next(_pieces(chunks, max(1, int(CHUNK_ROWS / rate_scale)))):
        times = np.full(len(rows), int(rate_scale)) + (coins.random(len(rows)) < rate_scale % 1)
        count(counts, "dropped_by_rate_scale", int(np.count_nonzero(times == 0)))
        source = np.repeat(np.arange(len(rows)), times)
        is_copy = np.concatenate([[False], source[1:] == source[:-1]])[: len(source)]
        count(counts, "copied", int(np.count_nonzero(is_copy)))
        at_s = rows["arrived_at_s"][source]
        at_s[is_copy] += (next_at_s[source] - at_s)[is_copy] * instants.random(np.count_nonzero(is_copy))
        repeated = rows[source]
        repeated["arrived_at_s"] = np.sort(at_s)  # no copy passes the next arrival, and copies are alike but for their times
        if copies_have_segments:
            copy = np.arange(len(source)) - np.repeat(np.cumsum(times) - times, times)
            repeated["first_segment"] += copy * repeated["num_segments"]
        yield repeated


def _pieces(chunks: Iterator[Arrivals], num_rows: int) -> Iterator[Arrivals]:
    for rows in chunks:
        for first in range(0, len(rows), num_rows):
            yield rows[first : first + num_rows]


def _with_next(chunks: Iterator[Arrivals]) -> Iterator[tuple[Arrivals, Arrivals]]:
    """Pairs rows with the instant of the arrival after each, holding the last row back until that is known."""
    held: Arrivals | None = None
    for rows in chunks:
        known = rows if held is None else np.concatenate([held, rows])
        held = known[-1:].copy()
        if len(known) > 1:
            yield known[:-1], known["arrived_at_s"][1:]
    if held is not None:
        yield held, held["arrived_at_s"]
