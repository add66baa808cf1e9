"""The fleets of a plan: for each GPU the layouts, and the pools of the best one, apart and shared, at the peak."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.calibrated import outside
from planning.balance import Mixed, mixed_capacity
from planning.costs import TokenCost, dollars_per_million, token_cost
from planning.instance import Instance
from planning.layouts import Layout, Work, instances, layout
from planning.plans.config import Hardware, Plan
from planning.plans.demand import Traffic
from planning.pools import Demand, PoolPlan, cached_tokens, decode_pool, prefill_pool, shared_pool
from replicas.capacity import Capacity, capacity


@dataclass(frozen=True)
class Case:
    """What a fleet is sized for; the sensitivities change one thing each."""

    demand: Demand
    work: Work
    capacity_share: float = 1.0  # of what the closed forms promise
    longest: tuple[float, float] | None = None  # a prompt at the TTFT's percentile, in tokens, and the seconds it may take


@dataclass(frozen=True)
class Fleet:
    """One way to serve the peak: all instances alike, in one pool or in two."""

    arrangement: str  # separate or shared
    hardware: Hardware
    instance: Instance
    prefill: Instance  # of a separate prefill pool; else the same
    layout: Layout  # of a full decode
    pools: tuple[PoolPlan, ...]
    demand: Demand
    max_utilization: tuple[float, ...]  # of each pool: the share of its capacity that the peak may take
    balance: Mixed | None = None  # of a shared instance at its capacity
    bound: Capacity | None = None  # the most that a shared instance could do if every step did the mean step's work
    closed_form: "Fleet | None" = None  # what the closed form says of this layout, where simulation has said another size

    @property
    def extrapolated(self) -> list[str]:
        """Its steps that are larger than any that its calibration was fitted on, in words."""
        demand = self.demand
        found = []
        if demand.has_decodes and self.instance.is_extrapolated(self.layout.batch, 1, demand.context_tokens - 1):
            found.append(f"{self.layout.batch:,} decodes on {demand.context_tokens:,.0f} tokens each")
        if self.prefill.is_extrapolated(1, demand.prompt_tokens - demand.cached_tokens, demand.cached_tokens):
            found.append(f"a prompt of {demand.prompt_tokens:,.0f} tokens")
        return found

    @property
    def outside(self) -> list[str]:
        """What its step times stand on that nobody measured, besides their size, in words."""
        instances = {id(one): one for one in (self.instance, self.prefill)}.values()
        return [*dict.fromkeys(said for one in instances for said in _outside(one, self.layout.batch))]

    @property
    def working(self) -> dict[str, int]:
        """Instances of each pool, the spare ones left out."""
        return {pool.role: pool.num_instances - pool.num_spare for pool in self.pools}

    @property
    def num_gpus(self) -> int:
        """All GPUs."""
        return sum(pool.num_gpus for pool in self.pools)

    @property
    def dollars_per_hour(self) -> float:
        """What they cost."""
        return self.num_gpus * self.hardware.price_per_gpu_hour

    @property
    def utilization(self) -> float:
        """Of the fullest pool, at the peak."""
        return max(pool.utilization for pool in self.pools)

    @property
    def capacity_per_s(self) -> float:
        """Requests/s at which its first pool is full."""
        return self.demand.requests_per_s / self.utilization

    @property
    def tokens_per_request(self) -> float:
        """Prompt and output."""
        return self.demand.prompt_tokens + self.demand.output_tokens

    @property
    def full_cost(self) -> float:
        """Dollars per million tokens at its capacity: the least that they can cost."""
        per_s = self.capacity_per_s * self.tokens_per_request
        return dollars_per_million(self.num_gpus, self.hardware.price_per_gpu_hour, per_s)

    def cost(self, requests_per_s: float, gpus: float | None = None) -> TokenCost:
        """Returns dollars per million tokens at a rate, with `gpus` of its GPUs (all of them unless given).

        A shared pool's GPUs are split by the time that its prompts and its answers would take alone.
        """
        gpus = self.num_gpus if gpus is None else gpus
        share = self.prefill_share
        input_per_s, output_per_s = requests_per_s * self.demand.prompt_tokens, requests_per_s * self.demand.output_tokens
        cost = token_cost(gpus * share, gpus * (1 - share), self.hardware.price_per_gpu_hour, input_per_s, output_per_s)
        if self.arrangement == "separate":
            return cost
        rule = "GPUs to input and output by the time that either would take alone"
        return TokenCost(rule, cost.per_million, cost.per_million_input, cost.per_million_output)

    @property
    def prefill_share(self) -> float:
        """Share of the GPUs that works on prompts."""
        if self.arrangement == "separate":
            return self.pools[0].num_gpus / self.num_gpus
        demand = self.demand
        prefill = 1 / self.instance.prefill_tokens_per_s(demand.prompt_tokens, demand.cached_tokens)
        prompt_s = prefill * (demand.prompt_tokens - demand.cached_tokens)
        answer_s = (demand.output_tokens - 1) / self.layout.tokens_per_s if self.layout.tokens_per_s else 0.0
        return prompt_s / (prompt_s + answer_s)

    @property
    def name(self) -> str:
        """For people: 19 + 9 x TP4 h100-sxm."""
        names = [self.layout_of(pool.role) for pool in self.pools]
        counts = [str(pool.num_instances) for pool in self.pools]
        if len(set(names)) > 1:
            counts = [f"{count} x {name}" for count, name in zip(counts, names, strict=True)]
            return f"{' + '.join(counts)} {self.hardware.gpu.name}"
        return f"{' + '.join(counts)} x {self.layout.name} {self.hardware.gpu.name}"

    def layout_of(self, role: str) -> str:
        """Returns the parallelism of a pool's instances: TP4."""
        if role == "prefill" and self.prefill is not self.instance:
            return f"TP{self.prefill.replicas.tensor_parallel_size}"
        return self.layout.name


