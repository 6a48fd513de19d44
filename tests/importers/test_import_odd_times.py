"""Times that no clock can have shown: before its origin, or beyond what a 64-bit integer of nanoseconds can hold."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from tests.importers.recordings import call, check_tree, kernel, trace_file
from tests.importers.test_import_bad_input import nsys_export
from tokentrace.emit import jaeger, otlp_file
from tokentrace.importers import load, power_dumps

LAST = 2**63 - 1


def test_a_clock_that_counts_from_below_zero_begins_at_zero(tmp_path: Path) -> None:
    path = trace_file(tmp_path / "t.json", [call("cudaLaunchKernel", -1000, 5, 1), kernel("k", -900, 100, 1)])
    found = load(path)
    assert found.figures["busy_ns"] == 100_000 and found.figures["span_ns"] == 200_000 and found.lost["events"] == 0
    assert min(found.trace.start_ns) == 0 and max(found.trace.end_ns) == 200_000
    check_tree(found.trace)
    jaeger.write(found.trace, tmp_path / "t.jaeger.json")  # ends, although the critical path is walked
    otlp_file.write(found.trace, tmp_path / "t.jsonl")
    assert otlp_file.read(tmp_path / "t.jsonl").start_ns == found.trace.start_ns


def test_with_a_known_origin_what_lies_before_it_is_lost(tmp_path: Path) -> None:
    events = [call("cudaLaunchKernel", -2000, 5, 1), kernel("k", 10, 100, 1)]
    found = load(trace_file(tmp_path / "t.json", events, baseTimeNanoseconds=1_000_000))
    assert found.lost["events"] == 1 and "times that cannot be" in found.lost["reason"]
    assert found.figures["kernels"] == 1 and found.figures["launches"] == 0


@pytest.mark.parametrize("column", ["start", "end"])
@pytest.mark.parametrize("value", [LAST, -LAST - 1])
def test_an_impossible_time_costs_that_row_only(tmp_path: Path, column: str, value: int) -> None:
    thread, process = 5 << 24 | 1, 5 << 24
    calls = [(n * 1000, n * 1000 + 100, thread, n, 2) for n in range(1, 4)]
    kernels = [(n * 1000 + 200, n * 1000 + 700, 0, 7, n, process, 1) for n in range(1, 4)]
    path = nsys_export(tmp_path / "t.sqlite", RUNTIME=calls, KERNEL=kernels)
    whole = load(path).figures
    with sqlite3.connect(path) as database:
        database.execute(f"update CUPTI_ACTIVITY_KIND_KERNEL set {column} = ? where correlationId = 2", [value])
    found = load(path)
    if (column, value) == ("end", -LAST - 1):  # shorter than nothing counts as nothing
        assert found.figures["kernels"] == 3
    else:
        assert found.figures["kernels"] == 2 and found.lost["events"] == 1
    assert found.figures["busy_ns"] == whole["busy_ns"] - 500
    check_tree(found.trace)


def test_an_impossible_beginning_of_an_export_is_an_unknown_clock(tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite", KERNEL=[(100, 200, 0, 7, 1, 5 << 24, 1)])
    with sqlite3.connect(path) as database:
        database.execute("create table TARGET_INFO_SESSION_START_TIME (utcEpochNs)")
        database.execute("insert into TARGET_INFO_SESSION_START_TIME values (?)", [LAST])
    found = load(path)
    assert found.source["clock"] == "unknown origin" and "cannot be" in found.lost["reason"]
    assert found.figures["busy_ns"] == 100


@pytest.mark.parametrize("year", ["9999", "0001", "1969", "2200"])
def test_a_power_sample_of_no_time_is_not_joined(year: str) -> None:
    dump = power_dumps.parse(f"timestamp, index, power.draw [W]\n{year}/12/31 12:00:00.000, 0, 100 W\n")
    assert [sample.time_ns for sample in dump.samples] == [None]


def test_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff\xfe t.json")
    try:
        trace_file(path, [call("cudaLaunchKernel", 0, 5, 1), kernel("k", 10, 100, 1)])
    except OSError:
        pytest.skip("this file system takes no such name")
    found = load(path)
    assert found.figures["kernels"] == 1
    otlp_file.write(found.trace, tmp_path / "t.jsonl")
    for name in (*found.trace.processes, found.source["file"]):
        name.encode()


@pytest.mark.parametrize("content", ['{"traceEvents":["a",1,null,[]]}', '{"traceEvents":[{"a":1}}]}'])
def test_a_whole_file_without_events_is_not_called_cut(tmp_path: Path, content: str) -> None:
    from tokentrace.errors import UsageError

    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(UsageError) as refused:
        load(path)
    assert "cut" not in str(refused.value)
