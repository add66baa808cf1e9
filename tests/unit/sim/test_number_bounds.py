"""Numbers too large for the simulator's records are refused where they come in; none wraps around."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from experiments.contracts.fleets import Kept, engine
from experiments.contracts.fleets import arrivals as rows_of
from experiments.settings.experiment import Experiment, RequestKind
from experiments.settings.loading import load as load_runs
from experiments.wiring import Wiring
from replicas.catalog import gpu, model
from replicas.surrogate import Surrogate
from sim.errors import ConfigError, TraceError
from sim.limits import MAX_CLASSES, MAX_TOKENS
from sim.metrics import NUM_ITL_BINS
from sim.records import ARRIVAL
from sim.window import load, new_fleet
from traces import KINDS, Traffic
from traces.cells import MISSING, instants_ns, whole_numbers
from traces.segments import Segments
from traces.traffic import Arrivals

WRAPS = 2**32 + 100
"""A prompt of this many tokens was once served as one of 100."""
ROWS = [(0, 10, 5), (1, WRAPS, 5), (2, 10, WRAPS), (3, 10, 5)]
NO_ACTIVATIONS = {"activation_bytes": 0.0}
LENGTHS = {"prompt": {"kind": "fixed", "tokens": 10}, "output": {"kind": "fixed", "tokens": 5}}


def written(folder: Path, ending: str) -> tuple[str, dict[str, Any]]:
    """A file of ROWS in the format of each reader, and the settings that read it."""
    path = folder / f"trace.{ending}"
    names = {"arrived_at": "t", "num_prompt_tokens": "in", "num_output_tokens": "out"}
    if ending == "csv":
        path.write_text("t,in,out\n" + "\n".join(f"{t},{i},{o}" for t, i, o in ROWS))
    elif ending == "jsonl":
        path.write_text("\n".join(json.dumps({"t": t, "in": float(i), "out": o}) for t, i, o in ROWS))
    elif ending == "parquet":
        pq.write_table(pa.table(dict(zip(("t", "in", "out"), map(list, zip(*ROWS, strict=True)), strict=True))), path)
    elif ending == "azure.csv":
        lines = [f"2023-11-16 18:15:4{t}.0000000,{i},{o}" for t, i, o in ROWS]
        path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines))
        return "azure", {"path": str(path)}
    else:
        keys = ("timestamp", "input_length", "output_length", "hash_ids")
        path.write_text("\n".join(json.dumps(dict(zip(keys, (*row, [1]), strict=True))) for row in ROWS))
        return "mooncake", {"path": str(path)}
    return "table", {"path": str(path), "columns": names, "time_unit": "s"}


def taken(traffic: Traffic) -> tuple[Any, dict[str, int]]:
    stream = traffic.stream(1)
    rows = np.concatenate(list(stream.chunks()))
    return rows, dict(stream.counts)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "azure.csv", "mooncake.jsonl"])
def test_a_prompt_of_4_thousand_million_tokens_is_named_and_not_served_as_100(tmp_path: Path, ending: str) -> None:
    kind, settings = written(tmp_path, ending)
    with pytest.raises(TraceError, match=r"row 2: \w+ is 4,294,967,396; allowed: at most 1,000,000,000"):
        taken(KINDS[kind](**settings))
    for policy in ("drop", "clip"):  # it cannot be mended
        rows, counts = taken(KINDS[kind](**settings, bad_rows=policy))
        assert counts == {"read": 4, "kept": 2, "dropped_too_many_tokens": 2}
        assert rows["num_prompt_tokens"].tolist() == [10, 10]
        assert rows["num_output_tokens"].tolist() == [5, 5]


@pytest.mark.parametrize("tokens", [MAX_TOKENS, 1])
def test_the_largest_and_smallest_lengths_are_read_as_they_are(tmp_path: Path, tokens: int) -> None:
    (tmp_path / "t.csv").write_text(f"arrived_at_s,num_prompt_tokens,num_output_tokens\n0,{tokens},{tokens}\n")
    rows, counts = taken(KINDS["table"](path=str(tmp_path / "t.csv"), time_unit="s"))
    assert rows[["num_prompt_tokens", "num_output_tokens"]].tolist() == [(tokens, tokens)]
    assert counts == {"read": 1, "kept": 1}


@pytest.mark.parametrize(
    "law",
    [
        {"kind": "fixed", "tokens": WRAPS},
        {"kind": "uniform", "low": 1, "high": WRAPS},
        {"kind": "exponential", "mean": 4e9},
        {"kind": "exponential", "mean": 1e300},
        {"kind": "exponential", "mean": 100.0, "max": WRAPS},
        {"kind": "exponential", "mean": 100.0, "min": WRAPS},
        {"kind": "lognormal", "mean": 4e9, "p50": 3e9},
        {"kind": "empirical", "values": [10, WRAPS]},
        {"kind": "empirical", "values": [10, 2**70]},
    ],
)
def test_a_law_of_lengths_beyond_any_request_is_refused(law: dict[str, Any]) -> None:
    for lengths in (LENGTHS | {"prompt": law}, LENGTHS | {"output": law}):
        with pytest.raises(ValidationError, match=r"1000000000|1,000,000,000"):
            KINDS["poisson"](rate_per_s=1.0, duration_s=10.0, lengths=lengths)


def test_lengths_of_a_file_beyond_any_request_name_the_row(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text(f"in\n5\n{WRAPS}\n")
    law = {"kind": "empirical", "path": str(tmp_path / "lengths.csv"), "column": "in"}
    with pytest.raises(TraceError, match="row 2: in is '4294967396'; a length is 1 to 1,000,000,000 tokens"):
        taken(KINDS["poisson"](rate_per_s=1.0, duration_s=10.0, lengths=LENGTHS | {"prompt": law}))


def test_a_heavy_tail_ends_at_the_cap_that_stands_in_its_description_and_in_its_mean() -> None:
    law = {"kind": "lognormal", "mean": 1e8, "p50": 1.0}
    traffic = KINDS["concurrent"](limit=20_000, lengths=LENGTHS | {"prompt": law})
    tokens = taken(traffic)[0]["num_prompt_tokens"]
    assert tokens.max() == MAX_TOKENS
    assert traffic.mean_prompt_tokens == pytest.approx(tokens.mean(), abs=5 * tokens.std() / 20_000**0.5)


@pytest.mark.parametrize("prefixes", [{"tokens": WRAPS}, {"tokens": {"kind": "fixed", "tokens": 2**70}}])
def test_a_prefix_beyond_any_request_is_refused(prefixes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="1000000000"):
        KINDS["poisson"](rate_per_s=1.0, duration_s=10.0, lengths=LENGTHS, prefixes=prefixes)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("poisson", {"rate_per_s": 1e300, "duration_s": 10.0}, r"requests are expected, and a run has at most 2,147,483,647"),
        ("poisson", {"rate_per_s": 1e300, "rate_scale": 1e300, "duration_s": 10.0}, r"(inf|nan) requests are expected"),
        ("diurnal", {"peak_per_s": 1e6, "trough_per_s": 0.0}, r"4.32e\+10 requests are expected"),
        ("constant", {"rate_per_s": 1e-9, "duration_s": 1e12}, r"duration_s\n.*less than or equal to 316224000"),
        ("concurrent", {"limit": 2**31}, r"limit\n.*less than or equal to 2147483647"),
        ("concurrent", {"limit": 5, "max_concurrency": 2**63}, r"max_concurrency\n.*less than or equal to 2147483647"),
    ],
)
def test_more_requests_or_seconds_than_a_run_counts_are_refused(kind: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        KINDS[kind](lengths=LENGTHS, **settings)


def test_a_rate_beyond_any_run_is_cut_by_a_limit() -> None:
    assert len(taken(KINDS["poisson"](rate_per_s=1e12, duration_s=10.0, limit=3, lengths=LENGTHS))[0]) == 3


def test_a_trace_over_centuries_is_refused_and_not_wrapped(tmp_path: Path) -> None:
    year_s = 366 * 86_400
    for first, last in ((0, 12), (-291, 291)):  # the difference of the last two does not fit into 64 bits of nanoseconds
        rows = [f"{year * year_s * 0.998:.0f},5,5" for year in range(first, last)]
        (tmp_path / "t.csv").write_text("arrived_at_s,num_prompt_tokens,num_output_tokens\n" + "\n".join([*rows, rows[-1]]))
        with pytest.raises(TraceError, match=r"at most 3.16224e\+08 s \(ten years\) are replayed: is the time unit right"):
            taken(KINDS["table"](path=str(tmp_path / "t.csv"), time_unit="s"))


def test_a_time_scale_that_leads_beyond_any_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrived_at_s,num_prompt_tokens,num_output_tokens\n0,5,5\n1,5,5\n")
    for time_scale in (1e9, 1e308):
        with pytest.raises(TraceError, match=r"traffic: request 1: arrived_at_s is .*; allowed: 0.0 to 316,224,000.0"):
            taken(KINDS["table"](path=str(tmp_path / "t.csv"), time_unit="s", time_scale=time_scale))


@pytest.mark.parametrize("cell", ["9999-12-31 00:00:00", "0001-01-01 00:00:00"])
def test_a_date_beyond_nanoseconds_is_missing(cell: str) -> None:
    assert instants_ns(pa.array(["2024-05-10 00:00:00", cell]), "iso8601")[1] == MISSING


def test_true_is_no_number_of_tokens() -> None:
    assert whole_numbers(pa.array([True, False])).tolist() == [MISSING, MISSING]


# Whatever a kind of traffic yields


class Custom(Traffic):
    """A user's own kind, which yields what it is given."""

    field: str
    value: Any

    def arrivals(self, seed: int, counts: Counter[str], segments: Segments, chunk_rows: int) -> Iterator[Arrivals]:
        rows = np.zeros(3, ARRIVAL)
        rows["num_prompt_tokens"] = rows["num_output_tokens"] = 5
        rows[self.field][2] = self.value
        yield rows[:1]
        yield rows[1:]

    def mean_rate_per_s(self, start_s: float, end_s: float) -> float:
        return 1.0

    ends_at_s: ClassVar[float] = 1.0
    mean_prompt_tokens: ClassVar[float] = 5.0
    mean_output_tokens: ClassVar[float] = 5.0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_prompt_tokens", WRAPS, "num_prompt_tokens is 4,294,967,396; allowed: 1 to 1,000,000,000"),
        ("num_output_tokens", 0, "num_output_tokens is 0; allowed: 1 to 1,000,000,000"),
        ("num_output_tokens", -(2**33), "num_output_tokens is -8,589,934,592; allowed"),
        ("class_id", 2**15, "class_id is 32,768; allowed: 0 to 32,766"),
        ("session", 2**31, "session is 2,147,483,648; allowed: 0 to 2,147,483,647"),
        ("session", -1, "session is -1; allowed"),
        ("arrived_at_s", -1.0, "arrived_at_s is -1.0; allowed: 0.0 to 316,224,000.0"),
        ("arrived_at_s", "nan", "arrived_at_s is nan; allowed"),
        ("arrived_at_s", "inf", "arrived_at_s is inf; allowed"),
    ],
)
def test_a_kind_that_yields_what_no_run_holds_is_told_which_request(field: str, value: Any, message: str) -> None:
    with pytest.raises(TraceError, match=f"traffic: request 2: {message}"):
        taken(Custom(field=field, value=value))


