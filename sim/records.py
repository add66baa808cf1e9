"""The record arrays that both planes share: every field once, with its unit.

Compiled code and Python see the same memory. A `Fleet` is a bundle of arrays; verbs take it and change it in place.
Ids and indices are -1 (`NONE`) when absent; instants are NaN (`NEVER`) until they happen.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from sim.bundle import Bundle
from sim.step_terms import TERMS

NONE = -1
NEVER = np.nan
NO_LIMIT = np.iinfo(np.int64).max

# Where a request is in its life (REQUEST.phase).
EXPECTED = 0  # not let in; one that the gateway refuses goes from here
UNROUTED = 1  # let in, and on no replica: not sent to one yet, or given back by one
WAITING = 2  # in a replica's queue, for the first time or after a preemption
CATCHING_UP = 3  # runs, but some tokens that it has are not computed: a prefill; on a live replica, whatever it does
DECODING = 4  # gets one token in every step, and is in the sums over decodes only
SURPLUS = 5  # a decode whose last token is on the device, planned once more as the engine does not know that it is the last
LAST_TOKEN = 6  # its last token is on the device: in no later step, but with its blocks until that token is delivered
GONE = 7  # finished, rejected, timed out or failed (REQUEST.status)
# How a request ended (REQUEST.status); the names are what requests.parquet shows.
IN_FLIGHT, FINISHED, REJECTED, TIMED_OUT, FAILED = range(5)
STATUS_NAMES = ("in_flight", "finished", "rejected", "timed_out", "failed")
# Why it was rejected, timed out or failed (REQUEST.reason).
NO_REASON, OVER_MAX_MODEL_LEN, OVER_KV_CACHE, DRAIN_TIMEOUT, OVER_QUEUED_REQS, OVER_QUEUED_TOKENS, SERVER_ERROR = range(7)
OVER_RATE_LIMIT, OVER_TTFT, REPLICA_FAILED, OTHER_MODEL, CLIENT_TIMEOUT = range(7, 12)
REASON_NAMES = (
    "",
    "over_max_model_len",
    "over_kv_cache",
    "drain_timeout",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
    "server_error",
    "rate_limit",
    "predicted_ttft",
    "replica_failed",
    "no_such_model",
    "client_timeout",
)

ARRIVAL = np.dtype(
    [
        ("arrived_at_s", "f8"),
        ("num_prompt_tokens", "i8"),
        ("num_output_tokens", "i8"),
        ("class_id", "i8"),
        ("first_segment", "i8"),  # in the traffic's segments
        ("num_segments", "i8"),  # 0 = no token is shared with anybody
        ("follows", "i8"),  # how many rows before this one the request is that it follows; 0 = it follows none
        ("delay_s", "f8"),  # from the end of that one to the arrival of this one: a think time
        ("session", "i8"),  # the conversation that it belongs to, a number from 1; 0 = none
    ],
    align=True,
)
"""What traffic yields: one row a request, sorted by `arrived_at_s`, at least one prompt and one output token.

A request that follows another, as the next turn of a conversation does, arrives `delay_s` after that one has finished, and not
before its own `arrived_at_s`. If that one does not finish, because it was refused or failed, the conversation does not go on:
this request and all that follow it are never sent, and counted as such.
"""

COMING = np.dtype(
    [
        ("due_at_s", "f8"),  # when it is there to be sent; until the one it follows has finished, the earliest that may be
        ("delay_s", "f8"),
        ("ended_at_s", "f8"),  # NEVER until it has ended, where others may follow it; inf = it did not finish
        ("first_segment", "i8"),  # in the ring of segments
        ("num_prompt_tokens", "i4"),
        ("num_output_tokens", "i4"),
        ("num_segments", "i4"),
        ("follows", "i4"),
        ("first_follower", "i4"),  # head of the list of those that wait for its end
        ("next", "i4"),  # in such a list; -1 at the end
        ("session", "i4"),
        ("class_id", "i2"),
        ("state", "i1"),
    ],
    align=True,
)
"""A row of the traffic on its way to being a request. Links hold row numbers, counted from the traffic's first."""

