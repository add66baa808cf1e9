"""The invariants of docs/design.md: what must hold in every run, whatever the config.

`Audit` gathers facts while a run goes on, in places that do not know of each other; `check` compares them at its end.
A broken one is our mistake, never the user's: `InvariantError` says which, and by how much.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.errors import InvariantError
from sim.records import (
    E2E,
    FINISHED,
    IN_FLIGHT,
    NO_LIMIT,
    NO_REASON,
    REJECTED,
    REQUEST_VIEW,
    STATUS_NAMES,
    TIMED_OUT,
    TTFT,
    Fleet,
)

if TYPE_CHECKING:
    from sim.pool import Pool

# Sums of up to 1e9 doubles, each rounded at 1e-16 of a running total: far above what rounding can do, far below one
# lost request, step or gap in any run of that size.
_RELATIVE = 1e-9


@dataclass
class Audit:
    """Facts of one run. The requests are counted as they are written, the engines as they stand."""

    num_requests: int = 0
    num_by_status: Any = field(default_factory=lambda: np.zeros(len(STATUS_NAMES), np.int64))
    num_without_reason: int = 0
    num_out_of_order: int = 0
    first_out_of_order: int = -1
    num_short_answers: int = 0
    num_tokens: int = 0
    num_gaps: int = 0
    gaps_s: float = 0.0
    sojourn_s: float = 0.0  # of the requests that ended
    in_flight_since_s: list[float] = field(default_factory=list)
    num_lost_blocks: int = 0
    num_miscounts: int = 0
    num_unrouted_miscounts: int = 0
    num_future_scrapes: int = 0
    ended_at_s: float = 0.0
    request_s: float = 0.0

    def count(self, rows: Any) -> None:
        """Counts requests as they are written, (n,) REQUEST records."""
        status = rows["status"]
        self.num_by_status += np.bincount(status, minlength=len(STATUS_NAMES))
        self._count_order(rows)
        asked_more = rows["num_generated_tokens"] != rows["num_output_tokens"]
        self.num_short_answers += int(np.count_nonzero((status == FINISHED) & asked_more))
        refused = (status == REJECTED) | (status == TIMED_OUT)
        self.num_without_reason += int(np.count_nonzero(refused & (rows["reason"] == NO_REASON)))
        got_one = rows["num_generated_tokens"] > 0
        self.num_tokens += int(rows["num_generated_tokens"].sum())
        self.num_gaps += int((rows["num_generated_tokens"][got_one] - 1).sum())
        self.gaps_s += float((rows["last_token_at_s"] - rows["first_token_at_s"])[got_one].sum())
        ended = status != IN_FLIGHT
        self.sojourn_s += float((rows["finished_at_s"] - rows["arrived_at_s"])[ended].sum())
        self.in_flight_since_s += rows["arrived_at_s"][~ended].tolist()
        self.num_requests += len(rows)

    def _count_order(self, rows: Any) -> None:
        instants = [rows[f"{name}_at_s"] for name in ("arrived", "routed", "scheduled", "first_token", "finished")]
        wrong = np.zeros(len(rows), np.bool_)
        for earlier, later in itertools.pairwise(instants):
            wrong |= later < earlier
            wrong |= (rows["status"] == FINISHED) & np.isnan(later)
        if wrong.any() and self.first_out_of_order < 0:
            self.first_out_of_order = self.num_requests + int(np.argmax(wrong))
        self.num_out_of_order += int(np.count_nonzero(wrong))

    def look(self, fleet: Fleet, recounts: Any, unrouted: Any) -> None:
        """Compares running sums with those made by walking the lists: the engines', (num_slots, 6), and of the unrouted."""
        running, waiting, held_blocks, held_tokens, waiting_tokens, tokens_before_first = recounts.T
        loads = fleet.loads
        lost = loads["num_free_blocks"] + held_blocks != loads["num_usable_blocks"]
        wrong = (loads["num_running"] != running) | (loads["num_waiting"] != waiting)
        wrong |= (loads["running_tokens"] != held_tokens) | (loads["waiting_tokens"] != waiting_tokens)
        wrong |= fleet.replicas["tokens_before_first"] != tokens_before_first
        self.num_lost_blocks += int(np.count_nonzero(lost))
        self.num_miscounts += int(np.count_nonzero(wrong))
        self.num_unrouted_miscounts += int(np.count_nonzero((fleet.unrouted != unrouted).any(axis=1)))
        self.num_future_scrapes += int(fleet.clock[0].scraped_at_s > fleet.clock[0].now_s)

    def close(self, fleet: Fleet, now_s: float) -> None:
        """Notes the state at the end."""
        clock = fleet.clock[0]
        self.ended_at_s = now_s
        self.request_s = float(clock.in_system_request_s + clock.num_in_system * (now_s - clock.in_system_since_s))


