"""What a plan knows of its traffic: the peak, the mean, the rate over the day, lengths, and what of it is never served."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planning.layouts import Work, instances
from planning.plans.config import Plan
from planning.pools import Demand
from sim.errors import ConfigError
from traces.recorded import Recorded
from traces.reuse import ideal_hit_rate

NUM_SAMPLED = 50_000
"""Requests whose lengths are looked at: a p99 of them is known to 1 %. Of a file all rows are read, and as many are kept."""

MOST_LOOKED_THROUGH = 200_000
"""Requests whose shared tokens are looked through, at some 5 us each."""

DAY_S = 86_400.0


@dataclass(frozen=True)
class Lengths:
    """Lengths of the requests as they come, of those that can be served; and what became of the others."""

    prompts: NDArray[np.int64]  # (n,)
    outputs: NDArray[np.int64]
    longest: int  # tokens of prompt and answer together that some layout can hold
    num_looked_at: int
    num_served: int  # of them, no longer than `longest`
    scales: tuple[float, float]  # mean prompt and mean answer of those served over those of all
    counts: Mapping[str, int] = field(default_factory=dict)  # rows read, kept, dropped and clipped, by reason

    @property
    def served_share(self) -> float:
        """Of the requests, those that are short enough."""
        return self.num_served / self.num_looked_at


@dataclass(frozen=True)
class Traffic:
    """The traffic in numbers; rates and means are of the requests that can be served."""

    peak: Demand
    peak_at_s: float  # middle of the busiest window
    mean_per_s: float
    duration_s: float
    lengths: Lengths
    own_cached_share: float | None = None  # of the prompt tokens, what one endless cache would find; None = they share nothing
    uses_own_share: bool = False  # as the share that is planned with

    @property
    def prompts(self) -> NDArray[np.int64]:
        """Prompt tokens of requests as they come, (n,)."""
        return self.lengths.prompts

    @property
    def outputs(self) -> NDArray[np.int64]:
        """Output tokens of the same."""
        return self.lengths.outputs

    @property
    def mean_tokens_per_s(self) -> float:
        """Prompt and output tokens/s, mean over the traffic."""
        return self.mean_per_s * (self.peak.prompt_tokens + self.peak.output_tokens)

    @cached_property
    def biased_context_tokens(self) -> float:
        """Mean context of the requests in a batch, where a long answer stays longer: above prompt + half the output."""
        outputs = self.outputs.astype(np.float64)
        return float((outputs * (self.prompts + outputs / 2)).sum() / outputs.sum())

    def work(self, tpot_s: float | None) -> Work:
        """Returns what a mean request asks of a decode; answers of one token have no TPOT to keep."""
        return Work(self.peak.context_tokens, self.peak.context_tokens, tpot_s if self.peak.has_decodes else None)


def measured(plan: Plan) -> Traffic:
    """Returns the plan's traffic in numbers.

    Raises:
        ConfigError: nothing arrives, or no layout could hold any of it.
        TraceError: the traffic's file is wrong.
    """
    traffic = plan.traffic
    duration_s = traffic.ends_at_s
    if duration_s <= 0:
        raise ConfigError("traffic: nothing arrives after the first instant, so there is no rate to plan for")
    edges_s = np.append(np.arange(0.0, duration_s, plan.peak_window_s), duration_s)
    if len(edges_s) > 2 and edges_s[-1] - edges_s[-2] < plan.peak_window_s / 2:
        edges_s = np.delete(edges_s, -2)  # a short rest is no window of its own
    rates_per_s = rates(plan, edges_s)
    busiest = int(np.argmax(rates_per_s))
    if rates_per_s[busiest] <= 0:
        raise ConfigError("traffic: its expected rate is 0 throughout")
    lengths = _lengths(plan)
    share = lengths.served_share
    prompt_scale, output_scale = lengths.scales
    own = _own_cached_share(plan)
    uses_own = own is not None and plan.cached_share is None and plan.replicas.enable_prefix_caching is not False
    cached_share = own if uses_own else plan.cached_share
    peak = Demand(
        float(rates_per_s[busiest]) * share,
        traffic.mean_prompt_tokens * prompt_scale,
        traffic.mean_output_tokens * output_scale,
        cached_share or 0.0,
    )
    peak_at_s = float(edges_s[busiest] + edges_s[busiest + 1]) / 2
    mean_per_s = traffic.mean_rate_per_s(0.0, duration_s) * share
    return Traffic(peak, peak_at_s, mean_per_s, duration_s, lengths, own, uses_own)


def rates(plan: Plan, edges_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the mean rate of all requests between each two edges, (n - 1,)."""
    pairs = zip(edges_s[:-1].tolist(), edges_s[1:].tolist(), strict=True)
    return np.array([plan.traffic.mean_rate_per_s(start_s, end_s) for start_s, end_s in pairs])


def _lengths(plan: Plan) -> Lengths:
    """Looks at the first requests of generated traffic, and at all of a file, whose dropped rows are to be counted."""
    longest = _longest(plan)
    stream, kept = plan.traffic.stream(plan.seed), list[Any]()
    num_kept = num_all = num_served = 0
    tokens, served = np.zeros(2), np.zeros(2)  # of prompts and answers
    for rows in stream.chunks():
        both = np.stack([rows["num_prompt_tokens"], rows["num_output_tokens"]])
        fits = both[:, both.sum(axis=0) <= longest]
        tokens, served = tokens + both.sum(axis=1), served + fits.sum(axis=1)
        num_all, num_served = num_all + both.shape[1], num_served + fits.shape[1]
        kept.append(fits[:, : NUM_SAMPLED - num_kept])
        num_kept += kept[-1].shape[1]
        if num_kept == NUM_SAMPLED and not isinstance(plan.traffic, Recorded):
            break
    if not num_all:
        raise ConfigError(f"traffic: with seed {plan.seed} no request arrives within its {plan.traffic.ends_at_s:,.6g} s")
    if not num_served:
        raise ConfigError(
            f"traffic: none of the {num_all:,} requests looked at can be served: prompt and answer may be {longest:,} tokens "
            "together; raise max_model_len or num_gpu_blocks of replicas"
        )
    prompts, outputs = np.concatenate(kept, axis=1)
    scales = served / num_served / (tokens / num_all)
    counts = dict(stream.counts) if isinstance(plan.traffic, Recorded) else {}
    return Lengths(prompts, outputs, longest, num_all, num_served, (float(scales[0]), float(scales[1])), counts)


def _longest(plan: Plan) -> int:
    """The longest request that some layout serves; without a layout that can run there is no limit to say."""
    longest = []
    for one in plan.hardware:
        for instance in instances(plan.replicas, plan.model, one.gpu, one.gpus_per_node, plan.expert_parallel_sizes):
            try:
                engine = instance.engine
            except ValueError:
                continue  # the page says why
            held = int(engine.num_usable_blocks) * int(engine.block_size) + 1  # the last token is never read
            longest.append(min(int(engine.max_model_len), held))
    return max(longest, default=int(np.iinfo(np.int64).max))


def _own_cached_share(plan: Plan) -> float | None:
    """What the requests share by themselves: of the first ones, of which there are enough to tell."""
    traffic = plan.traffic
    if not traffic.shares_tokens:
        return None
    limit = MOST_LOOKED_THROUGH if traffic.limit is None else min(traffic.limit, MOST_LOOKED_THROUGH)
    return ideal_hit_rate(traffic.model_copy(update={"limit": limit}).stream(plan.seed), plan.replicas.block_size)