def test_nothing_wraps_on_its_way_into_the_window() -> None:
    for row in ((0.0, WRAPS, 5), (0.0, 5, WRAPS), (0.0, 5, 5, 2**16), (0.0, -5, 5)):
        with pytest.raises(AssertionError):
            load(new_fleet(engine(), 1, NUM_ITL_BINS), rows_of([row]))


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seqs": 65_536, "max_num_batched_tokens": 10**6, **NO_ACTIVATIONS}, "at most 65,535, given 65,536"),
        ({"max_num_batched_tokens": 2**32, **NO_ACTIVATIONS}, "at most 1,000,000,000, given 4,294"),
        ({"num_gpu_blocks": 2**32}, "num_gpu_blocks must be at most 2,147,483,647, given 4,294,967,295"),
        ({"block_size": 2**20, "num_gpu_blocks": 10}, "block_size must be at most 65,536, given 1,048,576"),
        ({"max_num_queued_reqs": 2**63}, "max_num_queued_reqs must be below 2\\*\\*63"),
        ({"max_num_queued_tokens": 2**70}, "max_num_queued_tokens must be below 2\\*\\*63"),
        ({"max_loras": 2**64}, "max_loras must be below 2\\*\\*63"),
    ],
)
def test_an_option_that_no_count_holds_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Surrogate(**options).engine(model("llama-3.1-8b"), gpu("h100-sxm"))