def _outside(instance: Instance, batch: int) -> list[str]:
    found = outside(instance.replicas, instance.model, instance.gpu, batch)
    if instance.replicas.calibration is not None and not instance.is_simulated:
        shares = f"a group of {instance.expert_parallel_size} GPUs that share experts"
        found.append(f"{shares if instance.num_stages == 1 else f'{instance.num_stages} stages'}, fitted without")
    return found


@dataclass(frozen=True)
class Option:
    """One GPU and what can be made of it."""

    hardware: Hardware
    layouts: tuple[Layout, ...]
    separate: Fleet | None
    shared: Fleet | None

    def fleet(self, pools: str) -> Fleet | None:
        """Returns the fleet that the plan asks for, if it can be built."""
        found = {"separate": [self.separate], "shared": [self.shared]}.get(pools, [self.shared, self.separate])
        fleets = [fleet for fleet in found if fleet is not None]
        return min(fleets, key=lambda fleet: fleet.num_gpus) if fleets else None


def base_case(plan: Plan, traffic: Traffic) -> Case:
    """Returns the plan's own case: the peak, in means."""
    longest = None
    if plan.slo.ttft_s:
        percentile, limit_s = max(plan.slo.ttft_s.items(), key=lambda item: float(item[0][1:]))
        longest = float(np.percentile(traffic.prompts, float(percentile[1:]))), limit_s
    return Case(traffic.peak, traffic.work(plan.tpot_s), longest=longest)


ARRANGEMENTS = ("separate", "shared")


def option(
    plan: Plan,
    hardware: Hardware,
    case: Case,
    only: Instance | None = None,
    arrangements: Sequence[str] = ARRANGEMENTS,
) -> Option:
    """Returns what can be made of one GPU.

    The layout of separate pools is the one with the most output tokens/s/GPU within the TPOT target, or the most prompt tokens
    where answers have one token; a shared pool takes the one that needs the fewest GPUs. Ties go to fewer GPUs an instance.

    Args:
        plan: the config.
        hardware: one of its GPUs.
        case: what to size for.
        only: an instance to keep to, instead of a search.
        arrangements: of the pools, to look at.
    """
    candidates = list(candidates_of(plan, hardware)) if only is None else [only]
    found = [_laid_out(plan, one, case) for one in candidates]
    able = [(one, made) for one, made in found if not made.problem]
    separate = shared = None
    decoding = able
    if plan.prefill_tensor_parallel_size is not None:  # then these prefill nothing, and a long prompt is not theirs
        decoding = [(one, made) for one in candidates if not (made := layout(one, case.work)).problem]
    if decoding and "separate" in arrangements:
        one, made = max(decoding, key=lambda pair: _tokens_per_s_per_gpu(pair[0], pair[1], case.demand))
        separate = _separate(plan, hardware, one, made, case)
    if "shared" in arrangements:
        fleets = [fleet for one, made in able if (fleet := _shared(plan, hardware, one, made, case))]
        shared = min(fleets, key=lambda fleet: fleet.num_gpus, default=None)
    return Option(hardware, tuple(made for _, made in found), separate, shared)


def _tokens_per_s_per_gpu(one: Instance, made: Layout, demand: Demand) -> float:
    if demand.has_decodes:
        return made.tokens_per_s_per_gpu
    return one.prefill_tokens_per_s(demand.prompt_tokens, demand.cached_tokens) / one.num_gpus


