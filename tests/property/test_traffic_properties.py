"""Properties of traffic that hold for any setting."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.randomness import stream
from traces import KINDS, Traffic
from traces.gaps import UnitRenewal
from traces.generated import Generated

LENGTHS = {"prompt": {"kind": "fixed", "tokens": 1}, "output": {"kind": "fixed", "tokens": 1}}
RATES = st.floats(0.001, 50.0)


def make(kind: str, **settings: Any) -> Traffic:
    return KINDS[kind](**settings)


@st.composite
def days(draw: st.DrawFn) -> Generated:
    trough = draw(st.one_of(st.just(0.0), RATES))
    duration_s = draw(st.floats(10.0, 3e5))
    crowd = st.fixed_dictionaries(
        {"at_s": st.floats(0.0, 9.0), "height_per_s": st.floats(0.01, 500.0), "width_s": st.floats(0.001, 1e5)}
    )
    traffic = make(
        "diurnal",
        peak_per_s=trough + draw(RATES),
        trough_per_s=trough,
        peak_hour=draw(st.floats(0, 23.9)),
        shape=draw(st.sampled_from(["cosine", "triangle", "square"])),
        cv=draw(st.sampled_from([0.0, 0.5, 1.0, 5.0])),
        weekend_factor=draw(st.sampled_from([1.0, 0.0, 0.5])),
        first_weekday=draw(st.sampled_from(["monday", "friday", "sunday"])),
        noise=draw(st.sampled_from([0.0, 0.5])),
        flash_crowds=draw(st.lists(crowd, max_size=2)),
        duration_s=duration_s,
        limit=300,
        lengths=LENGTHS,
    )
    assert isinstance(traffic, Generated)
    return traffic


def instants_s(traffic: Generated, chunk_rows: int) -> Any:
    pieces = [rows["arrived_at_s"] for rows in traffic.stream(1, chunk_rows).chunks()]
    return np.concatenate([np.empty(0), *pieces])


@given(days(), st.integers(1, 200))
@settings(max_examples=60)
def test_any_day_is_sorted_in_range_and_the_same_however_it_is_cut(traffic: Generated, chunk_rows: int) -> None:
    at_s = instants_s(traffic, 1 << 17)
    assert (np.diff(at_s) >= 0).all()
    assert ((at_s >= 0) & (at_s < traffic.duration_s)).all()
    assert instants_s(traffic, chunk_rows).tobytes() == at_s.tobytes()


@given(days())
@settings(max_examples=60)
def test_any_day_pulls_its_ticks_back_exactly(traffic: Generated) -> None:
    rate = traffic.rate(1)
    at_s = instants_s(traffic, 1 << 17)
    ticks = UnitRenewal(traffic.gap_cv(), stream(1, "arrivals")).ticks(300)[: len(at_s)]
    total = float(rate.expected(np.array([traffic.duration_s]))[0])
    largest_per_s = 2000.0  # 100 at the peak, two crowds of 500, some noise
    assert np.abs(rate.expected(at_s) - ticks).max(initial=0.0) <= 1e-15 * (total + largest_per_s * 3e5)


@given(days(), st.floats(0, 3e5), st.floats(0, 3e5), st.floats(0, 3e5))
@settings(max_examples=60)
def test_known_rate_is_never_negative_and_adds_up(traffic: Generated, a: float, b: float, c: float) -> None:
    a, b, c = sorted((a, b, c))
    parts = traffic.mean_rate_per_s(a, b) * (b - a) + traffic.mean_rate_per_s(b, c) * (c - b)
    assert parts == pytest.approx(traffic.mean_rate_per_s(a, c) * (c - a), rel=1e-6, abs=1e-4)
    assert traffic.mean_rate_per_s(a, c) >= 0


@given(st.floats(0.1, 10.0), st.floats(0.5, 5.0))
@settings(max_examples=30)
def test_traffic_k_times_as_fast_is_the_same_traffic_in_a_kth_of_the_time(rate_per_s: float, k: float) -> None:
    slow = make("poisson", rate_per_s=rate_per_s, duration_s=100.0, lengths=LENGTHS)
    fast = make("poisson", rate_per_s=rate_per_s, rate_scale=k, duration_s=100.0, lengths=LENGTHS)
    assert isinstance(slow, Generated)
    assert isinstance(fast, Generated)
    one, other = instants_s(slow, 1000), instants_s(fast, 1000)
    num = min(len(one), len(other))
    np.testing.assert_allclose(one[:num], k * other[:num], rtol=1e-9)


CELLS = st.sampled_from(["5", "1", "0", "-2", "", "x", "7.0", "7.5"])
ROWS = st.lists(st.tuples(st.sampled_from(["0", "1", "2.5", "1e3", "", "x"]), CELLS, CELLS), min_size=1, max_size=30)


@given(ROWS, st.sampled_from(["drop", "clip"]), st.booleans(), st.sampled_from([0.4, 1.0, 2.5]))
@settings(max_examples=100)
def test_any_file_is_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], policy: str, sort: bool, scale: float
) -> None:
    path: Path = tmp_path_factory.mktemp("traces") / "t.csv"
    path.write_text("t,in,out\n0,1,1\n" + "".join(f"{','.join(row)}\n" for row in rows))
    trace = make(
        "table",
        path=str(path),
        columns={"arrived_at": "t", "num_prompt_tokens": "in", "num_output_tokens": "out"},
        time_unit="s",
        bad_rows=policy,
        sort_rows=sort,
        rate_scale=scale,
    )
    stream = trace.stream(1)
    pieces = list(stream.chunks())
    counts = stream.counts
    assert counts["read"] == len(rows) + 1
    dropped = sum(num for reason, num in counts.items() if reason.startswith("dropped"))
    assert counts["read"] + counts["copied"] == counts["kept"] + dropped
    for piece in pieces:
        assert (np.diff(piece["arrived_at_s"]) >= 0).all()
        assert min(piece["num_prompt_tokens"].min(), piece["num_output_tokens"].min()) >= 1