def test_requests_that_share_more_tokens_than_are_counted_are_refused_where_they_can_share() -> None:
    options = {"max_num_seqs": 20_000, "max_num_batched_tokens": 20_000, "num_gpu_blocks": 10_000}
    Surrogate(**options, enable_prefix_caching=False).engine(model("llama-3.1-8b"), gpu("h100-sxm"))
    with pytest.raises(ValueError, match=r"hold up to 2,621,440,000 tokens; .* lower max_num_seqs to 16,383"):
        Surrogate(**options, enable_prefix_caching=True).engine(model("llama-3.1-8b"), gpu("h100-sxm"))


def test_a_class_asks_for_no_more_than_its_record_holds() -> None:
    for asked in ({"priority": 2**63}, {"priority": -(2**40)}, {"max_tokens": WRAPS}, {"num_free_tokens": 2**64}):
        with pytest.raises(ValidationError, match=r"less than or equal|greater than or equal"):
            RequestKind(**asked)


def experiment(traffic: dict[str, Any], **pool: Any) -> Experiment:
    one = {
        "name": "main",
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "replicas": {"kind": "surrogate"},
        "autoscaler": {"kind": "fixed", "replicas": 1},
    }
    traffic = {"kind": "concurrent", "limit": 5, "lengths": LENGTHS} | traffic
    document = {"name": "x", "traffic": traffic, "router": {"kind": "round_robin"}, "pools": [one | pool]}
    return Experiment.model_validate_json(json.dumps(document))


