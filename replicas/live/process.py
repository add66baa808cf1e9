"""A live replica as a SimPy process: step the engine, measure, let so much time pass, hand out the tokens."""

from collections.abc import Callable, Generator
from typing import Any

import simpy

from replicas.live.books import Books
from replicas.live.interface import LiveEngine, Step
from replicas.live.tokens import TokenStreams
from sim.errors import InvariantError

AUDIT_STEPS = 256
"""Steps between two counts of the engine's blocks; it is also counted whenever the engine runs dry."""

Watch = Callable[["LiveReplica", float, Step], None]
"""(replica, instant the step began, step): what looks on while a live replica runs."""


class LiveReplica:
    """One engine in one slot of the fleet, from `open` to `vacate`.

    Args:
        env: owner of the clock.
        books: the slot's records.
        engine: the engine, started.
        streams: where the ids of its tokens come from; shared by all replicas that share content.
        priorities: (num_classes,) priority of each class; None = the engine serves in order of arrival.
        tell_drained: called with the slot when a draining engine has served its last request.
        watches: are shown every step.
    """

    def __init__(
        self,
        env: simpy.Environment,
        books: Books,
        engine: LiveEngine,
        streams: TokenStreams,
        priorities: Any = None,
        tell_drained: Callable[[int], None] = lambda slot: None,
        watches: list[Watch] | None = None,
    ) -> None:
        self.env, self.books, self.engine, self.streams = env, books, engine, streams
        self.priorities, self.tell_drained, self.watches = priorities, tell_drained, watches or []
        self.is_over = False
        self.given: list[int] = []  # requests that the engine was given since its last step began
        self._woken = env.event()
        self._num_blocks = engine.limits.num_gpu_blocks - 1  # without vLLM's null block
        self._output_starts: dict[int, int] = {}  # request -> position of its next output token
        env.process(self.serve())

    def wake(self) -> None:
        """Tells an idle replica that a request waits."""
        self.books.sleep()
        if not self._woken.triggered:
            self._woken.succeed()

    def stop(self) -> None:
        """Ends the process and the engine where they are; a step in flight yields nothing more."""
        self.is_over = True
        self.engine.shut_down()

    def serve(self) -> Generator[Any, Any, None]:
        """The life of the replica: steps while there is work, sleeps while there is none."""
        num_steps = 0
        while not self.is_over:
            self.give_new_requests()
            began_at_s = self.env.now
            if not self.engine.has_work():
                yield from self._sleep()
                began_at_s = float(self.books.replica.woken_at_s)
                continue_with = not self.is_over and self.give_new_requests()
                if not continue_with:
                    continue
            step = self.engine.step()
            self.books.begin(step, began_at_s)
            for watch in self.watches:
                watch(self, began_at_s, step)
            self.given = []
            yield self.env.timeout(step.lasted_s)
            if self.is_over:
                return
            self.take_answers(step)
            self.books.end(step, self.env.now)
            num_steps += 1
            if num_steps % AUDIT_STEPS == 0 or not self.engine.has_work():
                self.audit()

    def _sleep(self) -> Generator[Any, Any, None]:
        if self.books.replica.is_draining and self.books.load.num_waiting == 0:
            self.tell_drained(self.books.slot)
        self._woken = self.env.event()
        yield self._woken

    def give_new_requests(self) -> int:
        """Gives the engine what has come since it last looked, between two steps; returns how many."""
        new = self.books.take_new()
        if new:
            self.books.sleep()
        for i in new:
            request, segments = self.books.request(i), self.books.segments(i)
            num_known = int(request.num_prompt_tokens) + int(request.num_generated_tokens)
            num_left = int(request.num_output_tokens) - int(request.num_generated_tokens)
            priority = 0 if self.priorities is None else int(self.priorities[request.class_id])
            self.engine.add(i, self.streams.prompt(i, segments, num_known), num_left, priority)
            self._output_starts[i] = num_known
            self.given.append(i)
        return len(new)

    def take_answers(self, step: Step) -> None:
        """Keeps what the engine said where a later prompt may contain it."""
        for i, tokens in step.tokens.items():
            self.streams.remember(self.books.segments(i), self._output_starts[i], tokens)
            self._output_starts[i] += len(tokens)
        for i in (*step.finished, *step.failed):
            del self._output_starts[i]

    def audit(self) -> None:
        """Counts the engine's blocks one by one (invariant 4)."""
        num_held, num_free = self.engine.count_blocks()
        if num_held + num_free != self._num_blocks:
            raise InvariantError(
                f"invariant 4: blocks of the engine in slot {self.books.slot} at {self.env.now} s: "
                f"{num_held} held and {num_free} free, expected {self._num_blocks} together"
            )
