"""Recorded traffic: what published traces do to their readers, and what each setting does."""

import gzip
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from sim.errors import TraceError
from tests.shared import FOLDER
from traces import KINDS, Traffic, files
from traces.cells import MISSING, instants_ns, whole_numbers

AZURE_2023 = FOLDER / "data" / "traces" / "azure2023"
BURSTGPT = FOLDER / "data" / "traces" / "burstgpt"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
COLUMNS = {"arrived_at": "t", "num_prompt_tokens": "in", "num_output_tokens": "out"}


def make(kind: str, **settings: Any) -> Traffic:
    return KINDS[kind](**settings)


def needs(path: Path) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not path.exists(), reason=f"{path} is not there; DAYBREAK_SHARED says where shared/ is")


def arrivals(source: Traffic, seed: int = 1) -> Any:
    return np.concatenate(list(source.stream(seed).chunks()))


def counts_of(source: Traffic) -> dict[str, int]:
    stream = source.stream(1)
    for _ in stream.chunks():
        pass
    return dict(stream.counts)


def azure(folder: Path, *rows: str, **settings: Any) -> Traffic:
    (folder / "azure.csv").write_text(HEADER + "\r\n".join(rows), newline="")
    return make("azure", path=str(folder / "azure.csv"), **settings)


def table(folder: Path, *rows: str, header: str = "t,in,out", time_unit: str = "s", **settings: Any) -> Traffic:
    (folder / "table.csv").write_text("\n".join([header, *rows]) + "\n")
    return make("table", path=str(folder / "table.csv"), columns=COLUMNS, time_unit=time_unit, **settings)


# The published files


@needs(AZURE_2023)
@pytest.mark.parametrize(
    ("name", "num_rows", "span_s", "prompt_p50", "output_p50"),
    [("conv", 19_366, 3_501.721937, 1020, 129), ("code", 8_819, 3_435.948056, 1469, 13)],
)
def test_azure2023_accounts_for_every_row(name: str, num_rows: int, span_s: float, prompt_p50: int, output_p50: int) -> None:
    trace = make("azure", path=str(AZURE_2023 / f"AzureLLMInferenceTrace_{name}.csv"))
    rows = arrivals(trace)
    assert counts_of(trace) == {"read": num_rows, "kept": num_rows}
    assert rows["arrived_at_s"][[0, -1]] == pytest.approx([0.0, span_s], abs=1e-9)
    assert np.median(rows["num_prompt_tokens"]) == prompt_p50
    assert np.median(rows["num_output_tokens"]) == output_p50
    assert trace.ends_at_s == rows["arrived_at_s"][-1]
    assert trace.mean_rate_per_s(0, trace.ends_at_s) * trace.ends_at_s == pytest.approx(num_rows)
    assert trace.mean_prompt_tokens == pytest.approx(rows["num_prompt_tokens"].mean())
    assert trace.mean_output_tokens == pytest.approx(rows["num_output_tokens"].mean())


@needs(BURSTGPT)
def test_burstgpt_inserts_columns_and_writes_whole_seconds_as_floats() -> None:
    columns = {"arrived_at": "Timestamp", "num_prompt_tokens": "Request tokens", "num_output_tokens": "Response tokens"}
    for file, policy in (("BurstGPT_1_head_excerpt.csv", "drop"), ("BurstGPT_3_head_excerpt.csv", "clip")):
        trace = make("table", path=str(BURSTGPT / file), columns=columns, time_unit="s", bad_rows=policy)
        counts = counts_of(trace)
        assert counts["read"] == len((BURSTGPT / file).read_text().splitlines()) - 1
        assert counts["read"] == counts["kept"] + sum(n for reason, n in counts.items() if reason.startswith("dropped"))
        assert (arrivals(trace)["arrived_at_s"] % 1 == 0).all()


# Instants