def test_caching_that_the_traffic_turns_on_is_bounded_too() -> None:
    replicas = {"kind": "surrogate", "max_num_seqs": 20_000, "max_num_batched_tokens": 20_000, "num_gpu_blocks": 10_000}
    Wiring(experiment({}, replicas=replicas), Kept(), lambda now_s, num_ended: None)
    with pytest.raises(ConfigError, match=r"pools.main.replicas: 20,000 requests \(max_num_seqs\) .* hold up to 2,621,440,000"):
        Wiring(experiment({"prefixes": {"tokens": 5}}, replicas=replicas), Kept(), lambda now_s, num_ended: None)


def test_a_fleet_that_fits_in_no_memory_is_refused() -> None:
    with pytest.raises(ValidationError, match="come to 1,000,000,000 engines; at most 65,536 are simulated"):
        experiment({}, autoscaler={"kind": "fixed", "replicas": 10**9})


def test_more_classes_than_a_request_can_name_are_refused() -> None:
    classes = [{"name": str(i), "share": 1.0, "lengths": LENGTHS} for i in range(MAX_CLASSES + 1)]
    with pytest.raises(ValidationError, match="classes: 32,768 are given; at most 32,767 are told apart"):
        KINDS["concurrent"](limit=5, classes=classes)


# Settings that once hung a run, or failed only when its tables were written


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"router": {"kind": "power_of_d_choices", "d": 2**70}}, "router.d: must be at most 65536"),
        ({"router": {"kind": "random", "scrape_interval_s": 1e-300}}, "router.scrape_interval_s: must be 0, or at least 0.001"),
        ({"timeline_interval_s": 1e-9}, "timeline_interval_s: must be at least 0.001"),
        ({"seed": 2**63}, "seed: must be at most"),
        ({"seeds": [1, 2**63]}, "seeds: must be a list of whole numbers from 0 to 9,223,372,036,854,775,807"),
        ({"pool": {"lifecycle": {"provision_s": -20}}}, "pools.main.lifecycle.provision_s: must be at least 0, given -20"),
        ({"pool": {"lifecycle": {"start_s": -1}}}, "pools.main.lifecycle.start_s: must be at least 0, given -1"),
        (
            {"pool": {"autoscaler": {"kind": "queue_target", "interval_s": 1e-12}}},
            "pools.main.autoscaler.interval_s: must be at least 0.001",
        ),
        (
            {"pool": {"autoscaler": {"kind": "fixed", "replicas": 1, "scrape_interval_s": 1e-12}}},
            "pools.main.autoscaler.scrape_interval_s: must be 0, or at least 0.001",
        ),
    ],
)
def test_a_setting_with_which_a_run_would_not_end_is_refused_at_load(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    pool = {"name": "main", "model": "llama-3.1-8b", "gpu": "h100-sxm", "replicas": {"kind": "surrogate"}}
    pool |= {"autoscaler": {"kind": "fixed", "replicas": 1}} | change.pop("pool", {})
    traffic = {"kind": "concurrent", "limit": 5, "lengths": LENGTHS}
    path = tmp_path / "x.yaml"
    path.write_text(json.dumps({"traffic": traffic, "router": {"kind": "round_robin"}, "pools": [pool]} | change))
    with pytest.raises(ConfigError, match=message):
        load_runs(path)


def test_a_block_too_large_for_the_memory_is_named_as_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"2.44e\+08 for two KV blocks of 1,000,000,000,000 tokens"):
        Surrogate(block_size=10**12).engine(model("llama-3.1-8b"), gpu("h100-sxm"))
