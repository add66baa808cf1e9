"""What a plan is: the keys of a config file of `kind: plan`."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from experiments.calibrated import described
from experiments.settings.experiment import REPLICAS, TRAFFIC, Study, Targets
from experiments.settings.fields import Catalogued
from experiments.settings.router import ROUTER, Router
from planning.published import PublishedFleet
from replicas import catalog
from replicas.catalog import Gpu, Model
from replicas.engine import Engine
from replicas.lifecycle import Lifecycle
from replicas.surrogate import Surrogate
from sim.limits import MAX_SEED, MIN_INTERVAL_S
from sim.params import Params
from traces.traffic import Traffic


class Hardware(Params):
    """A GPU that can be rented, and at what price."""

    gpu: Annotated[Gpu, Catalogued(catalog.gpu, catalog.gpus)] = Field(
        description="The GPU: a name of replicas/gpus.csv such as h100-sxm, or a mapping"
    )
    price_per_gpu_hour: float = Field(gt=0, description="Dollars per GPU-hour")
    price_as_of: str = Field(default="", description="When that was the price, and where: '2026-11, list price of ...'")
    gpus_per_node: int = Field(default=8, ge=1, description="GPUs with fast links between them: the widest tensor parallelism")


class ApiPrice(Params):
    """What somebody else charges for the same tokens."""

    name: str = Field(min_length=1, description="Who")
    input_per_million: float = Field(ge=0, description="Dollars per million prompt tokens")
    output_per_million: float = Field(gt=0, description="Dollars per million output tokens")
    as_of: str = Field(default="", description="When that was the price, and where")


class Published(Params):
    """A day of a fleet that somebody published; the page runs it backwards."""

    name: str = Field(min_length=1, description="Whose")
    source: str = Field(min_length=1, description="Where it was published")
    peak_nodes: float = Field(gt=0, description="Most nodes at a time")
    mean_nodes: float = Field(gt=0, description="Nodes, mean over the day")
    gpus_per_node: int = Field(default=8, ge=1, description="GPUs of a node")
    input_tokens: float | None = Field(default=None, gt=0, description="Prompt tokens of the day, cached ones included")
    cached_input_tokens: float = Field(default=0.0, ge=0, description="Of those, found in a cache")
    output_tokens: float | None = Field(default=None, gt=0, description="Output tokens of the day")
    input_tokens_per_s_per_node: float | None = Field(
        default=None, gt=0, description="Prompt tokens/s of a prefill node, cached ones included"
    )
    output_tokens_per_s_per_node: float | None = Field(default=None, gt=0, description="Output tokens/s of a decode node")

    @model_validator(mode="after")
    def _is_a_fleet(self) -> Self:
        self.fleet()  # raises ValueError where the numbers do not fit each other
        return self

    def fleet(self) -> PublishedFleet:
        """Returns the numbers alone."""
        return PublishedFleet(**self.model_dump(exclude={"name", "source"}))


class Trials(Params):
    """How a plan is simulated, where `verify` or `search` asks for it."""

    seeds: list[Annotated[int, Field(ge=0, le=MAX_SEED)]] = Field(
        default=[1, 2, 3], min_length=2, description="Seeds of the traffic; all candidates see the same, each seed once"
    )
    confidence: float = Field(
        default=0.95, gt=0.5, lt=1, description="How sure, over the seeds, that the share of requests within a target is enough"
    )
    duration_s: float | None = Field(default=600.0, gt=0, description="Seconds of traffic around the peak; null = all traffic")
    router: Annotated[Router, ROUTER] = Field(
        default_factory=lambda: ROUTER.parse({"kind": "least_tokens"}), description="Which replica a request goes to"
    )


class Plan(Study):
    """From traffic and prices to a fleet and a bill: layouts, pools, the day, break-even and what could change it."""

    kind: Literal["plan"] = Field(description="What is done with the rest")
    traffic: Annotated[Traffic, TRAFFIC] = Field(description="Who arrives when, with how many prompt and output tokens")
    peak_window_s: float = Field(default=300.0, gt=0, description="The peak is the highest mean rate over this many seconds")
    slo: Targets = Field(default_factory=Targets, description="The targets; a plan knows ttft_s and tpot_s")
    model: Annotated[Model, Catalogued(catalog.model, catalog.models)] = Field(
        description="The served model: a name of replicas/models.csv such as llama-3.1-70b, or a mapping"
    )
    hardware: list[Hardware] = Field(min_length=1, description="The GPUs to choose from")
    replicas: Annotated[Engine, REPLICAS] = Field(
        default_factory=Surrogate, description="The engine of one instance, in vLLM's words; its parallelism is searched"
    )
    tensor_parallel_sizes: list[Annotated[int, Field(ge=1)]] | None = Field(
        default=None, min_length=1, description="Layouts to look at; null = 1, 2, 4, 8 within a node"
    )
    prefill_tensor_parallel_size: int | None = Field(
        default=None,
        ge=1,
        description="Of the instances of a separate prefill pool; null = as the decode pool's, whose own is searched",
    )
    expert_parallel_sizes: list[Annotated[int, Field(ge=2)]] = Field(
        default=[],
        description="Groups of GPUs that share the experts of a layer, each with the whole of attention and requests of its "
        "own, to look at too; by closed form only",
    )
    prefill_mfu: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the peak arithmetic that a prefill reaches, links included; null = by the engine's options",
    )
    max_utilization: float = Field(default=0.8, gt=0, le=1, description="Share of the capacity that the peak may take")
    num_spare: int = Field(
        default=0, ge=0, description="Instances of each pool on top, so that this many may fail (N+k); no part of simulations"
    )
    cached_share: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="Share of each prompt that a prefix cache holds; null = what the traffic's own prompts share, as one "
        "endless cache would find it, and trials then simulate the caches",
    )
    pools: Literal["separate", "shared", "cheapest"] = Field(
        default="cheapest",
        description="Prefill and decode on GPUs of their own, or both on all with chunked prefill; the page shows both",
    )
    kv_bytes_per_s: float = Field(
        default=50e9, gt=0, description="From a prefill to a decode instance; 50 GB/s is an assumption of docs/sources.md [1]"
    )
    lifecycle: Lifecycle = Field(default_factory=Lifecycle, description="How long a new instance takes to get ready")
    interval_s: float = Field(
        default=60.0, ge=MIN_INTERVAL_S, le=3600, description="Seconds between two decisions of an autoscaler"
    )
    api_prices: list[ApiPrice] = Field(default=[], description="What to compare the fleet's cost with")
    published: Published | None = Field(default=None, description="A published fleet to run backwards")
    verify: bool = Field(default=False, description="Simulate the plan and show how far off the closed forms are")
    search: Literal["min_gpus"] | None = Field(
        default=None, description="min_gpus: the fewest replicas of each layout that meet the targets, by simulation"
    )
    trials: Trials = Field(default_factory=Trials, description="How the plan is simulated")

    @classmethod
    def shrink(cls, draft: dict[str, Any]) -> None:
        """Simulates with two seeds alone."""
        trials = draft.get("trials")
        draft["trials"] = {**(trials if isinstance(trials, dict) else {}), "seeds": [1, 2]}

    def describe(self) -> list[str]:
        """Returns the traffic in a line, and whose step times the plan stands on; how large its batches are, its page says."""
        sizes = self.tensor_parallel_sizes or [1]
        widest = self.replicas.model_copy(update={"tensor_parallel_size": max(sizes)})
        return [
            *(f"traffic: {line}" for line in (self.traffic.describe(), *self.traffic.notes)),
            *dict.fromkeys(line for one in self.hardware for line in described(widest, self.model, one.gpu, 0)),
        ]

    @property
    def tpot_s(self) -> float | None:
        """The longest step that the TPOT target allows."""
        return min(self.slo.tpot_s.values()) if self.slo.tpot_s else None

    @field_validator("slo", mode="before")
    @classmethod
    def _has_one_set_of_targets(cls, slo: Any) -> Any:
        if isinstance(slo, dict) and "classes" in slo:
            raise ValueError("a plan has the same targets for all classes of its traffic; give them without slo.classes")
        return slo

    @model_validator(mode="after")
    def _can_be_planned(self) -> Self:
        if type(self.replicas) is not Surrogate:
            raise ValueError("replicas: a plan is worked out for simulated engines only, kind: surrogate")
        if self.slo.itl_s or self.slo.e2e_s:
            raise ValueError("slo: a plan has targets for ttft_s and tpot_s only")
        one = self.replicas
        if (one.tensor_parallel_size, one.data_parallel_size, one.pipeline_parallel_size) != (1, 1, 1):
            raise ValueError("replicas: parallelism is searched; give tensor_parallel_sizes instead")
        if self.expert_parallel_sizes and not self.model.num_experts:
            raise ValueError(f"expert_parallel_sizes: {self.model.name} has no experts")
        if self.prefill_mfu is not None and self.replicas.calibration is not None:
            raise ValueError("prefill_mfu has no effect with a calibration, which has measured it; leave it out")
        if self.search and not (self.slo.ttft_s or self.slo.tpot_s):
            raise ValueError("search: min_gpus needs targets in slo")
        if self.search and self.pools == "separate":
            raise ValueError("search: min_gpus looks for shared pools; pools: separate goes with verify: true")
        return self
