"""A shadow serves what the live replica serves: off by nothing if it is the same engine, by what it is told if it is not."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import routers
from experiments import run as run_config
from experiments.contracts.fleets import engine, run
from replicas.live.process import Watch
from replicas.live.shadow import Shadow, described
from sim.records import CLASS, records
from tests.commands import ROOT
from tests.unit.replicas.live.test_live_replicas import SETTINGS, source, surrogate, workload

CONFIG = ROOT / "configs" / "live_smoke.yaml"


def shadowed(simulated: Any, num_replicas: int = 1) -> list[Shadow]:
    """Runs a live fleet with a shadow beside each replica."""
    arriving, segments = workload(2)
    kind = routers.KINDS["round_robin"]
    shadows: dict[int, Shadow] = {}

    def shadow_of(slot: int) -> Shadow:
        if slot not in shadows:
            shadows[slot] = Shadow(simulated, records(CLASS, 1), routers.start(kind, 1, seed=0))
        return shadows[slot]

    watch: Watch = lambda replica, began_at_s, step: shadow_of(replica.books.slot).watch(replica, began_at_s, step)  # noqa: E731
    run(arriving, surrogate(SETTINGS), replicas=num_replicas, segments=segments, source=source(SETTINGS), watches=[watch])
    for shadow in shadows.values():
        shadow.finish()
    assert sum(len(shadow.pairs) for shadow in shadows.values()) == len(arriving)
    return list(shadows.values())


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_the_shadow_of_its_own_engine_is_off_by_nothing(num_replicas: int) -> None:
    for shadow in shadowed(surrogate(SETTINGS), num_replicas):
        pairs = np.array(shadow.pairs)
        np.testing.assert_allclose(pairs[:, 3:], pairs[:, 1:3], rtol=0, atol=1e-9)
        measured, predicted = np.array(shadow.steps).T
        np.testing.assert_allclose(measured, predicted)


def test_a_shadow_that_is_a_tenth_slower_says_so() -> None:
    slower = surrogate(SETTINGS)
    slower["overhead_s"] *= 1.1
    slower["flops_per_s"] /= 1.1
    (shadow,) = shadowed(slower)
    text = described("main/0", shadow)
    assert text.startswith("shadow of main/0: +10.0% of ")
    pairs = np.array(shadow.pairs)
    assert np.median(pairs[:, 4] / pairs[:, 2]) > 1.1  # ten percent slower steps, and a queue that grows with them


def test_an_idle_shadow_has_nothing_to_say() -> None:
    kind = routers.KINDS["round_robin"]
    shadow = Shadow(engine(), records(CLASS, 1), routers.start(kind, 1, seed=0))
    assert described("main/0", shadow) == "shadow of main/0: nothing served yet"


def test_an_experiment_reports_its_shadows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = ["sweep=null", "pools.main.replicas.kind=tests.live_engines:Naive", "pools.main.replicas.shadow=true"]
    result = run_config(CONFIG, out=tmp_path, sets=sets, progress=False)
    table = pd.read_parquet(result.folder / "shadow.parquet")
    assert sorted(table["request"]) == result.requests["id"].tolist()
    whole = table.set_index("request").sort_index()
    assert whole["live_e2e_s"].to_numpy() == pytest.approx(result.requests["e2e_s"].to_numpy())
    assert set(result.manifest["shadow"]) == {"main/0", "main/1"}
    said = capsys.readouterr().err
    assert "shadow of main/0: " in said
    assert "shadow of main/1: " in said