# How far a row has come (COMING.state): not arrived yet; arrived, but others may follow it; nothing depends on it any more.
TO_COME, ARRIVED, OVER = range(3)

TIMED = np.dtype([("at_s", "f8"), ("number", "i8")], align=True)
"""Something that is to happen at an instant to one request, or row of the traffic: an entry of a heap (`sim.timed`)."""

SEGMENT = np.dtype([("content", "i8"), ("num_tokens", "i8")], align=True)
"""A stretch of a request's tokens: the first `num_tokens` of a stream of tokens that `content` names.

A request's segments, one after the other, cover its prompt and then its output; tokens beyond them are its own. Two requests
share their first n tokens if their segments name the same positions of the same streams up to there.
"""

REQUEST_VIEW = np.dtype(
    [
        ("id", "i8"),
        ("arrived_at_s", "f8"),
        ("num_prompt_tokens", "i8"),
        ("class_id", "i8"),
        ("session", "i8"),  # the conversation that it belongs to; 0 = none, or the router does not ask for it
        ("priority", "i8"),  # what its class asks for, as in CLASS
        ("adapter", "i8"),
        ("model", "i8"),
        ("max_tokens", "i8"),
    ],
    align=True,
)
"""What a router may know of a request. The output length is not here: a policy sees no future."""

TIMES = np.dtype([("now_s", "f8"), ("scraped_at_s", "f8")], align=True)
"""When a router is asked, and of when the loads are that it sees: of now, if it sees them live."""

# What a router may observe (EVENT.what), and what else an event tells then.
SENT, FIRST_TOKEN, ENDED_ON, CACHED, EVICTED, CLEARED = (1 << bit for bit in range(6))
EVENT_NAMES = ("sent", "first_token", "ended", "cached", "evicted", "cleared")

EVENT = np.dtype(
    [
        ("at_s", "f8"),
        ("key", "u8"),  # CACHED, EVICTED: of the block, in the engine's block size
        ("request", "i8"),  # SENT, FIRST_TOKEN, ENDED_ON: its id, else -1
        ("replica", "i4"),  # its slot
        ("num_tokens", "i4"),  # SENT: of the prompt; FIRST_TOKEN: of it, those found in the cache; ENDED_ON: of the answer
        ("what", "i1"),
        ("status", "i1"),  # ENDED_ON: how (STATUS_NAMES); IN_FLIGHT = it left this replica, and not the system
    ],
    align=True,
)
"""Something that happened at a replica. Equal blocks are cached and evicted each for itself; CLEARED: its cache is empty."""

REQUEST = np.dtype(
    [
        # what the scheduler reads and writes: one cache line
        ("num_prompt_tokens", "i4"),
        ("num_output_tokens", "i4"),
        ("num_generated_tokens", "i4"),  # at the last admission or preemption, and at the end
        ("num_computed_tokens", "i4"),  # while it catches up
        ("last_step", "i8"),  # the step that yields its last token; while it waits, the latest step whose token is counted
        ("next", "i4"),  # in `waiting` or `running`; -1 at the end
        ("previous", "i4"),
        ("due_next", "i4"),  # in the calendar of last tokens
        ("due_previous", "i4"),
        ("first_next", "i4"),  # in the batch's list of those that have caught up
        ("due_slot", "i2"),
        ("class_id", "i2"),
        ("replica", "i4"),  # slot
        ("machine", "i4"),  # id in replicas.parquet
        ("phase", "i1"),
        ("status", "i1"),
        ("reason", "i1"),
        ("stops_early", "i1"),  # by an end-of-sequence token, which the scheduler cannot foresee
        ("was_passed_by", "i1"),  # while it waits: others were let pass, as it waited for more than room
        # what becomes of it: the other
        ("num_preemptions", "i4"),
        ("num_cached_tokens", "i4"),
        ("num_blocks", "i4"),  # held while it catches up
        ("num_new_tokens", "i4"),  # in the step being planned, while it catches up
        ("arrived_at_s", "f8"),
        ("routed_at_s", "f8"),
        ("scheduled_at_s", "f8"),
        ("first_token_at_s", "f8"),
        ("last_token_at_s", "f8"),
        ("finished_at_s", "f8"),
    ],
    align=True,
)
"""A request in flight. Links hold ids, so a run has at most 2**31 requests."""

