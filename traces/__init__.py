"""Traffic: who arrives when, with how many prompt and output tokens, and which of them are shared."""

from traces.azure import Azure
from traces.concurrent import Concurrent
from traces.constant import Constant
from traces.diurnal import Diurnal
from traces.gamma import Gamma
from traces.mooncake import Mooncake
from traces.poisson import Poisson
from traces.table import Table
from traces.traffic import Traffic, TrafficStream

KINDS: dict[str, type[Traffic]] = {
    "diurnal": Diurnal,
    "poisson": Poisson,
    "gamma": Gamma,
    "constant": Constant,
    "concurrent": Concurrent,
    "azure": Azure,
    "mooncake": Mooncake,
    "table": Table,
}
"""The table of kinds of traffic: `traffic.kind` in YAML chooses."""

__all__ = ["KINDS", "Traffic", "TrafficStream"]
