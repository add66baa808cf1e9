"""The contract's checks for policies of one's own: from the command, and what they notice."""

import sys
from pathlib import Path

import pytest

from experiments.contracts import RouterContract
from experiments.contracts.__main__ import main
from experiments.contracts.checks import results

MINE = """
from autoscalers import Autoscaler, Wanted
from autoscalers.forecaster import Forecaster, Peak

def first(view):
    return int(view.candidates[0])

def fewest(view):
    work = [int(view.loads[r].num_waiting + view.loads[r].num_running) for r in view.candidates]
    ties = [int(r) for r, n in zip(view.candidates, work) if n == min(work)]
    if len(ties) == 1:
        return ties[0]
    view.memory[0] += 1
    return ties[int(view.memory[0]) % len(ties)]

class Growing(Autoscaler):
    def policy(self, known_rate, seed):
        seen = []
        def wanted(view):
            seen.append(view.num_arrived)
            return Wanted(2, "two")
        return wanted

class Flat(Forecaster):
    rate_per_s: float
    def start(self, outlook):
        return lambda arrivals, now_s, end_s: Peak(self.rate_per_s, "flat")
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_policies.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_policies", None)


def test_a_router_that_always_takes_the_first_is_told_what_it_does_wrong(capsys):
    assert main(["my_policies:first"]) == 1
    said = capsys.readouterr().out
    assert "holds  chooses a candidate whatever the loads" in said
    assert "FAILS  all replicas are used: with a scrape each 0 s replicas got [200, 0, 0, 0]" in said
    assert "6 of 14 checks hold" in said


def test_a_router_that_counts_requests_keeps_the_contract(capsys):
    assert main(["my_policies:fewest"]) == 0
    assert "14 of 14 checks hold" in capsys.readouterr().out


def test_what_a_router_declares_decides_what_is_asked_of_it(capsys):
    assert main(["routers:KINDS"]) == 2
    assert "is neither a function" in capsys.readouterr().err

    class Random(RouterContract):
        import routers

        router = routers.KINDS["random"]

    left_out = {one.name for one in results(Random()) if one.held is None}
    assert {"an old view does not make a herd", "no random number is drawn without a tie"} <= left_out
    assert all(one.held is not False for one in results(Random()))


def test_a_memory_that_grows_with_every_tick_is_noticed(capsys):
    assert main(["my_policies:Growing"]) == 1
    assert "FAILS  memory stays bounded" in capsys.readouterr().out


def test_a_forecaster_takes_its_options_and_a_missing_one_is_a_line(capsys):
    assert main(["my_policies:Flat", "rate_per_s=7.5"]) == 1  # it does not describe its option
    assert "FAILS  every field is described: no description of forecaster.rate_per_s" in capsys.readouterr().out
    assert main(["my_policies:Flat"]) == 2
    assert capsys.readouterr().err == "my_policies:Flat: rate_per_s: Field required\n"
