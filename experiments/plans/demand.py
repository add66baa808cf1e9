"""What a plan knows of its traffic: the peak, the mean, the rate over the day, and lengths to try its formulas with."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.plans.config import Plan
from planning.layouts import Work
from planning.pools import Demand
from sim.errors import ConfigError

NUM_SAMPLED = 50_000
"""Requests whose lengths are looked at: a p99 of them is known to 1 %."""

DAY_S = 86_400.0


@dataclass(frozen=True)
class Traffic:
    """The traffic in numbers."""

    peak: Demand
    peak_at_s: float  # middle of the busiest window
    mean_per_s: float
    duration_s: float
    prompts: NDArray[np.int64]  # of requests as they come, (n,)
    outputs: NDArray[np.int64]

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
        """Returns what a mean request asks of a decode."""
        return Work(self.peak.context_tokens, self.peak.context_tokens, tpot_s)


def measured(plan: Plan) -> Traffic:
    """Returns the plan's traffic in numbers.

    Raises:
        ConfigError: nothing arrives.
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
    peak = Demand(float(rates_per_s[busiest]), traffic.mean_prompt_tokens, traffic.mean_output_tokens, plan.cached_share)
    prompts, outputs = _lengths(plan)
    peak_at_s = float(edges_s[busiest] + edges_s[busiest + 1]) / 2
    mean_per_s = traffic.mean_rate_per_s(0.0, duration_s)
    return Traffic(peak, peak_at_s, mean_per_s, duration_s, prompts, outputs)


def rates(plan: Plan, edges_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the mean rate between each two edges, (n - 1,)."""
    pairs = zip(edges_s[:-1].tolist(), edges_s[1:].tolist(), strict=True)
    return np.array([plan.traffic.mean_rate_per_s(start_s, end_s) for start_s, end_s in pairs])


def _lengths(plan: Plan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    chunks: list[Any] = []
    for rows in plan.traffic.stream(plan.seed).chunks():
        chunks.append(rows[["num_prompt_tokens", "num_output_tokens"]].copy())
        if sum(map(len, chunks)) >= NUM_SAMPLED:
            break
    rows = np.concatenate(chunks)[:NUM_SAMPLED]
    return rows["num_prompt_tokens"], rows["num_output_tokens"]
