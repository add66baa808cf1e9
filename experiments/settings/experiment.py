"""What an experiment is: the keys of a config file, with their units, ranges, defaults and meanings."""

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

import autoscalers
import replicas
import traces
from autoscalers import Deciding, JointAutoscaler, Limits
from experiments import calibrated
from experiments.settings.fields import Catalogued, FolderName, Name, Percentile
from experiments.settings.gateway import OPEN, Gateway
from experiments.settings.router import ROUTER, Router
from replicas import catalog
from replicas.catalog import Gpu, Model
from replicas.engine import Engine
from replicas.lifecycle import Lifecycle
from replicas.served import Served, served
from sim.kinds import KindOf
from sim.limits import MAX_SEED, MAX_SLOTS, MAX_TOKENS, MIN_INTERVAL_S
from sim.outside import own_code
from sim.params import Params
from sim.texts import unknown_name
from traces.generated import Generated
from traces.traffic import Traffic

TRAFFIC = KindOf("traffic", traces.KINDS, Traffic)
REPLICAS = KindOf("kind of replica", replicas.KINDS, Engine)
AUTOSCALER = KindOf("autoscaler", autoscalers.KINDS, Limits)


class Targets(Params):
    """Service-level objectives of one kind of request: for each metric, percentiles and their limits."""

    ttft_s: dict[Percentile, Annotated[float, Field(gt=0, le=600)]] | None = Field(
        default=None, description="Limits on the time to first token in seconds, by percentile: {p99: 1.0}"
    )
    tpot_s: dict[Percentile, Annotated[float, Field(gt=0, le=10)]] | None = Field(
        default=None, description="Limits on the time per output token in seconds, by percentile: {p90: 0.05}"
    )
    itl_s: dict[Percentile, Annotated[float, Field(gt=0, le=10)]] | None = Field(
        default=None, description="Limits on the gaps between tokens in seconds, pooled over tokens: {p99: 0.1}"
    )
    e2e_s: dict[Percentile, Annotated[float, Field(gt=0, le=86400)]] | None = Field(
        default=None, description="Limits on the whole request's time in seconds, by percentile: {p99: 30}"
    )


class Slo(Targets):
    """The targets of all requests, and where a class of requests has its own."""

    classes: dict[str, Targets] = Field(
        default={}, description="Targets of a request class; a metric given here replaces the one above"
    )


class RequestKind(Params):
    """What the requests of one class ask of the engine."""

    priority: int = Field(
        default=0,
        ge=-(2**31),
        le=2**31 - 1,
        description="Lower goes first, where an engine's scheduling_policy is priority",
    )
    lora: str | None = Field(default=None, description="The adapter it uses; null = the base model")
    model: str | None = Field(
        default=None, description="The model that it asks for, as a pool has it; null = any that a pool serves"
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        description="Longest answer its clients allow: shorter ones end by an end-of-sequence token that the engine cannot "
        "foresee, longer ones are cut; null = they ask for exactly what they get",
    )
    grammar_s: float = Field(
        default=0.0,
        ge=0,
        description="Structured output: seconds that a replica compiles the grammar for the first such request; 0 = free text",
    )
    num_free_tokens: int = Field(
        default=1,
        ge=1,
        le=MAX_TOKENS,
        description="Structured output: tokens that the grammar leaves open, and then num_forced_tokens follow",
    )
    num_forced_tokens: int = Field(
        default=0,
        ge=0,
        le=MAX_TOKENS,
        description="Structured output: tokens in a row with only one choice, such as the keys of a JSON object",
    )
    timeout_s: float | None = Field(
        default=None,
        gt=0,
        le=86400,
        description="Seconds from sending a request after which its client gives up and the engine aborts it; null = never",
    )