SEQUENCE = np.dtype(
    [
        # content
        ("first_segment", "i8"),  # in the ring of segments
        ("num_segments", "i4"),
        ("segment", "i4"),  # where the keys have got to: which of the segments,
        ("segment_starts_at", "i4"),  # and the position of its first token
        ("num_keyed", "i4"),  # blocks whose keys are known
        ("key", "u8"),  # of the last of them
        ("num_found", "i4"),  # blocks in the cache, when its queue was last sorted by that
        ("session", "i4"),  # the conversation that it belongs to
        # queue
        ("place", "i8"),  # while it waits, where requests wait in several lines: those with a lower one go first
        # blocks
        ("row", "i4"),  # of the block table, while it runs
        ("num_registered", "i4"),  # blocks that others can hit
        ("admission", "i4"),  # number of its latest admission on its replica: the order of `running`
        ("growing_next", "i4"),  # among the decodes that need a block at the same steps
        ("growing_previous", "i4"),
        # speculation
        ("num_drafts", "i4"),  # proposed for its next step
        ("num_placeholders", "i4"),  # tokens that steps in flight may yield: async scheduling
        ("num_scheduled_drafts", "i4", (2,)),  # by the batch's `half`
        ("num_real_drafts", "i4", (2,)),  # of these; the others are padding
        ("caught_up_next", "i4", (2,)),  # in the batch's list of those that have caught up, by the batch's `half`
        ("max_output_tokens", "i4"),  # that the scheduler knows of
        # pipeline parallelism
        ("may_decode_at", "i4"),  # the first plan (REPLICA.num_plans) in which it may get its next token
        ("last_planned_step", "i8"),  # the latest step that gives it tokens
    ],
    align=True,
)
"""What is kept of a request only where prefix caching, speculation or several lines need it; else one record is for all."""

BLOCK = np.dtype(
    [
        ("key", "u8"),  # of its tokens and all before them
        ("num_holders", "i4"),
        ("next", "i4"),  # in the queue of free blocks
        ("previous", "i4"),
        ("same_bucket_next", "i4"),  # in the table of keys
        ("is_registered", "i1"),
    ],
    align=True,
)
"""One KV block of a replica with prefix caching."""

BUCKET = np.dtype(
    [
        ("tokens_per_s", "f8"),  # at which it fills; 0 = no limit
        ("capacity_tokens", "f8"),  # the largest burst
        ("level_tokens", "f8"),
        ("filled_at_s", "f8"),
    ],
    align=True,
)
"""A class's token bucket at the gateway."""

CLASS = np.dtype(
    [
        ("priority", "i8"),  # lower goes first
        ("adapter", "i8"),  # LoRA; 0 = none
        ("model", "i8"),  # number of the one it asks for; 0 = any
        ("max_tokens", "i8"),  # that its clients ask for; 0 = exactly what they get
        ("grammar_s", "f8"),  # compile time of its grammar, once on each replica; 0 = no structured output
        ("num_free_tokens", "i8"),  # after so many tokens that its grammar leaves open,
        ("num_forced_tokens", "i8"),  # so many follow of which there is only one choice
        ("timeout_s", "f8"),  # after which its clients give up, from when they sent a request; 0 = they wait for ever
        ("bucket", BUCKET),
        ("admitted_ttft_s", "f8"),  # who is predicted a longer one is turned away; 0 = nobody is
        ("prefill_tokens_per_s", "f8"),  # of a replica, by which that is predicted
        ("num_passed", "i8"),  # requests below this id have ended or are of other classes; kept where there is a timeout
    ],
    align=True,
)
"""What requests of one class have in common."""

