"""What a forecaster has seen: the cumulative count of arrivals, at each tick."""

from bisect import bisect_right


class Arrivals:
    """Arrivals by time, kept for `memory_s`; the rate of any span between ticks comes from it by interpolation.

    The hours before the first request are no data: they say when the experiment began, not how busy a day is. A quiet
    hour after that is data.

    >>> seen = Arrivals(memory_s=3600.0)
    >>> for now_s, num_arrived in [(0, 0), (3600, 0), (3660, 120), (3720, 120)]:
    ...     seen.observe(now_s, num_arrived)
    >>> seen.first_s, seen.rate_per_s(3600, 3660), seen.rate_per_s(3630, 3720)
    (3600, 2.0, 0.6666666666666666)
    """

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._times_s: list[float] = []
        self._counts: list[int] = []

    def observe(self, now_s: float, num_arrived: int) -> None:
        """Adds the count since the start of the run; a second look at the same instant replaces the first."""
        if self._times_s and self._times_s[-1] == now_s:
            self._counts[-1] = num_arrived
            return
        if len(self._counts) == 1 and self._counts[0] == num_arrived:
            self._times_s[0] = now_s  # still idle, nothing learnt
            return
        self._times_s.append(now_s)
        self._counts.append(num_arrived)
        num_forgotten = bisect_right(self._times_s, now_s - self._memory_s) - 1
        if num_forgotten > 0:
            del self._times_s[:num_forgotten], self._counts[:num_forgotten]

    @property
    def is_empty(self) -> bool:
        """Whether no rate can be told yet."""
        return len(self._times_s) < 2

    @property
    def first_s(self) -> float:
        """The start of what is remembered."""
        return self._times_s[0]

    @property
    def last_s(self) -> float:
        """The last tick."""
        return self._times_s[-1]

    def rate_per_s(self, start_s: float, end_s: float) -> float:
        """Returns the mean arrival rate over the remembered part of [start_s, end_s]; 0.0 where that is empty."""
        start_s, end_s = max(start_s, self.first_s), min(end_s, self.last_s)
        if end_s <= start_s:
            return 0.0
        return max(0.0, (self._count_at(end_s) - self._count_at(start_s)) / (end_s - start_s))

    def _count_at(self, at_s: float) -> float:
        right = min(bisect_right(self._times_s, at_s), len(self._times_s) - 1)
        left_s, right_s = self._times_s[right - 1], self._times_s[right]
        left, count = self._counts[right - 1], self._counts[right]
        return left + (count - left) * (at_s - left_s) / (right_s - left_s)
