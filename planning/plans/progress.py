"""How much work the trials of a plan are, said before it is done, and how far they have got."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

LONG_REQUESTS = 1_000_000
"""Requests to simulate from which on a line says so beforehand, where no terminal shows a bar."""

LONG_S = 10.0
"""Seconds from which on a second line says how long it is going to take, once one simulation has been timed."""


@dataclass
class Progress:
    """Counts simulations: a bar in a terminal; elsewhere a line ahead of long work, and its duration after the first of it.

    How many there will be is a guess, as a bisection stops when it knows.
    """

    name: str = ""
    shows_bar: bool = False
    line: int = 0  # of the terminal, where several runs share it
    is_silent: bool = False
    _bar: Any = field(default=None, repr=False)
    _untimed: int = 0  # simulations expected, until the first has been timed

    def expect(self, what: str, num_trials: int, num_requests: int) -> None:
        """Says that some `num_trials` simulations of `num_requests` requests each are ahead."""
        if self.is_silent:
            return
        if self.shows_bar:
            self.close()
            layout = "{desc}: {n_fmt} of some {total_fmt} simulations, {postfix}"
            self._bar = tqdm(total=num_trials, desc=f"{self.name}: {what}", bar_format=layout, position=self.line, leave=False)
            return
        self._untimed = num_trials
        if num_trials * num_requests >= LONG_REQUESTS:
            print(f"{self.name}: {what}: some {num_trials} simulations of {num_requests:,} requests each", file=sys.stderr)

    @contextmanager
    def one(self, what: str) -> Iterator[None]:
        """Wraps one simulation."""
        if self._bar is not None:
            self._bar.set_postfix_str(what)
        started = time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        if self._bar is not None:
            self._bar.update()
        elif self._untimed and not self.is_silent:
            if seconds * self._untimed >= LONG_S:
                about = f"about {seconds * self._untimed:,.0f} s in all"
                print(f"{self.name}: the first took {seconds:.1f} s, so {about}", file=sys.stderr)
            self._untimed = 0

    def close(self) -> None:
        """Clears the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


SILENT = Progress(is_silent=True)