def candidates_of(plan: Plan, hardware: Hardware) -> Iterator[Instance]:
    """Yields the instances that the plan allows on one GPU."""
    for one in instances(plan.replicas, plan.model, hardware.gpu, hardware.gpus_per_node, plan.expert_parallel_sizes):
        if (
            one.expert_parallel_size > 1
            or plan.tensor_parallel_sizes is None
            or one.replicas.tensor_parallel_size in plan.tensor_parallel_sizes
        ):
            yield one


def _laid_out(plan: Plan, one: Instance, case: Case) -> tuple[Instance, Layout]:
    """An instance at the plan's MFU and what it does; where a long prompt alone takes longer than TTFT may, a problem."""
    made = layout(one, case.work)
    if made.problem:
        return one, made
    if plan.prefill_mfu is not None:
        one = one.with_mfu(plan.prefill_mfu, case.demand.prompt_tokens)
    if case.longest is not None:
        tokens, limit_s = case.longest
        alone_s = one.prefill_s(tokens, cached_tokens(tokens, case.demand.cached_share))
        if alone_s > limit_s:
            problem = (
                f"a prompt of {tokens:,.0f} tokens alone takes {alone_s:.3g} s on {made.gpu}, and TTFT may be {limit_s:g} s"
            )
            return one, replace(made, problem=problem)
    return one, made


def _separate(plan: Plan, hardware: Hardware, one: Instance, made: Layout, case: Case) -> Fleet | None:
    """None where the prefill pool's own instances cannot be built, or are too slow for a long prompt.

    Answers of one token have no decode pool: prefill makes it.
    """
    prefill = one
    if plan.prefill_tensor_parallel_size is not None:
        sizes = instances(plan.replicas, plan.model, hardware.gpu, hardware.gpus_per_node, [])
        given = [other for other in sizes if other.replicas.tensor_parallel_size == plan.prefill_tensor_parallel_size]
        able = [other for other, laid in (_laid_out(plan, other, case) for other in given) if not laid.problem]
        if not able:
            return None
        prefill = able[0]
    pools = [prefill_pool(prefill, case.demand, plan.max_utilization, plan.num_spare)]
    if case.demand.has_decodes:
        pools.append(decode_pool(made, case.demand, plan.max_utilization, plan.num_spare))
    derated = tuple(pool.derated(case.capacity_share, plan.max_utilization) for pool in pools)
    shares = (plan.max_utilization,) * len(pools)
    return Fleet("separate", hardware, one, prefill, made, derated, case.demand, shares)


def _shared(plan: Plan, hardware: Hardware, one: Instance, made: Layout, case: Case) -> Fleet | None:
    """None for a pipeline or a group, or where one request in the engine is already too slow."""
    if not one.is_simulated:
        return None
    demand, tpot_s = case.demand, case.work.tpot_s
    lengths = max(1.0, demand.prompt_tokens - demand.cached_tokens), demand.output_tokens
    found = mixed_capacity(one.engine, *lengths, tpot_s)
    if found is None:
        return None
    bound = capacity(one.engine, *lengths, tpot_s)
    if not bound.is_within_tpot:  # the mean step has a part of a prompt in it, and is no bound on steps that have none
        bound = capacity(one.engine, *lengths)
    pool = shared_pool(one, found, demand, plan.max_utilization, plan.num_spare)
    pool = pool.derated(case.capacity_share, plan.max_utilization)
    return Fleet("shared", hardware, one, one, made, (pool,), demand, (plan.max_utilization,), found, bound)


def why_not(plan: Plan, options: Sequence[Option], case: Case) -> str:
    """Returns why no fleet can be built, in a line for each layout."""
    lines = [f"no fleet with pools: {plan.pools} can be built of this hardware:"]
    for one in options:
        problems = [f"{made.name}: {made.problem or _why_not_shared(plan, one.hardware, made, case)}" for made in one.layouts]
        lines += [
            f"  {one.hardware.gpu.name}: {problem}" for problem in problems or ["none of tensor_parallel_sizes fits its node"]
        ]
    return "\n".join(lines)


def _why_not_shared(plan: Plan, hardware: Hardware, made: Layout, case: Case) -> str:
    """Why a layout that can decode does not make a shared pool, or a pool of its own for prefill."""
    one = next(one for one in candidates_of(plan, hardware) if _laid_out(plan, one, case)[1].name == made.name)
    if not one.is_simulated:
        return "a plan has shared pools of plain engines only"
    if plan.pools == "separate":
        return f"no prefill pool of TP{plan.prefill_tensor_parallel_size} can be built beside it"
    if _shared(plan, hardware, one, made, replace(case, work=replace(case.work, tpot_s=None))) is None:
        return f"not one request of {case.work.held_tokens:,.0f} tokens fits in its cache"
    return "a request alone is slower than the TPOT target"