DEMAND = np.dtype(
    [
        ("num_arrived", "i8"),  # routed to the pool, or waiting for a replica that it could have; each once
        ("num_prompt_tokens", "i8"),  # theirs
        ("num_finished", "i8"),
        ("num_output_tokens", "i8"),  # of those that finished
    ],
    align=True,
)
"""What requests of one class have asked of one pool since the start."""

# Of which latencies each pool's are counted by bin (Fleet.latency_counts); gaps between tokens have an array of their own.
TTFT, TPOT, E2E = range(3)

GROWTH = np.dtype([("num_decodes", "i4"), ("head", "i4"), ("tail", "i4")], align=True)
"""The decodes that need a block at the same steps: how many, and with prefix caching who."""

QUEUE = np.dtype([("head", "i4"), ("tail", "i4")], align=True)
"""A list of requests, linked through the requests themselves; -1 when empty."""

LINE = np.dtype(
    [
        ("queue", QUEUE),
        ("cursor", "i4"),  # the next to be looked at in the step being planned
        ("last_inserted", "i4"),  # by priority: neither at the back nor at the front; the next such one belongs near it
        ("last_passed_by", "i4"),  # all from the head to here are marked as passed by
        ("num_passed_by", "i4"),
    ],
    align=True,
)
"""Requests that wait at a replica and whose classes have priority, adapter and grammar in common, in order.

They are held up alike, so a step passes by all of a line at once. A queue is its lines together: who goes next is one of their
heads.
"""

LOAD = np.dtype(
    [
        ("waiting_tokens", "i8"),  # prompt (and regenerated) tokens not yet admitted
        ("running_tokens", "i4"),  # tokens whose KV is held
        ("num_waiting", "i4"),
        ("num_running", "i4"),
        ("num_free_blocks", "i4"),
        ("num_usable_blocks", "i4"),
        ("num_inflight", "i4"),  # the router's own count: sent and not yet ended; never stale
    ],
    align=True,
)
"""What a replica exposes. `fleet.loads` is live, `fleet.seen` is what the router was last shown. Two fit in a cache line:
a router may read a thousand of them for every request."""

CLIENT = np.dtype([("num_inflight", "i4"), ("num_new", "i4")], align=True)
"""What one API server knows of its own requests on a replica: those not yet ended, and those sent since the last scrape."""

REPLICA = np.dtype(
    [
        # what every step reads: one cache line
        ("pool", "i4"),
        ("machine", "i4"),
        ("num_in_flight", "i1"),  # steps planned and not yet ended
        ("is_open", "i1"),  # takes new requests
        ("is_draining", "i1"),
        ("defers_prefills", "i1"),  # in the step being planned
        ("num_decoding", "i4"),  # requests that get one token in the next step
        ("decoding_context_tokens", "i8"),  # sum of their computed tokens
        ("num_steps", "i8"),  # steps planned so far; the next step's number
        ("tokens_before_first", "i8"),  # prompts of its requests that have no token yet
        ("running", QUEUE),  # in order of admission
        ("num_catching_up", "i4"),  # running requests with more than one token to compute, or one that was passed over
        ("num_surplus", "i4"),  # decodes whose end the scheduler has not seen yet
        ("last_step_ended_at_s", "f8"),
        # the rest: the other
        ("num_preemptions", "i4"),
        ("peak_batched_tokens", "i4"),
        ("peak_running", "u2"),
        ("num_masks", "u2"),  # running requests with structured output
        ("num_plans", "i4"),  # since it was last idle, those that found nothing to do included
        ("num_empty", "i1"),  # of these, how many hold a place among the steps in flight
        ("is_saturated", "i1"),  # requests waited though prefills were not deferred
        ("num_idle_with_work", "u2"),  # invariant 6; stays 0
        ("num_steps_outside_range", "i4"),  # larger than any that the engine's step time was fitted on
        ("num_delivered_tokens", "i8"),
        ("busy_s", "f8"),
        ("woken_at_s", "f8"),  # when a request last found it idle
        ("free_blocks", QUEUE),  # with prefix caching: in the order in which they are taken
        ("free_row", "i4"),  # head of the list of free rows of the block table, each with the next in its last entry
        ("num_admissions", "i4"),
    ],
    align=True,
)

