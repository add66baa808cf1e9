"""A few configs of the campaign, so that it stays in working order; `make test-all` runs hundreds."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import autoscalers
import routers
import traces
from experiments.settings.experiment import Experiment, Measure, Pool, RequestKind, Slo
from experiments.settings.gateway import Gateway
from replicas.lifecycle import Lifecycle
from replicas.surrogate import Surrogate
from sim.errors import InvariantError
from sim.simulation import Simulation
from tests.campaign import running
from tests.campaign.__main__ import fault_of
from tests.campaign.configs import config
from tests.campaign.running import Outcome, run_config
from tests.campaign.shrink import shrunk

SEEDS = (1, 3, 6, 8, 10, 12, 16, 19, 21, 23, 30, 38, 39, 40)
"""Of configs that serve somebody."""

NOT_DRAWN = {"kind", "seeds", "sweep"}
"""Of a config: what else can be done with one than to run it, and several runs of one."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_config_keeps_its_books_and_comes_out_the_same_twice(seed: int, tmp_path: Path) -> None:
    document = config(seed, tmp_path)
    once, again = (run_config(document, tmp_path) for _ in range(2))
    assert fault_of(once, again) == ""
    assert once.num_requests > 0


def sections(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each section of a config by its name, and its kind if it has one."""
    yield "top", document
    yield f"traffic {document['traffic']['kind']}", document["traffic"]
    yield f"router {document['router']['kind']}", document["router"]
    yield from ((name, document[name]) for name in ("slo", "gateway", "measure") if name in document)
    yield from (("classes", one) for one in document["classes"].values())
    for pool in document["pools"]:
        yield from (("pool", pool), ("replicas", pool["replicas"]), ("lifecycle", pool["lifecycle"]))
        yield f"autoscaler {pool['autoscaler']['kind']}", pool["autoscaler"]


def test_every_option_that_a_run_has_is_drawn(tmp_path: Path) -> None:
    """A new option belongs into the campaign."""
    drawn = defaultdict(set)
    for seed in range(400):
        for name, section in sections(config(seed, tmp_path)):
            drawn[name] |= set(section)
    wanted = {"top": Experiment, "slo": Slo, "gateway": Gateway, "measure": Measure, "classes": RequestKind, "pool": Pool}
    wanted |= {"replicas": Surrogate, "lifecycle": Lifecycle}
    wanted |= {f"traffic {name}": kind for name, kind in traces.KINDS.items()}
    wanted |= {f"autoscaler {name}": kind for name, kind in autoscalers.KINDS.items()}
    wanted |= {f"router {name}": kind.options for name, kind in routers.KINDS.items()}
    missing = {name: set(options.model_fields) - drawn[name] - NOT_DRAWN for name, options in wanted.items()}
    assert {name: options for name, options in missing.items() if options} == {}


def test_a_broken_invariant_is_a_fault_that_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*facts: Any, **more: Any) -> None:
        raise InvariantError("invariant 9: made up")

    monkeypatch.setattr("sim.simulation.check", broken)
    outcome = run_config(config(1, tmp_path), tmp_path)
    assert outcome.fault.startswith("test_campaign.py:")
    assert outcome.fault.endswith("InvariantError: invariant 9: made up")


def test_a_request_that_is_in_no_count_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is given up, with requests that it never sent; they are forgotten, as if they had never been let in."""
    document = config(1, tmp_path)
    document["traffic"] = {"kind": "concurrent", "limit": 20, "max_concurrency": 1, "lengths": LENGTHS}
    document |= {"pools": [{**document["pools"][0], "autoscaler": {"kind": "fixed", "replicas": 0}}], "max_drain_s": 1.0}
    for name in ("classes", "slo", "gateway"):
        document[name] = {}
    document.pop("measure", None)
    assert run_config(document, tmp_path).fault == ""
    drop = Simulation.drop_unsent

    def forgotten(simulation: Simulation) -> None:
        drop(simulation)
        simulation.plane.fleet.clock.num_loaded -= simulation.num_never_sent.sum()
        simulation.num_never_sent[:] = 0

    monkeypatch.setattr(Simulation, "drop_unsent", forgotten)
    assert run_config(document, tmp_path).fault == "19 requests of the traffic are in no count"


LENGTHS = {"prompt": {"kind": "fixed", "tokens": 10}, "output": {"kind": "fixed", "tokens": 10}}


def test_a_wrong_config_is_refused_and_no_fault(tmp_path: Path) -> None:
    outcome = run_config(config(1, tmp_path) | {"max_drain_s": -1.0}, tmp_path)
    assert outcome.fault == ""
    assert "max_drain_s" in outcome.refusal


def test_two_runs_that_differ_are_a_fault() -> None:
    assert fault_of(Outcome(digest="a"), Outcome(digest="b")) == "its two runs differ"
    assert fault_of(Outcome(digest="a"), Outcome(digest="a", fault="it fell")) == "it fell"


def test_every_table_of_a_run_is_compared(tmp_path: Path) -> None:
    assert run_config(config(1, tmp_path), tmp_path).fault == ""
    left = {path.name for path in (tmp_path / "campaign_1").iterdir()}
    assert left - {"manifest.json", "plots"} == set(running.TABLES)


def test_a_failing_config_is_made_as_small_as_still_fails() -> None:
    document = {"a": [1, 2, 3], "b": {"c": 4, "d": {"e": 5}}, "f": 6}
    assert shrunk(document, lambda one: 2 in one.get("a", []) and "e" in one.get("b", {}).get("d", {})) == {
        "a": [2],
        "b": {"d": {"e": 5}},
    }
