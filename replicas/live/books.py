"""Keeps one live replica's records: what its engine planned and yielded, in the fields that surrogates fill in compiled code.

Here it is plain Python: between two steps of a real engine there is time. A running request is in phase CATCHING_UP whatever
it does, because that phase keeps its counts as numbers; block contents are the engine's own and appear in no table.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from replicas.counters import count_first_token
from replicas.delivery import count_gaps, leave_live
from replicas.events import set_next_end
from replicas.live.interface import Scheduled, Step
from sim.observing import note_first_token
from sim.records import CATCHING_UP, FAILED, FINISHED, NONE, SERVER_ERROR, WAITING, Fleet


def as_python(verb: Any) -> Callable[..., Any]:
    """Returns a verb's own source as a Python function: compiled, one that takes a fleet can only be called by others."""
    function: Callable[..., Any] = getattr(verb, "py_func", verb)
    return function


_count_gaps, _count_first_token, _set_next_end = as_python(count_gaps), as_python(count_first_token), as_python(set_next_end)


class Books:
    """The records of the replica in one slot.

    Args:
        fleet: returns the fleet as it is now; its rings grow.
        slot: the replica's.
    """

    def __init__(self, fleet: Callable[[], Fleet], slot: int) -> None:
        self._fleet, self.slot = fleet, slot
        self._in_engine: set[int] = set()

    @property
    def replica(self) -> Any:
        """The replica's record."""
        return self._fleet().replicas[self.slot]

    @property
    def load(self) -> Any:
        """What the replica shows of itself."""
        return self._fleet().loads[self.slot]

    def request(self, i: int) -> Any:
        """Returns the record of request `i`."""
        requests = self._fleet().requests
        return requests[i & (requests.size - 1)]

    def segments(self, i: int) -> Any:
        """Returns what the traffic says of the tokens of request `i`: (n,) SEGMENT."""
        fleet, sequence = self._fleet(), self._sequence(i)
        if fleet.sequences.size == 1:
            return fleet.segments[:0]
        numbers = np.arange(sequence.first_segment, sequence.first_segment + sequence.num_segments)
        return fleet.segments[numbers & (fleet.segments.size - 1)]

    def take_new(self) -> list[int]:
        """Returns the waiting requests that the engine has not been given, oldest first, and takes them as given.

        Routers put new requests at the back of a line and `preempt` puts old ones at the front, so the look ends at the first
        known one.
        """
        found = []
        for line in self._lines:
            i = int(line.queue.tail)
            while i != NONE and i not in self._in_engine:
                found.append(i)
                i = int(self.request(i).previous)
        found.reverse()
        if len(self._lines) > 1:
            found.sort(key=lambda i: int(self._sequence(i).place))
        self._in_engine.update(found)
        return found

    def sleep(self) -> None:
        """Takes the replica out of the data plane's calendar: it never runs a step of a live one."""
        _set_next_end(self._fleet(), self.slot, np.inf)

    def begin(self, step: Step, now_s: float) -> None:
        """Notes what a step holds as it goes on the device."""
        replica = self.replica
        for i in step.preempted:
            self._preempt(i)
        for i in step.admitted:
            self._admit(i)
        for one in step.scheduled:
            self._schedule(one, now_s)
        replica.num_in_flight = 1
        if step.scheduled:
            replica.num_steps += 1
            num_tokens = sum(one.num_new_tokens for one in step.scheduled)
            replica.peak_running = max(int(replica.peak_running), len(step.scheduled))
            replica.peak_batched_tokens = max(int(replica.peak_batched_tokens), num_tokens)
        self.load.num_free_blocks = step.num_free_blocks[0]

    def end(self, step: Step, now_s: float) -> None:
        """Hands out what came out of a step, and lets the finished go."""
        for i, tokens in step.tokens.items():
            self._deliver(i, len(tokens), now_s)
        for i, num_tokens in step.cached.items():
            self.request(i).num_cached_tokens = num_tokens
        for i in step.finished:
            self._leave(i, FINISHED, now_s)
        for i in step.failed:
            self.request(i).reason = SERVER_ERROR
            self._leave(i, FAILED, now_s)
        replica = self.replica
        replica.num_in_flight = 0
        replica.busy_s += step.lasted_s
        replica.last_step_ended_at_s = now_s
        self.load.num_free_blocks = step.num_free_blocks[1]

    def recount(self) -> tuple[int, int, int, int, int]:
        """Walks the lists again.

        Returns:
            Running, waiting, computed tokens of the running, tokens of the waiting, prompt tokens of those without a token.
        """
        running = [self.request(i) for i in self._walk(self.replica.running.head)]
        waiting = [self.request(i) for line in self._lines for i in self._walk(line.queue.head)]
        computed = sum(int(one.num_computed_tokens) for one in running)
        before_first = sum(int(one.num_prompt_tokens) for one in running + waiting if np.isnan(one.first_token_at_s))
        return len(running), len(waiting), computed, sum(_known_tokens(one) for one in waiting), before_first

    def _walk(self, head: int) -> Iterator[int]:
        i = int(head)
        while i != NONE:
            yield i
            i = int(self.request(i).next)

    def _admit(self, i: int) -> None:
        request, load = self.request(i), self.load
        self._remove(self._line(i), i)
        self._insert(self.replica.running, i, int(self.replica.running.tail))
        load.num_waiting -= 1
        load.waiting_tokens -= _known_tokens(request)
        load.num_running += 1
        request.phase, request.last_step, request.num_computed_tokens = CATCHING_UP, NONE, 0

    def _preempt(self, i: int) -> None:
        request, load = self.request(i), self.load
        self._remove(self.replica.running, i)
        clock = self._fleet().clock[0]
        clock.num_queued += 1
        self._sequence(i).place = -clock.num_queued
        self._insert(self._line(i), i, NONE)
        load.num_running -= 1
        load.running_tokens -= int(request.num_computed_tokens)
        load.num_waiting += 1
        load.waiting_tokens += _known_tokens(request)
        request.phase, request.num_computed_tokens = WAITING, 0
        request.num_preemptions += 1
        self.replica.num_preemptions += 1

    def _schedule(self, one: Scheduled, now_s: float) -> None:
        request = self.request(one.request)
        if not request.scheduled_at_s <= now_s:
            request.scheduled_at_s, request.num_cached_tokens = now_s, one.num_computed_tokens
        num_computed = one.num_computed_tokens + one.num_new_tokens
        self.load.running_tokens += num_computed - int(request.num_computed_tokens)
        request.num_computed_tokens = num_computed

    def _deliver(self, i: int, num_tokens: int, now_s: float) -> None:
        request, fleet, pool = self.request(i), self._fleet(), int(self.replica.pool)
        if not num_tokens:
            return
        if np.isnan(request.first_token_at_s):
            request.first_token_at_s = now_s
            self.replica.tokens_before_first -= int(request.num_prompt_tokens)
            note_first_token(fleet, self.slot, i, int(request.num_cached_tokens))
            _count_first_token(fleet, pool, request)
            _count_gaps(fleet, pool, 0.0, num_tokens - 1)
        else:
            _count_gaps(fleet, pool, now_s - float(request.last_token_at_s), 1)
            _count_gaps(fleet, pool, 0.0, num_tokens - 1)
        request.last_token_at_s = now_s
        request.num_generated_tokens += num_tokens
        self.replica.num_delivered_tokens += num_tokens
        if request.phase == WAITING:  # preempted while its token was on the device
            self.load.waiting_tokens += num_tokens

    def _leave(self, i: int, status: int, now_s: float) -> None:
        request, load = self.request(i), self.load
        if np.isnan(request.first_token_at_s):
            self.replica.tokens_before_first -= int(request.num_prompt_tokens)
        if request.phase == WAITING:
            self._remove(self._line(i), i)
            load.num_waiting -= 1
            load.waiting_tokens -= _known_tokens(request)
        else:
            self._remove(self.replica.running, i)
            load.num_running -= 1
            load.running_tokens -= int(request.num_computed_tokens)
        self._in_engine.discard(i)
        leave_live(self._fleet(), self.slot, i, status, now_s)

    @property
    def _lines(self) -> Any:
        return self._fleet().lines[self.slot]

    def _line(self, i: int) -> Any:
        """Returns the line in which request `i` waits. Nothing holds it up: live engines serve no adapters and no grammars."""
        return self._lines[self._fleet().line_of[self.request(i).class_id]].queue

    def _sequence(self, i: int) -> Any:
        sequences = self._fleet().sequences
        return sequences[i & (sequences.size - 1)]

    def _insert(self, queue: Any, i: int, before: int) -> None:
        """Puts request `i` right behind `before`; `NONE` stands for the front. As `replicas.queues.insert_after`."""
        request = self.request(i)
        after = int(queue.head) if before == NONE else int(self.request(before).next)
        request.previous, request.next = before, after
        if before == NONE:
            queue.head = i
        else:
            self.request(before).next = i
        if after == NONE:
            queue.tail = i
        else:
            self.request(after).previous = i

    def _remove(self, queue: Any, i: int) -> None:
        """Takes request `i` out. As `replicas.queues.remove`."""
        request = self.request(i)
        before, after = int(request.previous), int(request.next)
        if before == NONE:
            queue.head = after
        else:
            self.request(before).next = after
        if after == NONE:
            queue.tail = before
        else:
            self.request(after).previous = before


def _known_tokens(request: Any) -> int:
    """Returns the tokens that a waiting request brings: its prompt, and what was generated before it was preempted."""
    return int(request.num_prompt_tokens) + int(request.num_generated_tokens)