BATCH = np.dtype(
    [
        ("step", "i8"),
        ("kv_tokens", "i8"),  # sum of c + n
        ("attended_tokens", "f8"),  # sum of n * (c + n/2)
        ("ends_at_s", "f8"),
        ("num_decodes", "i4"),
        ("num_surplus", "i4"),  # decodes whose token is thrown away
        ("num_requests", "i4"),
        ("num_tokens", "i4"),
        ("first_head", "i4"),  # requests that catch up in this step
        ("first_tail", "i4"),
        ("num_masks", "u2"),  # running requests with structured output
        ("num_adapters", "u2"),
        ("has_prefill", "i1"),  # a running request goes on with its prefill
        ("half", "i1"),  # 0 or 1: two steps in flight that give one request a token differ in it
        ("awaits_tokens", "i1"),  # masks depend on tokens that are on the device: no step is planned behind it before they come
        ("num_empty_behind", "i1"),  # plans between it and the next step that found nothing to do
    ],
    align=True,
)
"""One engine step: n new tokens on c computed ones, summed over its requests."""

MAX_KNOTS = 96
"""Most numbers of tokens at which the time of a step was measured."""

ENGINE = np.dtype(
    [
        ("max_num_seqs", "i8"),
        ("max_num_batched_tokens", "i8"),
        ("block_size", "i8"),
        ("num_usable_blocks", "i8"),  # that requests can hold
        ("watermark_blocks", "i8"),
        ("max_model_len", "i8"),
        ("enable_chunked_prefill", "i8"),
        ("scheduler_reserve_full_isl", "i8"),
        ("async_scheduling", "i8"),
        ("num_stages", "i8"),  # of the pipeline; 1 = no pipeline parallelism
        ("prefill_schedule_interval", "i8"),  # plans from one that may prefill to the next
        ("long_prefill_token_threshold", "i8"),  # 0 = none
        ("long_prefill_token_threshold_adaptive", "i8"),  # not below an even share of the budget
        ("threshold_binds_alone", "i8"),  # it also cuts a prompt that is alone
        ("passed_by_go_first", "i8"),  # ahead of preempted ones, too; not by priority
        ("schedules_by_priority", "i8"),
        ("schedules_by_prefix", "i8"),  # the longest prefix in the cache first
        ("enable_prefix_caching", "i8"),
        ("first_slot", "i8"),  # of the pool
        ("model", "i8"),  # its number, where pools serve several
        ("data_parallel_size", "i8"),  # engines of a machine, in slots next to each other
        ("num_together", "i8"),  # of these, how many step at the same time: all where they share experts, else 1
        ("max_num_queued_reqs", "i8"),  # of a machine, running ones too; 0 = no limit
        ("max_num_queued_tokens", "i8"),  # prompts of those without a first token; 0 = no limit
        ("reserves_output", "i8"),  # blocks for the whole answer are taken at admission, as before paged caches
        ("scheduler", "i8"),  # whose rules plan its steps: a number that the engines give themselves
        ("max_loras", "i8"),  # distinct adapters in a step; 0 = no LoRA
        ("jump_forward", "i8"),  # text that a grammar forces is computed at once
        ("num_speculative_tokens", "i8"),
        ("num_lookahead_tokens", "i8"),  # slots that the drafter's own KV needs
        ("drops_last_hit", "i8"),  # EAGLE recomputes the last block of a hit
        ("acceptance_rate", "f8"),  # chance that a draft is accepted if those before it were
        ("flops_per_token", "f8"),
        ("expert_flops_per_token", "f8"),  # for each token of all engines that step together; 0 = in flops_per_token
        ("flops_per_attended_token", "f8"),
        ("flops_per_s", "f8"),  # of the whole replica, efficiency included
        ("dense_weight_bytes", "f8"),  # read in every step
        ("expert_weight_bytes", "f8"),  # all routed experts together; 0 for a dense model
        ("expert_hit_share", "f8"),  # experts_per_token / num_experts
        ("kv_bytes_per_token", "f8"),
        ("bytes_per_s", "f8"),  # of the whole replica, efficiency included
        ("handover_s", "f8"),  # from one stage of a pipeline to the next
        ("handover_s_per_token", "f8"),
        ("adapter_bytes", "f8"),  # read for each distinct adapter
        ("max_graph_tokens", "i8"),  # tokens of the largest CUDA graph; 0 = none are used
        ("serial_share", "f8"),  # of the shorter of arithmetic and memory, which the longer does not hide: 0 to 1
        *((term.field, "f8") for term in TERMS),  # seconds: sim/step_terms.py says of what
        ("num_knots", "i8"),  # numbers of tokens at which a step was measured; 0 = all is in the coefficients above
        ("knot_tokens", "f8", (MAX_KNOTS,)),  # ascending
        ("knot_s", "f8", (MAX_KNOTS,)),
        ("fitted_requests", "f8"),  # the largest step that these coefficients were fitted on; inf = they were not fitted
        ("fitted_tokens", "f8"),
        ("fitted_attended_tokens", "f8"),
        ("fitted_kv_tokens", "f8"),
    ],
    align=True,
)
"""One pool's engine: its limits, and the coefficients of its step time (docs/design.md, A step's time)."""

