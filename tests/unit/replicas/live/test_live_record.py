"""A recording in real time is in the form that calibration and validation read; the engine is the naive one."""

from pathlib import Path

import numpy as np
import pytest

from accuracy.measured.recordings import Recording as ReadRecording
from replicas.live.record import record
from tests.live_engines import NaiveEngine, per_token
from tests.unit.replicas.live.test_live_replicas import SETTINGS

NUM = 30


def recorded(max_s: float = 60.0) -> tuple[object, list[list[int]]]:
    rng = np.random.default_rng(1)
    prompts = [[7] * 8 + rng.integers(1, 999, n).tolist() for n in rng.integers(1, 40, NUM)]
    arriving = [(0.01 * k, int(n)) for k, n in enumerate(rng.integers(1, 20, NUM))]
    return record(NaiveEngine(SETTINGS, per_token), arriving, prompts, max_s), prompts


def test_it_is_read_as_it_was_served(tmp_path: Path) -> None:
    recording, prompts = recorded()
    meta = {"engine_args": {"max_num_seqs": 6, "enforce_eager": True}, "num_gpu_blocks": 61}
    recording.write(tmp_path, "low", meta, prompts)  # type: ignore[attr-defined]
    read = ReadRecording(tmp_path, "low")
    requests = read.requests
    assert len(requests) == NUM
    assert requests["prompt_len"].tolist() == [len(prompt) for prompt in prompts]
    assert read.prompts == prompts
    assert read.meta["num_gpu_blocks"] == 61
    order = requests[["arrival_s", "added_s", "first_sched_s", "first_token_s", "last_token_s"]].to_numpy()
    assert (np.diff(order[:, [0, 1, 3, 4]], axis=1) >= 0).all()
    # the naive engine says that planning began when the step did: after the request was added
    assert (order[:, 2] >= order[:, 1]).all()
    assert requests["cached_tokens"].sum() > 0
    assert read.steps["num_tokens"].sum() >= requests["prompt_len"].sum() - requests["cached_tokens"].sum()
    assert len(read.gaps_s) == (requests["output_len"] - 1).sum()


def test_arrivals_are_not_early_and_none_comes_after_the_end() -> None:
    recording, _ = recorded(max_s=0.1)
    served = recording.requests  # type: ignore[attr-defined]
    # one each 10 ms for 100 ms; the naive engine's steps take what Python takes
    assert 2 <= len(served) <= 11
    assert all(one.added_s >= one.arrival_s for one in served)
    assert all(one.is_finished for one in served)
    assert served[0].num_preemptions == pytest.approx(0)