def test_azure_fractions_keep_their_milliseconds(tmp_path: Path) -> None:
    stamps = ("46.6010000", "46.6020000", "46.6090000", "46.6110000")
    rows = [f"2023-11-16 18:15:{stamp},10,5" for stamp in stamps]
    np.testing.assert_allclose(arrivals(azure(tmp_path, *rows))["arrived_at_s"], [0, 0.001, 0.008, 0.010], atol=1e-12)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_azure_stamps_with_seven_digits_and_no_zone_are_utc(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        for text in (["2023-11-16 18:15:46.6805900"], ["2023-11-16 18:15:46.6805900", "2023-11-16 18:15:47+00:00"]):
            assert instants_ns(pa.array(text), "iso8601")[0] == 1_700_158_546_680_590_000
    finally:
        monkeypatch.undo()
        time.tzset()


def test_local_clock_change_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")  # its clocks went back at 2023-11-05 06:00 UTC
    time.tzset()
    try:
        rows = arrivals(azure(tmp_path, "2023-11-05 00:30:00.0000000,1,1", "2023-11-05 03:30:00.0000000,1,1"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert list(rows["arrived_at_s"]) == [0.0, 3 * 3600.0]


def test_azure2024_stamps_without_fraction_on_whole_seconds(tmp_path: Path) -> None:
    rows = ("2024-05-10 00:00:00.009930+00:00,10,5", "2024-05-10 00:00:01+00:00,11,6")
    assert arrivals(azure(tmp_path, *rows))["arrived_at_s"] == pytest.approx([0.0, 0.990070], abs=1e-12)


@pytest.mark.parametrize(
    ("cells", "unit", "offsets_ns"),
    [
        ([1000, 1001], "s", 1_000_000_000),
        ([1787000000000, 1787000000001], "ms", 1_000_000),
        ([1787000000000000, 1787000000000001], "us", 1_000),
        ([1787000000000000000, 1787000000000000001], "ns", 1),
        (["0.25", " 0.5"], "s", 250_000_000),
        (["19440110.0", "19440111.0"], "s", 1_000_000_000),
        (["2024-05-10T00:00:00Z", "2024-05-10 02:00:00.000000001+02:00"], "iso8601", 1),
        (["2024-05-10T00:00:00", "2024-05-10 02:00:00.5+02:00"], "iso8601", 500_000_000),
    ],
)
def test_instants_are_read_to_the_nanosecond(cells: list[Any], unit: str, offsets_ns: int) -> None:
    assert np.diff(instants_ns(pa.array(cells), unit)) == [offsets_ns]


def test_arrow_timestamps_carry_their_own_unit() -> None:
    column = pa.array([0, 1500], pa.timestamp("ms"))
    assert list(instants_ns(column, "iso8601")) == list(instants_ns(column, "s")) == [0, 1_500_000_000]


@pytest.mark.parametrize("cell", [None, "", "x", "nan", "inf", "1e30", "2024-02-31 00:00:00"])
@pytest.mark.parametrize("unit", ["s", "ns", "iso8601"])
def test_what_is_no_instant_is_missing_and_not_0(cell: str | None, unit: str) -> None:
    good = "2024-05-10 00:00:00" if unit == "iso8601" else "5"
    ns = instants_ns(pa.array([good, cell], pa.string()), unit)
    assert (ns[0] != MISSING, ns[1] == MISSING) == (True, True)


def test_whole_numbers_are_whole() -> None:
    cells = ["374", "374.0", " 374", "374.5", "", "x", None, "-1"]
    assert list(whole_numbers(pa.array(cells))) == [374, 374, 374, MISSING, MISSING, MISSING, MISSING, -1]


def test_epoch_and_relative_clocks_in_one_file_are_refused(tmp_path: Path) -> None:
    for rows in (["10000000,5,5", "1787000000000000,5,5"], ["1787000000000000,5,5", "10000000,5,5"]):
        for settings in ({}, {"sort_rows": True}, {"sort_rows": True, "bad_rows": "clip"}):
            with pytest.raises(TraceError, match=r"epoch and relative times|before an earlier row"):
                arrivals(table(tmp_path, *rows, time_unit="us", **settings))


def test_epoch_milliseconds_read_as_seconds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"row 1: t is '1787000000000'; allowed: an instant \(is the time unit right"):
        arrivals(table(tmp_path, "1787000000000,5,5", time_unit="s"))


def test_epoch_and_relative_files_give_the_same_traffic(tmp_path: Path) -> None:
    relative = arrivals(table(tmp_path, "0,5,5", "250,6,6", time_unit="ms"))
    epoch = arrivals(table(tmp_path, "1787000000000,5,5", "1787000000250,6,6", time_unit="ms"))
    np.testing.assert_array_equal(relative, epoch)


# Scaling and cutting


def test_time_scale_multiplies_times_and_the_new_duration_is_told(tmp_path: Path) -> None:
    trace = table(tmp_path, "0,5,5", "1,5,5", "2,5,5", time_scale=1000.0)
    assert list(arrivals(trace)["arrived_at_s"]) == [0.0, 1000.0, 2000.0]
    assert trace.ends_at_s == 2000.0
    assert "3 requests expected over 2,000 s" in trace.describe()
    assert trace.mean_rate_per_s(0, 2000) == pytest.approx(3 / 2000)


def test_window_starts_at_0_and_counts_what_it_leaves_out(tmp_path: Path) -> None:
    trace = table(tmp_path, *(f"{100 + t},5,{t + 1}" for t in range(10)), start_s=3.0, end_s=6.0)
    assert list(arrivals(trace)["arrived_at_s"]) == [0.0, 1.0, 2.0]
    assert list(arrivals(trace)["num_output_tokens"]) == [4, 5, 6]
    assert counts_of(trace) == {"read": 10, "kept": 3, "dropped_outside_window": 7}
    assert trace.mean_rate_per_s(0, 1) == 1.0
    assert trace.mean_rate_per_s(0, 2) == 1.5  # the last request counts at its own instant


def test_window_without_requests_is_an_error_that_tells_the_span(tmp_path: Path) -> None:
    trace = table(tmp_path, "1700000000,5,5", "1700000009,5,5", start_s=1.7e9)
    with pytest.raises(TraceError, match=r"no request is left between start_s 1.7e\+09 .* read 2 rows over 9 s"):
        arrivals(trace)


def test_limit_counts_the_rows_read_beyond_it(tmp_path: Path) -> None:
    trace = table(tmp_path, *(f"{t},5,5" for t in range(10)), limit=4)
    assert counts_of(trace) == {"read": 10, "kept": 4, "dropped_over_limit": 6}
    assert trace.ends_at_s == 3.0


def test_rate_scale_of_a_whole_number_repeats_each_request_between_it_and_the_next(tmp_path: Path) -> None:
    trace = table(tmp_path, *(f"{10 * t},5,{t + 1}" for t in range(200)), rate_scale=3.0)
    rows = arrivals(trace)
    assert (np.diff(rows["arrived_at_s"]) >= 0).all()
    assert (np.bincount(rows["num_output_tokens"])[1:] == 3).all()
    assert ((rows["arrived_at_s"] // 10).astype(int) == rows["num_output_tokens"] - 1).all()
    assert counts_of(trace) == {"read": 200, "kept": 600, "copied": 400}
    assert trace.mean_rate_per_s(0, 1000) == pytest.approx(0.3)


@pytest.mark.parametrize("rate_scale", [0.3, 2.5])
def test_rate_scale_with_a_fraction_holds_on_average_and_accounts_for_every_row(tmp_path: Path, rate_scale: float) -> None:
    trace = table(tmp_path, *(f"{t},5,5" for t in range(4000)), rate_scale=rate_scale)
    counts = counts_of(trace)
    p = rate_scale % 1
    assert counts["kept"] == pytest.approx(4000 * rate_scale, abs=4 * (4000 * p * (1 - p)) ** 0.5)
    assert counts["read"] + counts.get("copied", 0) == counts["kept"] + counts.get("dropped_by_rate_scale", 0)


def test_rate_scale_does_not_depend_on_how_the_file_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = table(tmp_path, *(f"{t},5,{t + 1}" for t in range(5000)), rate_scale=2.5)
    whole = arrivals(trace)
    monkeypatch.setattr(files, "BLOCK_BYTES", 1024)
    np.testing.assert_array_equal(arrivals(trace), whole)


def test_window_must_be_open() -> None:
    with pytest.raises(ValidationError, match="end_s 5 is not after start_s 5"):
        make("azure", path="x.csv", start_s=5.0, end_s=5.0)


# Bad rows

GOOD = "2023-11-16 18:15:46.0000000,10,5"
LATER = "2023-11-16 18:15:48.0000000,10,5"
BAD_ROWS = [
    ("2023-11-16 18:15:47.0000000,0,5", "zero_tokens", "ContextTokens is 0; allowed: at least 1"),
    ("2023-11-16 18:15:47.0000000,10,-3", "zero_tokens", "GeneratedTokens is -3; allowed: at least 1"),
    ("2023-11-16 18:15:47.0000000,10,", "unreadable", "GeneratedTokens is (None|''); allowed: a whole number"),
    ("2023-11-16 18:15:47.0000000,1.5,5", "unreadable", "ContextTokens is '1.5'; allowed: a whole number"),
    ("yesterday,10,5", "unreadable", "TIMESTAMP is 'yesterday'; allowed: an instant"),
    ("2023-11-16 18:15:45.5000000,10,5", "unsorted", "TIMESTAMP is 0.5 s before an earlier row's; sort_rows: true"),
    ("2023-11-16 18:1", "malformed", "the number of fields differs from the header's: '2023-11-16 18:1'"),
]


@pytest.mark.parametrize(("row", "reason", "message"), BAD_ROWS)
def test_bad_row_is_named_or_dropped_or_clipped(tmp_path: Path, row: str, reason: str, message: str) -> None:
    with pytest.raises(TraceError, match=rf"azure.csv: row 2: {message}.*drop or clip would go on"):
        arrivals(azure(tmp_path, GOOD, row, LATER))
    assert counts_of(azure(tmp_path, GOOD, row, LATER, bad_rows="drop")) == {
        "read": 3,
        "kept": 2,
        f"dropped_{reason}": 1,
    }
    clipped = azure(tmp_path, GOOD, row, bad_rows="clip")
    if reason in ("unreadable", "malformed"):  # nothing to clip to
        assert counts_of(clipped) == {"read": 2, "kept": 1, f"dropped_{reason}": 1}
    else:
        assert counts_of(clipped) == {"read": 2, "kept": 2, f"clipped_{reason}": 1}
        assert (arrivals(clipped)["num_prompt_tokens"] >= 1).all()
        assert (arrivals(clipped)["num_output_tokens"] >= 1).all()
        assert (np.diff(arrivals(clipped)["arrived_at_s"]) >= 0).all()


def test_of_two_rows_that_are_no_rows_the_first_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="row 2: the number of fields"):
        arrivals(table(tmp_path, "0,5,5", "1,5", "2,5", "3,5,5"))


def test_row_number_counts_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 256)
    rows = [f"{t},5,5" for t in range(1000)]
    rows[776] = "776,5,0"
    with pytest.raises(TraceError, match="row 777: out is 0"):
        arrivals(table(tmp_path, *rows))


def test_unsorted_rows_are_found_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 256)
    rows = [f"{t},5,5" for t in [*range(500), 100, *range(500, 600)]]
    assert counts_of(table(tmp_path, *rows, bad_rows="drop")) == {"read": 601, "kept": 600, "dropped_unsorted": 1}


def test_sort_rows_sorts_and_starts_at_the_earliest(tmp_path: Path) -> None:
    rows = arrivals(table(tmp_path, "9,5,1", "7,5,2", "8,5,3", "7,5,4", sort_rows=True))
    assert list(rows["arrived_at_s"]) == [0, 0, 1, 2]
    assert list(rows["num_output_tokens"]) == [2, 4, 3, 1]  # equal instants keep the file's order


# Files


def test_missing_azure_file_says_where_to_get_it() -> None:
    message = r"nowhere.csv: no such file; set traffic.path .*github.com/Azure/AzurePublicDataset"
    with pytest.raises(TraceError, match=message):
        arrivals(make("azure", path="nowhere.csv"))


def test_missing_column_is_named_with_its_nearest_match(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no column 't'.*found: time, in, out"):
        arrivals(table(tmp_path, "1,5,5", header="time,in,out"))
    with pytest.raises(TraceError, match=r"no column 'out'; did you mean 'outs'\?"):
        arrivals(table(tmp_path, "1,5,5", header="t,in,outs"))


@pytest.mark.parametrize("content", ["", "t,in,out\n"])
def test_empty_file_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "empty.csv").write_text(content)
    with pytest.raises(TraceError, match=r"empty\.csv"):
        arrivals(make("table", path=str(tmp_path / "empty.csv"), columns=COLUMNS, time_unit="s"))


def test_file_that_is_not_parquet_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("t,in,out\n1,2,3\n")
    with pytest.raises(TraceError, match=r"x\.parquet: .*"):
        arrivals(make("table", path=str(tmp_path / "x.parquet"), columns=COLUMNS, time_unit="s"))


def test_csv_gzip_and_parquet_give_the_same_traffic(tmp_path: Path) -> None:
    csv = arrivals(table(tmp_path, "0.5,5,1", "1.5,6,2"))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress((tmp_path / "table.csv").read_bytes()))
    pq.write_table(pa.table({"t": [0.5, 1.5], "in": [5, 6], "out": [1, 2], "x": ["", ""]}), tmp_path / "t.parquet")
    for name in ("t.csv.gz", "t.parquet"):
        other = make("table", path=str(tmp_path / name), columns=COLUMNS, time_unit="s")
        np.testing.assert_array_equal(arrivals(other), csv)


