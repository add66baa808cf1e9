"""A surrogate that serves, unseen, what a live replica serves, and how far it is off."""

from typing import Any, NamedTuple

import numpy as np

from replicas.live.interface import Step
from replicas.live.process import LiveReplica
from replicas.plane import DataPlane
from replicas.step_time import step_time
from sim.metrics import NUM_ITL_BINS
from sim.records import ARRIVAL, BATCH, ENGINE, FINISHED, SEGMENT, records
from sim.routing import Routing


class Pair(NamedTuple):
    """One request, served by both: seconds from its routing to its first and last token."""

    request: int
    live_ttft_s: float
    live_e2e_s: float
    shadow_ttft_s: float
    shadow_e2e_s: float


class Shadow:
    """One surrogate beside one live replica. It gets every request at the instant that the live one got it.

    Args:
        engine: (1,) ENGINE, the surrogate's, with the live engine's limits.
        classes: (num_classes,) CLASS.
        routing: any router: there is one replica to choose.

    Attributes:
        pairs: the requests that both have finished, in the order the surrogate was given them.
        steps: (measured, predicted) seconds of each of the live engine's steps.
    """

    def __init__(self, engine: Any, classes: Any, routing: Routing) -> None:
        self._engine = records(ENGINE, 1)
        self._engine[:] = engine
        self._segments: list[Any] = []
        self._plane = DataPlane(
            self._engine, [1], NUM_ITL_BINS, 0.0, routing, classes=classes, segments_of=lambda rows: self._segments.pop()
        )
        self._plane.open(0, 0, 0.0)
        self._plane.fleet.clock[0].is_exhausted = 1  # it never waits for more; what comes is loaded when it comes
        self._requests: list[int] = []  # the surrogate's number -> the simulation's
        self._lives: dict[int, tuple[float, float]] = {}  # finished by the live one
        self._shadows: dict[int, tuple[float, float]] = {}  # finished by the surrogate
        self._first_at_s: dict[int, float] = {}
        self._given_at_s: dict[int, float] = {}
        self.pairs: list[Pair] = []
        self.steps: list[tuple[float, float]] = []

    def watch(self, replica: LiveReplica, began_at_s: float, step: Step) -> None:
        """Takes in a step of the live replica, and lets the surrogate run until it began."""
        for i in replica.given:
            self._give(replica, i)
        self._run_until(began_at_s)
        if step.scheduled and not step.failed:
            self.steps.append((step.lasted_s, self._predicted_s(step)))
        ended_at_s = began_at_s + step.lasted_s
        for i in step.tokens:
            self._first_at_s.setdefault(i, ended_at_s)
        for i in step.finished:
            given_at_s = self._given_at_s.pop(i)
            self._lives[i] = self._first_at_s.pop(i) - given_at_s, ended_at_s - given_at_s
        self._match()

    def finish(self) -> None:
        """Lets the surrogate serve what it still has."""
        self._run_until(np.inf)
        self._match()

    def _give(self, replica: LiveReplica, i: int) -> None:
        request, clock = replica.books.request(i), self._plane.fleet.clock[0]
        row = np.zeros(1, ARRIVAL)
        row["arrived_at_s"] = max(float(request.routed_at_s), float(clock.now_s))
        row["num_prompt_tokens"] = request.num_prompt_tokens + request.num_generated_tokens
        row["num_output_tokens"] = request.num_output_tokens - request.num_generated_tokens
        row["class_id"] = request.class_id
        segments = np.array(replica.books.segments(i), SEGMENT)
        row["num_segments"] = len(segments)
        self._segments.append(segments)
        self._plane.load(row)
        self._requests.append(i)
        self._given_at_s[i] = float(row["arrived_at_s"][0])

    def _run_until(self, until_s: float) -> None:
        self._plane.run_until(until_s)
        for first, rows in self._plane.take_ended():
            for k, row in enumerate(rows, start=first):
                if row["status"] == FINISHED:
                    at_s = row["arrived_at_s"]
                    self._shadows[self._requests[k]] = row["first_token_at_s"] - at_s, row["finished_at_s"] - at_s

    def _match(self) -> None:
        for i in [i for i in self._lives if i in self._shadows]:
            self.pairs.append(Pair(i, *self._lives.pop(i), *self._shadows.pop(i)))

    def _predicted_s(self, step: Step) -> float:
        batch = records(BATCH, 1)[0]
        counts = np.array([(one.num_new_tokens, one.num_computed_tokens) for one in step.scheduled])
        new, computed = counts.T
        batch.num_requests, batch.num_tokens = len(counts), new.sum()
        batch.kv_tokens, batch.attended_tokens = (new + computed).sum(), (new * (computed + new / 2)).sum()
        return float(step_time(batch, self._engine[0]))


def described(name: str, shadow: Shadow) -> str:
    """Returns in one line how far a surrogate is off: signed, simulated less real, relative to real.

    Steps by their total, requests by the median of each one's error.
    """
    parts = []
    if shadow.steps:
        measured, predicted = np.sum(shadow.steps, axis=0)
        parts.append(f"{predicted / measured - 1:+.1%} of {len(shadow.steps):,} steps' time")
    if shadow.pairs:
        pairs = np.array(shadow.pairs)
        ttft, e2e = np.median(pairs[:, 3:] / pairs[:, 1:3] - 1, axis=0)
        parts.append(f"TTFT {ttft:+.1%}, E2E {e2e:+.1%} (median of {len(pairs):,} requests)")
    return f"shadow of {name}: {'; '.join(parts) or 'nothing served yet'}"
