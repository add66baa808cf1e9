"""What the naive engine is told (`Settings`, `Request`) and what it decides (`Step`)."""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """vLLM's options, by vLLM's names; `num_usable_blocks` leaves the null block out.

    `speculative_method` is how drafts are made: 'eagle' needs KV for them and recomputes the last block of a hit, 'ngram' does
    not. Not here: draft models (their extra slots), `max_num_scheduled_tokens`, connectors, encoders.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_usable_blocks: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    scheduler_reserve_full_isl: bool = True
    watermark_blocks: int = 0
    async_scheduling: bool = False
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduling_policy: str = "fcfs"
    enable_prefix_caching: bool = False
    max_loras: int = 0  # without LoRA
    num_speculative_tokens: int = 0
    speculative_method: str = "ngram"
    num_stages: int = 1  # vLLM's pipeline_parallel_size
    prefill_schedule_interval: int = 1
    threshold_binds_alone: bool = False  # vLLM 0.30, as the next
    passed_by_go_first: bool = False

    @property
    def max_in_flight(self) -> int:
        """18."""
        return self.num_stages + self.async_scheduling

    @property
    def num_lookahead_tokens(self) -> int:
        """14."""
        return self.num_speculative_tokens if self.speculative_method == "eagle" else 0


@dataclass(eq=False)
class Request:
    """A request as a user and the model make it, and how far it has come.

    It ends with its `num_output_tokens`-th token, of itself (EOS), or before that where `max_tokens` or `max_model_len` cut
    it off. `max_tokens` is all that the scheduler knows; None says that it is `num_output_tokens`.
    """

    name: str
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int | None = None
    priority: int = 0  # lower ones first
    arrival_time: float | None = None  # None: its number in the order of arrival
    lora: int = 0  # 0: none
    grammar_ready_at: float = -math.inf  # an instant for `by_time`, a step for `by_step`; as it is: no structured output
    tokens: Callable[[int], Hashable] | None = None  # what is at a position, prompt first; None: all its own
    num_accepted: Callable[[int], int] = lambda _: 0  # of the drafts that follow so many output tokens
    timeout_s: float = math.inf  # after which its client gives up, for `by_time`

    computed: int = 0  # tokens with KV, the scheduled ones included
    placeholders: int = 0  # output tokens that scheduled steps may yield
    drafts: int = 0  # to be verified in its next step
    received: int = 0  # output tokens that came out
    blocks: list[int] = field(default_factory=list)
    is_prefill_chunk: bool = False  # its last step left a part of its tokens to later ones
    num_in_flight: int = 0  # steps planned with it whose output is not processed
    next_decode_plan: int = 0  # of the scheduler's plans, the first in which it may decode again
    was_passed_by: bool = False  # since it waits
    token_due_at_s: float = 0.0  # when its latest planned token comes out, for `by_time`
    num_preemptions: int = 0
    is_finished: bool = False
    num_cached_tokens: int = 0  # found in the prefix cache when it was first admitted
    sent_at_s: float | None = None
    given_up_at_s: float | None = None
    scheduled_at_s: float | None = None
    token_at_s: list[float] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.received

    @property
    def limit(self) -> int:
        return self.num_output_tokens if self.max_tokens is None else self.max_tokens

    @property
    def times_out_at_s(self) -> float:
        assert self.sent_at_s is not None
        return self.sent_at_s + self.timeout_s

    @property
    def is_structured(self) -> bool:
        return self.grammar_ready_at > -math.inf

    def key(self, end: int) -> Hashable:
        """15: what the KV of a block that ends there depends on: the adapter, and every token up to it."""
        return self.lora, tuple(self.tokens(i) if self.tokens else (self.name, i) for i in range(end))


@dataclass
class Row:
    """A request's part of a step."""

    request: Request
    num_new: int
    num_before: int  # computed, or found in the prefix cache
    num_drafts: int = 0  # among the new ones
    is_padded: bool = False  # its drafts are placeholders that nobody made; none will be accepted
    has_output: bool = False
    needs_token: bool = False  # that a step in flight yields
    num_preemptions: int = 0  # of the request, when this was planned


@dataclass
class Step:
    """What one step does: its rows, in scheduling order, and who moved."""

    budget: int
    threshold: int
    rows: list[Row] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    awaits_tokens: bool = False  # masks depend on tokens in flight
    preempted: list[str] = field(default_factory=list)

    @property
    def loras(self) -> set[int]:
        return {row.request.lora for row in self.rows} - {0}

    def plan(self, row: Row) -> None:
        self.rows.append(row)
        self.budget -= row.num_new

    def take_back(self, request: Request) -> None:
        """7: a victim of this very step gives its tokens back."""
        for row in [row for row in self.rows if row.request is request]:
            self.rows.remove(row)
            self.budget += row.num_new

    def features(self) -> dict[str, float]:
        """What a step-time model may know of it."""
        return {
            "num_requests": len(self.rows),
            "num_tokens": sum(row.num_new for row in self.rows),
            "attended_tokens": sum(row.num_new * (row.num_before + row.num_new / 2) for row in self.rows),
            "kv_tokens": sum(row.num_before + row.num_new for row in self.rows),
        }
