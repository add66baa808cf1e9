"""The lowest of the numbers seen within a last stretch of time, without looking at all of them again."""

from collections import deque


class Lowest:
    """A sliding minimum: each number goes in and out once, so that a look costs O(1) on average, whatever the window.

    A number is forgotten as soon as one that is no higher comes after it: that one stays longer and always beats it.

    >>> lowest = Lowest(window_s=30.0)
    >>> [lowest.add(now_s, number) for now_s, number in [(0, 5), (15, 7), (30, 9), (45, 8)]]
    [5, 5, 7, 8]
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._kept: deque[tuple[float, int]] = deque()  # (at_s, number), both rising

    def add(self, now_s: float, number: int) -> int:
        """Adds a number and returns the lowest of those younger than the window, this one included.

        One exactly as old as the window no longer counts. Instants never fall.
        """
        while self._kept and self._kept[-1][1] >= number:
            self._kept.pop()
        self._kept.append((now_s, number))
        while len(self._kept) > 1 and self._kept[0][0] <= now_s - self._window_s:
            self._kept.popleft()
        return self._kept[0][1]
