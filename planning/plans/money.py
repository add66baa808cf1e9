"""A plan against an API: at which use, and at which rate, a fleet of one's own becomes the cheaper one."""

from dataclasses import dataclass, replace

from experiments.pages.figures import percent
from planning.costs import blended_price, break_even_utilization
from planning.plans.config import ApiPrice, Plan
from planning.plans.day import PlannedDay
from planning.plans.demand import Traffic
from planning.plans.fleets import Fleet


@dataclass(frozen=True)
class BreakEven:
    """One API beside the fleet, in dollars per million tokens, prompt and output together."""

    api: str
    as_of: str
    api_per_million: float
    fleet_per_million_full: float  # at the fleet's capacity: the least it can be
    flips_at_utilization: float  # above it the fleet is cheaper; above 1 it never is
    flips_at_per_s: float  # the same in requests/s of the peak's fleet
    smallest_fleet_gpus: int
    smallest_fleet_pays_from_per_s: float  # requests/s; inf where it is full before
    verdicts: dict[str, str]  # policy of the day -> who is cheaper, and by how much

    @property
    def never_pays(self) -> bool:
        """Whether the API is cheaper even when the fleet is full."""
        return self.flips_at_utilization >= 1


def break_even(plan: Plan, traffic: Traffic, fleet: Fleet, day: PlannedDay) -> list[BreakEven]:
    """Returns the comparison with each API of the plan."""
    return [_against(traffic, fleet, day, api) for api in plan.api_prices]


def _against(traffic: Traffic, fleet: Fleet, day: PlannedDay, api: ApiPrice) -> BreakEven:
    demand = traffic.peak
    price = blended_price(api.input_per_million, api.output_per_million, demand.prompt_tokens, demand.output_tokens)
    flips_at = break_even_utilization(fleet.full_cost, price)
    smallest = _smallest(fleet)
    pays_from = smallest.dollars_per_hour / 3600 / (price * fleet.tokens_per_request / 1e6)
    return BreakEven(
        api=api.name,
        as_of=api.as_of,
        api_per_million=price,
        fleet_per_million_full=fleet.full_cost,
        flips_at_utilization=flips_at,
        flips_at_per_s=flips_at * fleet.capacity_per_s,
        smallest_fleet_gpus=smallest.num_gpus,
        smallest_fleet_pays_from_per_s=pays_from if pays_from <= smallest.capacity_per_s else float("inf"),
        verdicts={one.policy: _verdict(one.per_million, price) for one in day.policies},
    )


def _smallest(fleet: Fleet) -> Fleet:
    """One instance of each pool, and the spares: the same fleet for next to no traffic."""
    return replace(fleet, pools=tuple(replace(pool, num_instances=1 + pool.num_spare) for pool in fleet.pools))


def _verdict(fleet: float, api: float) -> str:
    """Says who is cheaper.

    >>> _verdict(0.1, 0.2), _verdict(0.3, 0.2)
    ('own fleet, 50 % cheaper', 'API, 33 % cheaper')
    """
    if fleet <= api:
        return f"own fleet, {percent(1 - fleet / api, 0)} cheaper"
    return f"API, {percent(1 - api / fleet, 0)} cheaper"
