"""vLLM's scheduler written a second time, to be obviously right rather than fast: lists, every block and token counted.

Restates `Scheduler.schedule` of vLLM 0.32.0 (`vllm/v1/core/sched/scheduler.py`), in our words.
"""

from collections.abc import Iterator
from typing import Any

from tests.property.naive_cache import Pool
from tests.property.naive_request import Request, Row, Settings, Step


class Scheduler:
    """Decides steps (`schedule`) and takes their output (`deliver`); which run when is up to whoever drives it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.waiting: list[Request] = []
        self.skipped: list[Request] = []  # vLLM 0.30
        self.running: list[Request] = []
        self.pool = Pool(settings.num_usable_blocks)
        self.prefix_cache_queries = 0  # tokens looked up by requests admitted for the first time, and tokens found
        self.prefix_cache_hits = 0
        self.num_added = 0
        self.num_plans = 0
        self.is_saturated = False

    def has_requests(self) -> bool:
        return bool(self.line() or self.running)

    def add(self, request: Request) -> None:
        """vLLM takes the clock's time for an arrival time; of requests that arrive at one instant it is never the same."""
        if request.arrival_time is None:
            request.arrival_time = self.num_added
        request.was_passed_by = request.is_structured
        self.num_added += 1
        is_skipped = self.settings.passed_by_go_first and request.is_structured
        (self.skipped if is_skipped else self.waiting).append(request)

    def line(self) -> list[Request]:
        """First come, first served; or 10, last sentence, in whichever queue they are."""
        line = self.skipped + self.waiting
        if self.settings.scheduling_policy == "priority":
            line.sort(key=lambda r: (r.priority, r.arrival_time, r.name))
        return line

    # A step: one token budget, no phases; the running first, in order of admission.

    def schedule(self, now: float) -> Step:
        step = Step(self.settings.max_num_batched_tokens, self.threshold())
        is_decoding = any(not request.is_prefill_chunk for request in self.running)
        is_paced = self.num_plans % self.settings.prefill_schedule_interval != 0
        self.defers_prefills = is_paced and is_decoding and not self.is_saturated
        self.num_plans += 1
        for request in list(self.running):
            if request in self.running and step.budget > 0:  # it may have been preempted on the way
                wanted = self.wanted(request, step)
                if wanted == 0:  # later ones may still get some
                    continue
                if not self.make_room(request, wanted, step):
                    break
                num_drafts = min(request.drafts, max(0, request.computed + wanted - request.num_tokens - request.placeholders))
                step.plan(Row(request, wanted, request.computed, num_drafts))
        assert len(step.loras) <= self.settings.max_loras or not self.settings.max_loras, "vLLM stops here: too many adapters"
        if not step.preempted:  # a step that preempted admits nobody
            self.admit(step, now)
            if not self.defers_prefills:
                self.is_saturated = any(not request.was_passed_by for request in self.line())
        for row in step.rows:
            self.advance(row, step)
        return step

    def threshold(self) -> int:
        """4: how many tokens one request may get; 0 = any number."""
        settings, num_requests = self.settings, len(self.running) + len(self.line())
        if (num_requests <= 1 and not settings.threshold_binds_alone) or settings.long_prefill_token_threshold == 0:
            return 0
        fair = settings.max_num_batched_tokens // num_requests if settings.long_prefill_token_threshold_adaptive else 0
        return max(settings.long_prefill_token_threshold, fair)

    def wanted(self, request: Request, step: Step) -> int:
        """3; and 18: no step is planned past the last token that `max_tokens` allows, even when it has not come out yet.

        With drafts in flight it takes all of them for rejected. Nor before its turn in a pipeline comes again, which without
        async scheduling is when its token has come.
        """
        if self.num_plans < request.next_decode_plan or (self.defers_prefills and request.is_prefill_chunk):
            return 0
        if request.placeholders > 0 and not self.settings.async_scheduling:
            return 0
        at_least = request.computed - (request.placeholders - 1)
        if request.placeholders > 0 and at_least + 1 >= request.num_prompt_tokens + request.limit:
            return 0
        known = request.num_tokens + request.drafts + request.placeholders
        wanted = min(self.at_most(known - request.computed, step), step.budget)
        return min(wanted, self.settings.max_model_len - request.computed - 1)

    def at_most(self, wanted: int, step: Step) -> int:
        return min(wanted, step.threshold) if step.threshold else wanted

    def make_room(self, request: Request, wanted: int, step: Step) -> bool:
        """7: gives it its blocks, preempting others; False when it had to preempt `request` itself."""
        num_blocks = max(self.blocks_for(request.computed + wanted), len(request.blocks))
        while num_blocks - len(request.blocks) > len(self.pool.free):
            victim = self.victim()
            self.preempt(victim, step)
            if victim is request:
                return False
        request.blocks += self.pool.take([], num_blocks - len(request.blocks))
        self.register(request, min(request.computed + wanted, request.num_tokens))
        return True

    def victim(self) -> Request:
        """7: the last, or the first in the list of those that came last among the least important."""
        if self.settings.scheduling_policy == "priority":
            return max(self.running, key=lambda r: (r.priority, r.arrival_time))
        return self.running[-1]

    def preempt(self, victim: Request, step: Step) -> None:
        """8; what a planned step still brings of it is received, and counts for nothing else (`receive`)."""
        self.running.remove(victim)
        step.take_back(victim)
        self.pool.release(victim.blocks)
        victim.blocks = []
        victim.computed = victim.placeholders = victim.drafts = 0
        victim.is_prefill_chunk = False
        victim.next_decode_plan = 0
        victim.num_preemptions += 1
        self.waiting.insert(0, victim)
        step.preempted.append(victim.name)

    def admit(self, step: Step, now: float) -> None:
        """10: down the line, past those that may not run now, until one does not fit."""
        passed = []
        for request in self.line():
            if len(self.running) == self.settings.max_num_seqs or step.budget == 0:
                break
            if self.is_held_up(request, step, now):
                request.was_passed_by = True
                passed.append(request)
                continue
            hits = self.hits(request)
            row = self.first_row(request, len(hits) * self.settings.block_size, step)
            if row is None or not self.fits(row, hits):
                break
            self.start(row, hits, step)
        if self.settings.passed_by_go_first:
            self.skipped = passed + [request for request in self.skipped if request not in passed]
            self.waiting = [request for request in self.waiting if request not in passed]

    def is_held_up(self, request: Request, step: Step, now: float) -> bool:
        """10: it has no grammar yet, or no adapter slot, which the scheduled hold and a running one without tokens does not.

        Or it was preempted, and something of it is still in flight.
        """
        if request.num_in_flight > 0:
            assert self.settings.num_stages > 1, "with two steps in flight its output comes before it can resume"
            return True
        has_no_slot = 0 < self.settings.max_loras == len(step.loras) and request.lora not in {0, *step.loras}
        return now < request.grammar_ready_at or has_no_slot

    def first_row(self, request: Request, cached: int, step: Step) -> Row | None:
        """11: what it would get, or None when that is more than the budget has and may not be less."""
        wanted = request.num_tokens - cached
        if self.defers_prefills and wanted > 1:
            return None
        num_drafts = self.settings.num_speculative_tokens if wanted == 1 and self.is_padded(cached, step) else 0
        if num_drafts and 1 + num_drafts > step.budget:
            return None
        wanted = self.at_most(wanted + num_drafts, step)
        if wanted > step.budget and not self.settings.enable_chunked_prefill:
            return None
        return Row(request, min(wanted, step.budget), cached, num_drafts, is_padded=num_drafts > 0)

    def is_padded(self, cached: int, step: Step) -> bool:
        """A last prompt token alone is made as long as the decodes it joins, to keep their CUDA graph.

        Not with a running prefill among them, and not for a request without a hit that would join nobody.
        """
        num_drafts = self.settings.num_speculative_tokens
        joins_running = len(step.rows) > len(step.new) + len(step.resumed)
        has_prefill = any(row.request.is_prefill_chunk for row in step.rows)
        has_length = cached + 1 + num_drafts + 1 <= self.settings.max_model_len
        return num_drafts > 0 and not has_prefill and (joins_running or cached > 0) and has_length

    def fits(self, row: Row, hits: list[int]) -> bool:
        """12 to 14: all that is known of it has to fit even if only its first chunk is allocated."""
        num_blocks = self.blocks_for(row.num_before + row.num_new)
        if self.settings.scheduler_reserve_full_isl:
            num_blocks = max(num_blocks, -(-row.request.num_tokens // self.settings.block_size))
        watermark = self.settings.watermark_blocks if self.running else 0
        return self.pool.num_needed(hits, num_blocks) + watermark <= len(self.pool.free)

    def start(self, row: Row, hits: list[int], step: Step) -> None:
        request = row.request
        assert not row.is_padded or row.num_new == 1 + row.num_drafts, "vLLM stops here: the threshold cut a padded decode"
        self.leave_line(request)
        self.running.append(request)
        request.was_passed_by = False
        request.computed = row.num_before
        request.blocks = self.pool.take(hits, self.blocks_for(row.num_before + row.num_new))
        self.register(request, min(row.num_before + row.num_new, request.num_tokens))
        if request.num_preemptions == 0:
            request.num_cached_tokens = row.num_before
            self.prefix_cache_queries += request.num_tokens
            self.prefix_cache_hits += row.num_before
        (step.resumed if request.num_preemptions else step.new).append(request.name)
        step.plan(row)

    def advance(self, row: Row, step: Step) -> None:
        """17: what is planned counts as computed; tokens come out of the step that ends the prefill, and of all later ones."""
        request = row.request
        request.computed += row.num_new
        request.num_in_flight += 1
        request.drafts = 0
        request.is_prefill_chunk = request.computed < request.num_tokens + request.placeholders
        row.num_preemptions = request.num_preemptions
        row.has_output = not request.is_prefill_chunk
        if row.has_output:
            row.needs_token = request.placeholders > 0
            step.awaits_tokens |= row.needs_token and request.is_structured
            request.next_decode_plan = self.num_plans + self.settings.num_stages * self.settings.async_scheduling
            request.placeholders += 1 + row.num_drafts
            request.drafts = self.settings.num_speculative_tokens

    # KV blocks.

    def blocks_for(self, num_tokens: int) -> int:
        """14."""
        num_slots = min(num_tokens + self.settings.num_lookahead_tokens, self.settings.max_model_len)
        return -(-num_slots // self.settings.block_size)

    def hits(self, request: Request) -> list[int]:
        """15; at least the last token is computed, or its whole block; for EAGLE the last block that was found as well."""
        if not self.settings.enable_prefix_caching:
            return []
        hits = self.pool.hits(self.keys(request, request.num_tokens - 1))
        return hits[:-1] if self.settings.num_lookahead_tokens else hits

    def register(self, request: Request, num_tokens: int) -> None:
        """15: its full blocks up to there can be hit from now on, although their step has not even begun."""
        if self.settings.enable_prefix_caching:
            self.pool.register(request.blocks, self.keys(request, num_tokens))

    def keys(self, request: Request, num_tokens: int) -> Iterator[Any]:
        block_size = self.settings.block_size
        return (request.key(end) for end in range(block_size, num_tokens + 1, block_size))

    # Output.

    def deliver(self, step: Step, now: float) -> list[str]:
        """Brings the step's tokens out and lets the finished go; returns their names.

        A row of a request that has finished since it was planned is the surplus step of 18: its output is dropped.
        """
        finished = []
        for row in step.rows:
            request = row.request
            request.num_in_flight -= 1
            if row.has_output and not request.is_finished:
                self.receive(row, now)
                if request.received == self.stops_at(request):
                    self.finish(request)
                    finished.append(request.name)
        return finished

    def receive(self, row: Row, now: float) -> None:
        """17; a preempted request has no KV left to correct."""
        request = row.request
        num_accepted = 0 if row.is_padded else min(request.num_accepted(request.received), row.num_drafts)
        num_kept = min(1 + num_accepted, self.stops_at(request) - request.received)
        request.received += num_kept
        request.token_at_s += [now] * num_kept
        if row.num_preemptions == request.num_preemptions:
            num_rejected = row.num_drafts - num_accepted
            request.computed -= num_rejected
            request.placeholders -= num_rejected + num_kept
            if self.settings.async_scheduling:
                self.register(request, request.computed - request.placeholders)

    def stops_at(self, request: Request) -> int:
        """17: after so many output tokens."""
        return min(request.num_output_tokens, request.limit, self.settings.max_model_len - request.num_prompt_tokens)

    def leave_line(self, request: Request) -> None:
        (self.waiting if request in self.waiting else self.skipped).remove(request)

    def finish(self, request: Request) -> None:
        if request in self.running:
            self.running.remove(request)
        else:
            self.leave_line(request)
        self.pool.release(request.blocks)
        request.blocks = []
        request.is_finished = True
