"""What every policy must do, ours or yours: checks to subclass in your tests, or to run by `python -m experiments.contracts`.

In a test file, with pytest:

    from experiments.contracts import RouterContract
    from my_routers import mine

    class TestMine(RouterContract):
        router = mine

Each check says in its docstring what it holds a policy to; which of them apply follows from what the policy declares.
"""

from experiments.contracts.autoscaler import AutoscalerContract
from experiments.contracts.router import RouterContract
from experiments.contracts.traffic import TrafficContract

__all__ = ["AutoscalerContract", "RouterContract", "TrafficContract"]