CLOCK = np.dtype(
    [
        ("now_s", "f8"),
        ("num_loaded", "i8"),  # rows of the traffic below this have been let in
        ("next_arrival", "i8"),  # the first of them, of those that follow no other, that has not arrived
        ("num_to_come", "i8"),  # of those let in, how many may still arrive
        ("num_forgotten", "i8"),  # rows below this are over, and their places free
        ("max_follows", "i8"),  # most rows from a request to one that follows it; 0 = none follows another
        ("num_arrived", "i8"),  # ids below this are in the ring of requests
        ("num_taken", "i8"),  # ids below this have been taken out again
        ("is_exhausted", "i8"),  # no traffic after num_loaded
        ("num_arriving", "i8"),  # entries in the heap of arrivals
        ("num_ready", "i8"),  # replicas in fleet.ready
        ("num_offered", "i8"),  # replicas in fleet.offered
        ("unrouted", QUEUE),
        ("num_unrouted", "i8"),
        ("num_queued", "i8"),  # times that a request joined the waiting ones of a replica, or was moved among them
        ("scrape_interval_s", "f8"),  # 0 = the router sees live loads
        ("next_scrape_at_s", "f8"),  # inf when the router sees live loads
        ("times_out_at_s", "f8"),  # no client gives up before; inf when none will
        ("num_scrapes", "i8"),
        ("scraped_at_s", "f8"),  # what the router sees is never younger
        ("routes_in_python", "i8"),
        ("chosen", "i8"),  # the Python router's answer; at the end, a choice that was no candidate
        ("drained", "i8"),  # the slot that has just run dry
        ("num_cut_answers", "i8"),  # at max_tokens or max_model_len
        ("num_ended", "i8"),  # requests that left the system, however
        ("num_in_system", "i8"),
        ("in_system_since_s", "f8"),  # when that number last changed
        ("peak_in_system", "i8"),
        ("max_concurrency", "i8"),  # requests that the client has in flight at most; NO_LIMIT = an open loop
        ("num_held", "i8"),  # requests that it sent later than they were there, because so many were in flight
        ("held_s", "f8"),  # in all
        ("max_held_s", "f8"),
        ("in_system_request_s", "f8"),  # integral of num_in_system over time, for Little's law
        ("num_time_reversals", "i8"),  # invariant 2; stays 0
        ("num_events", "i8"),
        ("num_segments", "i8"),  # segments below this are in their ring
        ("observes", "i8"),  # what the router is told of: a sum of SENT, FIRST_TOKEN, ...
        ("num_noted", "i8"),  # events that it was, or is to be, told of
        ("num_told", "i8"),  # those it was told of
        ("most_noted", "i8"),  # at one step's end
        ("num_lost_events", "i8"),  # stays 0
        ("key_block_size", "i8"),  # of the blocks whose keys it is shown; 0 = none
        ("num_keys", "i8"),  # shown with the request now being routed
        ("sees_sessions", "i8"),
    ],
    align=True,
)