def test_byte_order_mark_and_quotes_are_no_part_of_the_names(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('\ufeff"t","in","out"\n"0","5","5"\n', encoding="utf-8")
    assert len(arrivals(make("table", path=str(tmp_path / "x.csv"), columns=COLUMNS, time_unit="s"))) == 1


def test_classes_are_numbered_as_they_first_appear(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("t,in,out,model\n0,1,1,gpt-4\n1,1,1,\n2,1,1,claude\n3,1,1,gpt-4\n")
    columns = COLUMNS | {"class_name": "model"}
    trace = make("table", path=str(tmp_path / "c.csv"), columns=columns, time_unit="s")
    assert trace.class_names == ("gpt-4", "default", "claude")
    assert list(arrivals(trace)["class_id"]) == [0, 1, 2, 0]


def test_column_of_ids_is_no_column_of_classes(tmp_path: Path) -> None:
    columns = COLUMNS | {"class_name": "in"}
    table(tmp_path, *(f"{t},{t + 1},5" for t in range(1500)))
    with pytest.raises(TraceError, match=r"table\.csv: columns.class_name .* more than 1,000 different values"):
        arrivals(make("table", path=str(tmp_path / "table.csv"), columns=columns, time_unit="s"))


def test_known_rate_of_a_file_is_counted_by_the_second(tmp_path: Path) -> None:
    trace = table(tmp_path, "0,5,5", "0.5,5,5", "1.25,5,5", "7,5,5", "7.5,5,5")
    assert [trace.mean_rate_per_s(s, s + 1) for s in range(9)] == [2, 1, 0, 0, 0, 0, 0, 2, 0]
    assert trace.mean_rate_per_s(7, 7.25) == 4.0  # within a second in proportion; the last one ends at 7.5
    assert trace.mean_rate_per_s(0, 10) == 0.5
    assert trace.mean_rate_per_s(-10, 0) == 0.0


def test_memory_is_flat_in_the_length_of_the_file(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:  # Arrow counts for a process: here other tests' files too
        few, many = (alone.submit(_most_bytes_held, tmp_path, num_rows).result() for num_rows in (50_000, 400_000))
    assert max(few, many) < 4_500_000  # 0.3 MB each, of a second file whose text alone has 6 MB


def _most_bytes_held(folder: Path, num_rows: int) -> int:
    files.BLOCK_BYTES = 8 << 10  # of which Arrow reads about 35 ahead
    trace = table(folder, *(f"{t},1000,200" for t in range(num_rows)))
    before, peak = pa.total_allocated_bytes(), 0
    for rows in trace.stream(1, chunk_rows=4096).chunks():
        assert len(rows) <= 4096
        peak = max(peak, pa.total_allocated_bytes() - before)
    return peak


def test_a_long_row_does_not_fill_the_screen_with_its_error(tmp_path: Path) -> None:
    wide = "x" * 80_000
    with pytest.raises(TraceError, match="row 1: the number of fields differs") as refused:
        arrivals(table(tmp_path, f"0,5,5,{wide}"))
    assert len(str(refused.value)) < 400 + len(str(tmp_path))
    with pytest.raises(TraceError, match="row 1: in is 'xxx") as refused:
        arrivals(table(tmp_path, f"0,{wide},5"))
    assert len(str(refused.value)) < 400 + len(str(tmp_path))
    with pytest.raises(TraceError, match="no column 'out'") as refused:
        arrivals(table(tmp_path, "0,5,5", header=f"t,in,{wide}"))
    assert len(str(refused.value)) < 400 + len(str(tmp_path))
    (tmp_path / "long.jsonl").write_text(f"[{wide}]")
    with pytest.raises(TraceError, match="row 1: no JSON object") as refused:
        arrivals(make("table", path=str(tmp_path / "long.jsonl"), columns=COLUMNS, time_unit="s"))
    assert len(str(refused.value)) < 400 + len(str(tmp_path))


def test_classes_that_are_lists_or_mappings_have_names_too(tmp_path: Path) -> None:
    rows = ('{"t": 0, "in": 1, "out": 1, "model": [1, 2]}', '{"t": 1, "in": 1, "out": 1, "model": [3]}')
    (tmp_path / "c.jsonl").write_text("\n".join(rows))
    trace = make("table", path=str(tmp_path / "c.jsonl"), columns=COLUMNS | {"class_name": "model"}, time_unit="s")
    assert trace.class_names == ("[1, 2]", "[3]")


def test_copies_come_anywhere_before_the_next_request_and_alike_often_everywhere(tmp_path: Path) -> None:
    rows = arrivals(table(tmp_path, *(f"{10 * t},5,{t + 1}" for t in range(2000)), rate_scale=2.0))
    within_s = rows["arrived_at_s"][1:-1:2] % 10  # of each copy, after its original; the last one's comes with it
    assert within_s.mean() == pytest.approx(5.0, abs=4 * 10 / (12 * 2000) ** 0.5)
    assert within_s.std() == pytest.approx(10 / 12**0.5, rel=0.1)
    assert (rows["arrived_at_s"][0::2] % 10 == 0).all()


def test_known_rate_follows_the_stretched_time(tmp_path: Path) -> None:
    trace = table(tmp_path, "0,5,5", "1,5,5", "2,5,5", "9,5,5", time_scale=10.0)
    assert trace.mean_rate_per_s(0, 30) == pytest.approx(3 / 30)
    assert trace.mean_rate_per_s(30, 80) == 0.0


def test_a_limit_on_a_thinned_trace_may_take_it_to_its_end(tmp_path: Path) -> None:
    trace = table(tmp_path, *(f"{t},{t + 1},5" for t in range(100)), limit=20, rate_scale=0.4)
    rows = arrivals(trace)
    assert len(rows) == 20
    assert rows["arrived_at_s"][-1] > 20
    assert trace.ends_at_s == 99.0
