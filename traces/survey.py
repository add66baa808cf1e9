"""What a recorded file holds, found in one pass before the run."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.records import ARRIVAL
from traces.traffic import SAMPLE_ROWS, Arrivals


@dataclass(frozen=True)
class Survey:
    """Totals of a file's requests, and how many came by each whole second: eight bytes a second, whatever the rows.

    And a sample: all the rows, or every second, every fourth, ... of them.
    """

    num_requests: int
    last_at_s: float
    mean_prompt_tokens: float
    mean_output_tokens: float
    arrived_by_second: NDArray[np.float64]  # [i]: requests in [0, i) seconds; ends with all of them
    sample: Arrivals  # (n,) evenly spaced, n at most SAMPLE_ROWS

    def arrived_by(self, at_s: float) -> float:
        """Returns the requests in [0, at_s): exact at whole seconds and from the last one on, in proportion in between."""
        if at_s <= 0 or at_s >= self.last_at_s:
            return float(self.num_requests) if at_s > 0 else 0.0
        second = int(at_s)
        before, after = self.arrived_by_second[second : second + 2]
        width_s = min(1.0, self.last_at_s - second)  # the last second ends with the last request
        return float(before + (after - before) * (at_s - second) / width_s)


def survey(chunks: Iterator[Arrivals]) -> Survey:
    """Reads all arrivals, times in the file's own seconds, and sums them up."""
    num_requests, last_at_s, prompt_tokens, output_tokens = 0, 0.0, 0, 0
    per_second = np.zeros(1, np.int64)
    sample, stride = np.empty(0, ARRIVAL), 1
    for rows in chunks:
        if len(rows) == 0:
            continue
        sample = np.concatenate([sample, rows[-num_requests % stride :: stride]])
        while len(sample) > SAMPLE_ROWS:
            sample, stride = sample[::2], 2 * stride
        num_requests += len(rows)
        last_at_s = float(rows["arrived_at_s"][-1])
        prompt_tokens += int(rows["num_prompt_tokens"].sum())
        output_tokens += int(rows["num_output_tokens"].sum())
        if last_at_s >= len(per_second):
            per_second = np.concatenate([per_second, np.zeros(int(last_at_s) + 1, np.int64)])  # at least doubles: O(n)
        first_second = int(rows["arrived_at_s"][0])
        added = np.bincount(rows["arrived_at_s"].astype(np.int64) - first_second)
        per_second[first_second : first_second + len(added)] += added
    by_second = np.concatenate([[0], np.cumsum(per_second[: int(last_at_s) + 1])]).astype(np.float64)
    return Survey(
        num_requests,
        last_at_s,
        prompt_tokens / max(num_requests, 1),
        output_tokens / max(num_requests, 1),
        by_second,
        sample,
    )