class Measure(Params):
    """Which requests the summary counts: those that arrive within a window."""

    start_s: float = Field(default=0.0, ge=0, description="Start of the window, seconds from the start of the run")
    end_s: float | None = Field(
        default=None, gt=0, description="End of the window, seconds from the start; null = the end of the run"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.end_s is not None and self.end_s <= self.start_s:
            raise ValueError(f"end_s must be after start_s, given start_s {self.start_s:g} and end_s {self.end_s:g}")
        return self


class Pool(Params):
    """Replicas of one kind, scaled together."""

    name: Name = Field(description="The pool's name: in paths, results and pictures")
    model: Annotated[Model, Catalogued(catalog.model, catalog.models)] = Field(
        description="The served model: a name of replicas/models.csv such as llama-3.1-70b, or a mapping"
    )
    gpu: Annotated[Gpu, Catalogued(catalog.gpu, catalog.gpus)] = Field(
        description="The GPU: a name of replicas/gpus.csv such as h100-sxm, or a mapping"
    )
    replicas: Annotated[Engine, REPLICAS] = Field(description="The engine of one replica, in vLLM's words")
    lifecycle: Lifecycle = Field(
        default_factory=Lifecycle, description="How long a new replica takes to get ready, and how an old one leaves"
    )
    autoscaler: Annotated[Limits, AUTOSCALER] = Field(description="How many replicas there are")
    price_per_gpu_hour: float | None = Field(
        default=None, ge=0, description="Dollars per GPU-hour; null = no costs are reported"
    )
    replica_requests_per_s: float | None = Field(
        default=None, gt=0, description="Requests/s that one replica sustains; null = computed from the step time"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.replicas.engine(self.model, self.gpu)  # raises ValueError where the weights leave no room for a cache
        return self


SMOKE_INTERVAL_S = 5.0


class Study(Params):
    """What every kind of config has."""

    name: FolderName = Field(description="Name of the experiment and of its result folder; by default the file's")
    kind: str = Field(description="What is done with the rest")
    seed: int = Field(default=1, ge=0, le=MAX_SEED, description="Seed of everything random")
    seeds: list[Annotated[int, Field(ge=0, le=MAX_SEED)]] | None = Field(
        default=None, min_length=1, description="Several seeds, one run for each; instead of `seed`"
    )

    sweep: dict[str, list[Any] | dict[str, Any]] | None = Field(
        default=None,
        description="Dotted paths, each with a list of values, or a mapping of names for the runs to values; one run for "
        "every combination",
    )

    @classmethod
    def shrink(cls, draft: dict[str, Any]) -> None:
        """Changes a config, not yet checked, into one that runs in seconds: `--smoke`. Its traffic is shortened already."""

    def describe(self) -> list[str]:
        """Returns what follows from the config, line by line, for `--dry-run`."""
        return []


class Experiment(Study):
    """One question to the simulator."""

    kind: Literal["simulate"] = Field(default="simulate", description="What is done with the rest")
    traffic: Annotated[Traffic, TRAFFIC] = Field(description="Who arrives when, with how many prompt and output tokens")
    classes: dict[str, RequestKind] = Field(
        default={}, description="What a class of the traffic asks of the engine: {chat: {priority: 0}, batch: {priority: 1}}"
    )
    slo: Slo = Field(default_factory=Slo, description="Targets that goodput and attainment are measured against")
    gateway: Gateway = Field(default=OPEN, description="Rate limits and admission; by default everything is let in")
    router: Annotated[Router, ROUTER] = Field(description="Which ready replica gets a request")
    pools: list[Pool] = Field(min_length=1, description="The fleet")
    measure: Measure = Field(default_factory=Measure, description="Which requests the summary counts")
    timeline_interval_s: float = Field(
        default=60.0, ge=MIN_INTERVAL_S, description="Seconds that one row of the timeline covers"
    )
    max_drain_s: float = Field(
        default=3600.0,
        ge=0,
        description="Seconds after the last arrival in which requests may still finish; what is left is counted as in flight. "
        "So long, too, a client that holds requests back (max_concurrency) waits for one to end",
    )

    @classmethod
    def shrink(cls, draft: dict[str, Any]) -> None:
        """Measures everything, in intervals of a few seconds at most."""
        draft.pop("measure", None)
        interval = draft.get("timeline_interval_s", SMOKE_INTERVAL_S)
        draft["timeline_interval_s"] = min(interval, SMOKE_INTERVAL_S) if type(interval) in (int, float) else interval

    def window_mistake(self) -> str:
        """Returns what is wrong if nothing can arrive in the measured window; a recording is read for it.

        What a client holds back it sends later, and where a `limit` cuts the traffic only a run shows: that is no mistake.
        """
        start_s = self.measure.start_s
        if start_s == 0 or self.traffic.max_concurrency is not None or start_s <= self.traffic.ends_at_s:
            return ""
        return f"measure.start_s: must lie before the traffic's end at {self.traffic.ends_at_s:,.6g} s, given {start_s:,.6g}"

    def describe(self) -> list[str]:
        """Returns the traffic in a line, and of each pool where its GPUs' memory goes and whose step times it has."""
        lines = [f"traffic: {line}" for line in (self.traffic.describe(), *self.traffic.notes)]
        lines += [f"! {self.model_remark()}"] if self.model_remark() else []
        uses_adapters = any(kind.lora is not None for kind in self.classes.values())
        for pool in self.pools:
            lines += ["", f"pool {pool.name}:", *str(pool.replicas.memory(pool.model, pool.gpu)).splitlines()]
            lines += calibrated.described(pool.replicas, pool.model, pool.gpu, uses_adapters=uses_adapters)
            engine = pool.replicas.engine(pool.model, pool.gpu)[0]
            refused = self.served_by(engine, pool.model).refused(engine)
            lines += [f"  {refused}"] if refused else []
        return lines

    def decides_for(self, pool: Pool) -> Deciding:
        """Returns the autoscaler that decides for a pool: its own, or that of the pool which it is decided with."""
        found = next(one for one in self.pools if one.name == (pool.autoscaler.decided_with or pool.name)).autoscaler
        assert isinstance(found, Deciding)
        return found

    @property
    def decided_together(self) -> list[list[Pool]]:
        """The pools in groups of those that one autoscaler decides for; its own pool goes first."""
        return [
            [pool, *(one for one in self.pools if one.autoscaler.decided_with == pool.name)]
            for pool in self.pools
            if pool.autoscaler.decided_with is None
        ]

    @property
    def models(self) -> list[str]:
        """Names of the models that the pools serve, each once."""
        return list(dict.fromkeys(pool.model.name for pool in self.pools))

    def served_by(self, engine: Any, model: Model) -> Served:
        """Returns what of the traffic this engine (one ENGINE record) of this model would serve."""
        kinds = [self.classes.get(name, RequestKind()) for name in self.traffic.class_names]
        max_tokens = np.array([kind.max_tokens or 0 for kind in kinds])
        asks = np.array([kind.model in (None, model.name) for kind in kinds])
        with own_code(type(self.traffic)):
            sample = self.traffic.sample()
        return served(sample, engine, max_tokens, asks)

    @model_validator(mode="after")
    def _fleet_can_be_held(self) -> Self:
        num_slots = sum(pool.autoscaler.max_machines * pool.replicas.data_parallel_size for pool in self.pools)
        if num_slots > MAX_SLOTS:
            raise ValueError(
                f"pools: max_replicas (times data_parallel_size) come to {num_slots:,} engines; at most {MAX_SLOTS:,} are "
                "simulated"
            )
        return self

    @model_validator(mode="after")
    def _measures_something(self) -> Self:
        if isinstance(self.traffic, Generated) and (mistake := self.window_mistake()):  # others would have to read their file
            raise ValueError(mistake)
        return self

    @model_validator(mode="after")
    def _models_are_served(self) -> Self:
        for name, kind in self.classes.items():
            if kind.model not in (None, *self.models):
                raise ValueError(f"classes.{name}.model: no pool serves {kind.model}; served: {', '.join(self.models)}")
        return self

    def model_remark(self) -> str:
        """Returns whose requests go to whatever model there is room for, where the pools serve several; empty where none do."""
        silent = [name for name in self.traffic.class_names if self.classes.get(name, RequestKind()).model is None]
        if len(self.models) == 1 or not silent:
            return ""
        return (
            f"pools serve {' and '.join(self.models)}, and classes.{silent[0]}.model does not say which of them its requests "
            "ask for: they go to any"
        )

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        names = [pool.name for pool in self.pools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"pools: two pools are named '{twice[0]}'; names must differ")
        for pool in self.pools:
            if mistake := self._joint_mistake(pool):
                raise ValueError(f"pools.{pool.name}.autoscaler.with_pool: {mistake}")
        own, limits = ("classes", self.classes), ("gateway.rate_limits", self.gateway.rate_limits)
        for where, classes in (("slo.classes", self.slo.classes), own, limits):
            unknown = sorted(set(classes) - set(self.traffic.class_names)) if classes else []
            if unknown:
                known = ", ".join(self.traffic.class_names)
                raise ValueError(f"{where}: the traffic has no class named '{unknown[0]}'; known: {known}")
        return self

    def _joint_mistake(self, pool: Pool) -> str:
        """Returns why no other pool's autoscaler can decide for this one, where it should; else empty."""
        named = pool.autoscaler.decided_with
        found = [other.autoscaler for other in self.pools if other.name == named]
        if named is None or (found and isinstance(found[0], JointAutoscaler)):
            return ""
        if not found:
            return unknown_name("pool", named, [other.name for other in self.pools if other is not pool])
        return f"the autoscaler of pool '{named}' decides for no other; it must be a subclass of autoscalers.JointAutoscaler"
