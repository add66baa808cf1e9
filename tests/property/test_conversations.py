"""Requests that follow others, against a client written in plain Python: who is sent when, and who never."""

import heapq
import math
from collections import defaultdict
from typing import Any

from hypothesis import given, settings

from sim.records import FINISHED
from tests.property.strategies import Case, conversations


class NaiveClient:
    """Sends the rows of a case, knowing of each request it sent, by number, when and how it ended."""

    def __init__(self, case: Case, requests: Any) -> None:
        self.case, self.requests = case, requests
        self.followers: dict[int, list[int]] = defaultdict(list)
        self.due: list[tuple[float, int]] = []  # rows, by when they are due
        for row, ((at_s, _, _), (follows, _)) in enumerate(zip(case.rows, case.turns, strict=True)):
            if follows:
                self.followers[row - follows].append(row)
            else:
                self.due.append((at_s, row))
        heapq.heapify(self.due)
        self.sent: list[tuple[float, int]] = []  # (when, row) of each request
        self.in_flight: list[tuple[float, int]] = []  # (when it ends, which request), a heap
        self.never: list[int] = []

    def run(self) -> None:
        """Ends come before what is sent at the same instant."""
        limit, now_s = self.case.max_concurrency or math.inf, 0.0
        while self.due or self.in_flight:
            next_at_s = max(now_s, self.due[0][0]) if self.due and len(self.in_flight) < limit else math.inf
            if self.in_flight and self.in_flight[0][0] <= next_at_s:
                now_s, number = heapq.heappop(self.in_flight)
                self.end(number, now_s)
            else:
                now_s, (_, row) = next_at_s, heapq.heappop(self.due)
                heapq.heappush(self.in_flight, (float(self.requests[len(self.sent)].finished_at_s), len(self.sent)))
                self.sent.append((now_s, row))

    def end(self, number: int, now_s: float) -> None:
        lost = []
        for row in self.followers[self.sent[number][1]]:
            if self.requests[number].status == FINISHED:
                heapq.heappush(self.due, (max(self.case.rows[row][0], now_s + self.case.turns[row][1]), row))
            else:
                lost.append(row)
        while lost:
            self.never.append(lost.pop())
            lost += self.followers[self.never[-1]]


@given(conversations())
@settings(max_examples=300)
def test_each_is_sent_after_the_one_it_follows_and_never_if_that_fails(case: Case) -> None:
    ran = case.run()
    client = NaiveClient(case, ran.requests)
    client.run()
    assert ran.requests.arrived_at_s.tolist() == [at_s for at_s, _ in client.sent]
    assert ran.requests.num_prompt_tokens.tolist() == [case.rows[row][1] for _, row in client.sent]
    assert ran.simulation.num_never_sent.tolist() == [len(client.never)]
    assert len(client.sent) + len(client.never) == len(case.rows)
