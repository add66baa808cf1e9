"""Time rescaling: a process of rate one, pulled back through a cumulative rate, has exactly that rate."""

import numpy as np

from traces.rates import DAY_S, Floats, Rate

# Newton's method squares the distance to the root. Between knots 10 s apart the straight line starts within
# (10 s)^2 rate' / (8 rate), 1 ms on an ordinary day, so that one step lands within 1e-10 s. Finer knots would not
# pay; the few arrivals that a single step misses are found by bisection.
KNOT_S = 10.0
MAX_KNOTS = 1_000_000


class Rescaling:
    """The inverse of a rate's expected count, for the times in [0, duration_s).

    Source: Brown et al. (2002), The time-rescaling theorem; Cinlar (1975) for the inversion.
    """

    def __init__(self, rate: Rate, duration_s: float) -> None:
        self._rate, self._duration_s = rate, duration_s
        num_knots = int(np.clip(np.ceil(duration_s / KNOT_S), 64, MAX_KNOTS)) + 1
        all_breaks = rate.breaks_s(duration_s)
        breaks = all_breaks[(all_breaks > 0) & (all_breaks < duration_s)]
        self._knots_s = np.unique(np.concatenate([np.linspace(0.0, duration_s, num_knots), breaks]))
        self._expected = np.maximum.accumulate(rate.expected(self._knots_s))
        # What floats can tell apart, in arrivals: the rounding of the count, and that of the instant (or of the hour of
        # the day) times the rate.
        largest_per_s = float(rate.per_s(np.concatenate([self._knots_s, all_breaks])).max())
        self._tolerance = 4 * np.finfo(np.float64).eps * (self.total + largest_per_s * max(duration_s, DAY_S))

    @property
    def total(self) -> float:
        """Arrivals expected in the whole duration."""
        return float(self._expected[-1])

    def instants(self, ticks: Floats) -> Floats:
        """Returns when the expected count reaches each tick; where it rests on a tick, the end of the rest.

        Each answer depends on its tick alone, so that chunks do not matter; two that lie closer than the rounding may
        change places.

        Args:
            ticks: sorted, in [0, total), shape (n,).
        """
        at_s = np.interp(ticks, self._expected, self._knots_s)
        with np.errstate(divide="ignore", invalid="ignore"):  # a rate of 0: NaN or inf, sent to bisection below
            at_s -= (self._rate.expected(at_s) - ticks) / self._rate.per_s(at_s)
            at_s = np.where((at_s >= 0) & (at_s < self._duration_s), at_s, np.nan)
        at_zero = np.where(np.isnan(at_s), 0.0, at_s)
        missed = np.isnan(at_s) | (np.abs(self._rate.expected(at_zero) - ticks) > self._tolerance)
        if missed.any():
            at_s[missed] = self._bisected(ticks[missed])
        return at_s

    def _bisected(self, ticks: Floats) -> Floats:
        """Newton's method, kept between two knots: a step that would leave them is replaced by halving."""
        cell = np.clip(np.searchsorted(self._expected, ticks, side="right") - 1, 0, len(self._knots_s) - 2)
        low_s, high_s = self._knots_s[cell], self._knots_s[cell + 1]
        last_s = np.nextafter(self._duration_s, 0.0)
        at_s = np.minimum(np.interp(ticks, self._expected, self._knots_s), last_s)
        for _ in range(200):
            excess = self._rate.expected(at_s) - ticks
            is_open = np.abs(excess) > self._tolerance
            if not is_open.any():
                break
            low_s, high_s = np.where(excess > 0, low_s, at_s), np.where(excess > 0, at_s, high_s)
            with np.errstate(divide="ignore", invalid="ignore"):
                newton_s = at_s - excess / self._rate.per_s(at_s)
            is_inside = (newton_s > low_s) & (newton_s < high_s)
            at_s = np.where(is_open, np.where(is_inside, newton_s, (low_s + high_s) / 2), at_s)
        return np.minimum(at_s, last_s)
