"""A rate limit in tokens, not requests: reserve what a request may take, and settle with what it took."""

from dataclasses import dataclass

from sim.checks import check_not_negative, check_positive


@dataclass
class TokenBucket:
    """A bucket that fills at a steady rate up to its capacity; it starts full.

    A request reserves prompt and max_tokens when it comes, because its length is not known, and reconciles when it ends. A
    request that took more than it reserved can bring the bucket below zero: then nothing is let in until that is paid off.
    Time is the caller's: any clock that never runs backwards, in seconds.

    Args:
        tokens_per_s: at which it fills.
        capacity_tokens: the largest burst.

    Source: `TokenBucketLimiter` of the second text, The gateway.

    >>> bucket = TokenBucket(tokens_per_s=10.0, capacity_tokens=100.0)
    >>> bucket.try_reserve(80, now_s=0.0), bucket.try_reserve(80, now_s=1.0)
    (True, False)
    >>> bucket.reconcile(80, 20, now_s=1.0)  # the answer was short
    >>> bucket.try_reserve(80, now_s=1.0)
    True

    Raises:
        ValueError: a rate or capacity is not positive.
    """

    tokens_per_s: float
    capacity_tokens: float

    def __post_init__(self) -> None:
        check_positive("tokens_per_s", self.tokens_per_s)
        check_positive("capacity_tokens", self.capacity_tokens)
        self.level_tokens = self.capacity_tokens
        self.filled_at_s = 0.0

    def try_reserve(self, num_tokens: float, now_s: float) -> bool:
        """Takes the tokens if they are there; False leaves them, and the client gets a 429.

        Raises:
            ValueError: a number is negative or not finite, or time runs backwards.
        """
        check_not_negative("num_tokens", num_tokens)
        self._fill(now_s)
        if num_tokens > self.level_tokens:
            return False
        self.level_tokens -= num_tokens
        return True

    def reconcile(self, reserved_tokens: float, used_tokens: float, now_s: float) -> None:
        """Gives back what was reserved and not used, up to the capacity, or takes what was used and not reserved.

        Raises:
            ValueError: as `try_reserve`.
        """
        check_not_negative("reserved_tokens", reserved_tokens)
        check_not_negative("used_tokens", used_tokens)
        self._fill(now_s)
        self.level_tokens = min(self.capacity_tokens, self.level_tokens + reserved_tokens - used_tokens)

    def wait_s(self, num_tokens: float, now_s: float) -> float:
        """Returns how long until so many tokens are there, for Retry-After; inf if they never will be."""
        check_not_negative("num_tokens", num_tokens)
        self._fill(now_s)
        if num_tokens > self.capacity_tokens:
            return float("inf")
        return max(0.0, num_tokens - self.level_tokens) / self.tokens_per_s

    def _fill(self, now_s: float) -> None:
        if not self.filled_at_s <= now_s < float("inf"):
            raise ValueError(f"now_s must not run backwards: was {self.filled_at_s!r}, got {now_s!r}")
        filled = self.level_tokens + (now_s - self.filled_at_s) * self.tokens_per_s
        self.level_tokens, self.filled_at_s = min(self.capacity_tokens, filled), now_s