# Why the data plane came back to Python.
REACHED, ENDED, NEEDS_ARRIVALS, NEEDS_ROUTE, DRAINED, BAD_ROUTE, WOKEN, NEEDS_OBSERVER = range(8)


@dataclass(frozen=True, eq=False)
class Fleet(Bundle):
    """All state of the data plane. Request `id` lives in `requests[id & (requests.size - 1)]` while it is in the window."""

    clock: Annotated[Any, CLOCK, 1]  # (1,)
    arriving: Annotated[Any, TIMED, 1]  # (a bound on the entries,) a heap of the rows of which it is known when they are due
    coming: Annotated[Any, COMING, 1]  # (power of two,) a ring over the rows of the traffic that are not over
    row_of: Annotated[Any, "i4", 1]  # (power of two,) a ring like `requests`: the row of the traffic that each one is
    never_sent: Annotated[Any, "i8", 1]  # (num_classes,) rows that never arrive
    blank: Annotated[Any, REQUEST, 1]  # (1,) a request that nothing has happened to yet
    requests: Annotated[Any, REQUEST, 1]  # (power of two,) a ring over the ids in flight
    asking: Annotated[Any, REQUEST_VIEW, 0]  # the request now being routed
    times: Annotated[Any, TIMES, 0]  # when that is
    keys: Annotated[Any, "u8", 1]  # (longest prompt seen so far, in blocks,) of its whole blocks
    event: Annotated[Any, EVENT, 0]  # the one that the router is now told of
    events: Annotated[Any, EVENT, 1]  # (power of two,) a ring over those noted and not yet told
    replicas: Annotated[Any, REPLICA, 1]  # (num_slots,)
    loads: Annotated[Any, LOAD, 1]  # (num_slots,)
    seen: Annotated[Any, LOAD, 1]  # (num_slots,) the router's copy; the same array as `loads` when nothing is stale
    sequences: Annotated[Any, SEQUENCE, 1]  # (power of two,) a ring like `requests`, or one for all where nothing needs it
    segments: Annotated[Any, SEGMENT, 1]  # (power of two,) a ring over the segments of the requests in the window
    classes: Annotated[Any, CLASS, 1]  # (num_classes,)
    grammar_ready_at_s: Annotated[Any, "f8", 2]  # (num_slots, num_classes); inf = not asked for yet
    adapter_step: Annotated[Any, "i8", 2]  # (num_slots, number of adapters + 1) the step that last counted it
    lines: Annotated[Any, LINE, 2]  # (num_slots, num_lines) the waiting requests
    line_of: Annotated[Any, "i8", 1]  # (num_classes,) the line in which a class's requests wait
    blocks: Annotated[Any, BLOCK, 2]  # (num_slots, num_blocks)
    buckets: Annotated[Any, "i4", 2]  # (num_slots, power of two) head of the list of registered blocks whose keys end alike
    tables: Annotated[Any, "i4", 3]  # (num_slots, max_num_seqs, longest sequence) blocks of each running request
    batches: Annotated[Any, BATCH, 2]  # (num_slots, power of two) the steps in flight, by step number
    stages: Annotated[Any, "f8", 2]  # (num_slots, most stages) when each stage of a pipeline will have done all it was given
    engines: Annotated[Any, ENGINE, 1]  # (num_pools,)
    due: Annotated[Any, "i4", 2]  # (num_slots, CALENDAR + CALENDAR_PADDING) head of the list of last tokens due at a step
    growing: Annotated[Any, GROWTH, 2]  # (num_slots, largest block_size) by the residue of the steps at which they need a block
    demand: Annotated[Any, DEMAND, 2]  # (num_pools, num_classes) requests that a full queue turned away are counted too
    unrouted: Annotated[Any, "i8", 2]  # (num_pools, 3) requests that wait and it could serve, their tokens, the new ones
    ready: Annotated[Any, "i8", 1]  # (num_slots,) slots that take requests, in the order they became ready
    offered: Annotated[Any, "i8", 1]  # (num_slots,) the router's candidates; the same array as `ready` when there is one pool
    next_end_at_s: Annotated[Any, "f8", 1]  # (num_slots,) end of the running step; inf when idle
    earliest: Annotated[Any, "i8", 1]  # (2 * power of two,) winner tree over next_end_at_s
    itl_counts: Annotated[Any, "i8", 2]  # (num_pools, NUM_ITL_BINS) inter-token gaps, by bin
    latency_counts: Annotated[Any, "i8", 3]  # (num_pools, 3, NUM_LATENCY_BINS) requests by the bin of their TTFT, TPOT, E2E
    itl_sums: Annotated[Any, "f8", 2]  # (num_pools, 3) sum, sum of squares, maximum, in seconds
    clients: Annotated[Any, CLIENT, 2]  # (num_slots, API servers) the same array as the router's