def check(
    audit: Audit, fleet: Fleet, pools: "Sequence[Pool]", *, is_cut_short: bool, num_undeclared_oracles: int = 0
) -> list[str]:
    """Checks every invariant and returns their names.

    Raises:
        InvariantError: with the number of the first that does not hold.
    """
    clock, replicas = fleet.clock[0], fleet.replicas
    engine_of = fleet.engines[replicas["pool"]]
    in_flight_s = sum(audit.ended_at_s - since_s for since_s in audit.in_flight_since_s)
    lifetimes_gpu_s = [
        sum(((m.released_at_s or 0.0) - m.requested_at_s) * m.num_gpus for m in pool.machines if m.pool == pool.spec.name)
        for pool in pools
    ]
    _equal(1, "every request that arrived is counted once", audit.num_requests, int(clock.num_arrived))
    num_left = int(clock.num_arrived + clock.num_to_come + fleet.never_sent.sum())
    _equal(1, "rows of the traffic that arrived, are to come or never do", num_left, int(clock.num_loaded))
    _equal(1, "requests that ended", int(audit.num_by_status.sum() - audit.num_by_status[IN_FLIGHT]), int(clock.num_ended))
    _equal(1, "finished requests by class", int(fleet.demand["num_finished"].sum()), int(audit.num_by_status[FINISHED]))
    _equal(2, "times the clock ran backwards", int(clock.num_time_reversals), 0)
    where = f" (first: request {audit.first_out_of_order})" if audit.num_out_of_order else ""
    num_held = int(clock.num_held) if clock.max_concurrency == NO_LIMIT else 0
    _equal(2, "requests that came late though no client held them back", num_held, 0)
    _equal(3, f"requests whose instants are out of order{where}", audit.num_out_of_order, 0)
    _equal(4, "replicas whose free and held blocks are not all there", audit.num_lost_blocks, 0)
    _equal(4, "replicas whose gauges differ from a recount", audit.num_miscounts, 0)
    _equal(4, "pools whose waiting requests differ from a recount", audit.num_unrouted_miscounts, 0)
    _at_most(5, "running requests in a step", replicas["peak_running"], engine_of["max_num_seqs"])
    _at_most(5, "tokens in a step", replicas["peak_batched_tokens"], engine_of["max_num_batched_tokens"])
    over = max(0, int(clock.peak_in_system) - int(clock.max_concurrency))
    _equal(5, "requests in flight beyond max_concurrency", over, 0)
    _equal(6, "idle engines with a queue", int(replicas["num_idle_with_work"].sum()), 0)
    _equal(7, "finished requests with fewer tokens than asked", audit.num_short_answers, 0)
    _equal(7, "tokens delivered", int(replicas["num_delivered_tokens"].sum()), audit.num_tokens)
    _equal(7, "first tokens", int(fleet.latency_counts[:, TTFT].sum()), audit.num_tokens - audit.num_gaps)
    _equal(7, "last tokens", int(fleet.latency_counts[:, E2E].sum()), int(audit.num_by_status[FINISHED]))
    _equal(8, "gaps between tokens", int(fleet.itl_counts.sum()), audit.num_gaps)
    _close(8, "sum of all gaps", float(fleet.itl_sums[:, 0].sum()), audit.gaps_s)
    _close(9, "Little's law: integral of requests in the system", audit.request_s, audit.sojourn_s + in_flight_s)
    _equal(10, "events that the router was not told of", int(clock.num_lost_events), 0)
    _equal(10, "policies that saw the future undeclared", num_undeclared_oracles + audit.num_future_scrapes, 0)
    _equal(10, "output lengths a router can see", int("num_output_tokens" in (REQUEST_VIEW.names or ())), 0)
    for pool, gpu_s in zip(pools, lifetimes_gpu_s, strict=True):
        _close(11, f"GPU-seconds billed to pool {pool.spec.name}", pool.billed_gpu_s, gpu_s)
        _close(11, f"GPU-seconds of pool {pool.spec.name} on the timeline", pool.reported_gpu_s, gpu_s)
    _equal(12, "requests left hanging", 0 if is_cut_short else int(audit.num_by_status[IN_FLIGHT]), 0)
    _equal(12, "requests refused without a reason", audit.num_without_reason, 0)
    return list(NAMES)


NAMES = (
    "1 conservation", "2 time", "3 order of instants", "4 KV blocks", "5 limits", "6 no idle step with work",
    "7 tokens", "8 gaps", "9 Little's law", "10 no future seen", "11 billed once", "12 nothing hangs",
)  # fmt: skip


def _equal(number: int, what: str, found: int, expected: int) -> None:
    if found != expected:
        raise InvariantError(f"invariant {number}: {what}: {found}, expected {expected}")


def _close(number: int, what: str, found: float, expected: float) -> None:
    if not abs(found - expected) <= _RELATIVE * max(1.0, abs(expected)):
        raise InvariantError(f"invariant {number}: {what}: {found!r}, expected {expected!r}")


def _at_most(number: int, what: str, found: Any, limit: Any) -> None:
    worst = int(np.argmax(found - limit))
    if found[worst] > limit[worst]:
        raise InvariantError(f"invariant {number}: {what}: {found[worst]} on slot {worst}, limit {limit[worst]}")
