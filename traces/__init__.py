"""Traffic: who arrives when, with how many prompt and output tokens, and which of them are shared."""

from sim.kinds import Kinds
from traces.traffic import Traffic, TrafficStream

KINDS: Kinds[type[Traffic]] = Kinds(
    {
        "diurnal": "traces.diurnal:Diurnal",
        "poisson": "traces.poisson:Poisson",
        "gamma": "traces.gamma:Gamma",
        "constant": "traces.constant:Constant",
        "concurrent": "traces.concurrent:Concurrent",
        "azure": "traces.azure:Azure",
        "mooncake": "traces.mooncake:Mooncake",
        "table": "traces.table:Table",
    }
)
"""The table of kinds of traffic: `traffic.kind` in YAML chooses."""

__all__ = ["KINDS", "Traffic", "TrafficStream"]