CALENDAR = 1024
"""Steps ahead that the calendar of last tokens reaches (a power of two); what lies further is filed again on the way."""

CALENDAR_PADDING = 16
"""One cache line more in each replica's row. Rows a power of two apart would compete for the same few places in the cache."""


@dataclass(frozen=True, eq=False)
class RouterView(Bundle):
    """All that a router sees when it is asked for a request or told of an event, and what it remembers.

    The data plane and it share the arrays; a field more changes no router.
    """

    candidates: Annotated[Any, "i8", 1]  # (how many there are,) slots of the replicas that take this request
    request: Annotated[Any, REQUEST_VIEW, 0]
    loads: Annotated[Any, LOAD, 1]  # (num_slots,) what replica `r` last showed
    times: Annotated[Any, TIMES, 0]
    keys: Annotated[Any, "u8", 1]  # (whole blocks of the prompt,) for a router that declares `key_block_size`
    event: Annotated[Any, EVENT, 0]  # for `observe`
    random: Annotated[Any, "i8", 1]  # (2,) the state of its own random numbers (`routers.pick.random_below`)
    clients: Annotated[Any, CLIENT, 2]  # (num_slots, API servers) what each of them has sent; the data plane keeps it
    memory: Annotated[Any, None, 1]  # (memory_size,) of the dtype that it declares, zero at first
    options: Annotated[Any, None, 0]  # by name, as the config gives them

    own_dtypes: tuple[Any, Any] = field(init=False, repr=False)  # of its memory and of its options

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "own_dtypes", (self.memory.dtype, self.options.dtype))


def records(dtype: np.dtype[Any], *shape: int) -> Any:
    """Returns zeroed records whose fields read as attributes, compiled or not; the first begins a cache line."""
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(num_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + num_bytes].view(dtype).reshape(shape).view(np.recarray)
