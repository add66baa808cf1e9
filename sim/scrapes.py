"""What is read off one pool: gauges and counters at an instant, and those before for as long as its policy looks back."""

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np

from sim.views import ROUNDING_S, History, PoolView, read_only


class Scrapes:
    """The views of one pool that its policy may still be shown.

    Args:
        past_s: how far back that is. 0 = the latest alone; latencies are then not kept either.
    """

    def __init__(self, past_s: float) -> None:
        self.past_s = past_s
        self.kept: deque[PoolView] = deque()
        self._before: list[Any] | None = None  # counts of latencies at the scrape before

    def add(self, view: PoolView, latency_counts: list[Any]) -> None:
        """Keeps what has been read just now.

        Args:
            view: without a history.
            latency_counts: for each of LATENCIES, (num_bins,) since the start of the run.
        """
        if self.past_s > 0:
            view = replace(view, latencies=self._since_before(latency_counts))
        self.kept.append(view)
        while len(self.kept) > 1 and self.kept[0].scraped_at_s < view.scraped_at_s - self.past_s - ROUNDING_S:
            self.kept.popleft()

    def _since_before(self, latency_counts: list[Any]) -> Any:
        """Which bins have grown since the scrape before, and by how much: few of them."""
        before = self._before or [np.zeros_like(counts) for counts in latency_counts]
        self._before = [counts.copy() for counts in latency_counts]
        grown = []
        for counts, earlier in zip(self._before, before, strict=True):
            bins = np.flatnonzero(counts != earlier)
            grown.append((read_only(bins), read_only(counts[bins] - earlier[bins])))
        return tuple(grown)

    def shown(self, live: PoolView) -> PoolView:
        """Returns the latest scrape as it looks now: the machines are those of `live`, and it grows older."""
        return replace(
            self.kept[-1],
            now_s=live.now_s,
            num_ready=live.num_ready,
            num_starting=live.num_starting,
            num_draining=live.num_draining,
            history=History(self.past_s, tuple(self.kept)) if self.past_s > 0 else History(),
        )
