"""The door between the data plane and the engines: who stands behind it, side by side, and who is not let in."""

import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from experiments import run
from experiments.contracts import fleets
from replicas.catalog import gpu, model
from replicas.schedulers import STATIC, VLLM
from replicas.surrogate import Surrogate


@pytest.mark.parametrize("number", [-1, 2])
def test_an_engine_that_is_neither_vllms_nor_static_is_refused(number: int) -> None:
    """Compiled code would take it for vLLM's."""
    message = f"engine of pool 0: no scheduler has number {number}; known: 0 (vllm), 1 (static)"
    with pytest.raises(ValueError, match=re.escape(message)):
        fleets.run(fleets.arrivals([(0.0, 5, 3)]), fleets.engine(scheduler=number))


@pytest.mark.parametrize(("batching", "scheduler"), [("continuous", VLLM), ("orca", VLLM), ("static", STATIC)])
def test_the_option_batching_says_which_engine_it_is(batching: str, scheduler: int) -> None:
    engine = Surrogate(batching=batching, max_num_batched_tokens=131_072).engine(model("llama-3.1-8b"), gpu("h100-sxm"))
    assert engine["scheduler"].tolist() == [scheduler]


@pytest.mark.parametrize("batching", ["orca", "static"])
def test_batching_that_splits_no_prompts_refuses_a_threshold_that_would(batching: str) -> None:
    with pytest.raises(ValueError, match=f"batching {batching} has no long_prefill_token_threshold"):
        Surrogate(batching=batching, long_prefill_token_threshold=100)


def test_two_engines_side_by_side_each_go_by_their_own_rules(tmp_path: Path) -> None:
    """On the static one nobody is scheduled before all that were scheduled earlier are done; on vLLM's somebody is."""
    lengths = {"prompt": {"kind": "fixed", "tokens": 100}, "output": {"kind": "exponential", "mean": 40, "max": 400}}
    pools = [
        {
            "name": batching,
            "model": "qwen3-0.6b",
            "gpu": "l4",
            "replicas": {"kind": "surrogate", "max_model_len": 1000, "batching": batching, "max_num_seqs": 8},
            "autoscaler": {"kind": "fixed", "replicas": 2},
        }
        for batching in ("continuous", "static")
    ]
    document = {
        "traffic": {"kind": "poisson", "rate_per_s": 50, "duration_s": 10, "lengths": lengths},
        "router": {"kind": "random"},
        "pools": pools,
    }
    path = tmp_path / "side_by_side.yaml"
    path.write_text(yaml.safe_dump(document))
    requests: pd.DataFrame = run(path, out=tmp_path, progress=False).requests
    assert (requests["status"] == "finished").all()
    waits = {pool: served.groupby("replica").apply(_nobody_joins).all() for pool, served in requests.groupby("pool")}
    assert waits == {"continuous": False, "static": True}


def _nobody_joins(served: pd.DataFrame) -> bool:
    batches = served.groupby("scheduled_at_s")["finished_at_s"].max()
    assert len(batches) > 10
    return bool((batches.index[1:] >= batches.cummax()[:-1]).all())
